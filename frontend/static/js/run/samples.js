// The latest samples. Text of a model is set as text, never as markup. Tokens are fetched once a sample and shaded by version.
import { fixed } from "../format.js";
import { byId, el } from "./dom.js";

const SHOWN = 16;
const SHADES = 4;

export class Samples {
  constructor(base, store) {
    Object.assign(this, { base, store, tokens: new Map(), wanted: new Set(), opened: new Set(), held: false, query: { outcome: "", q: "" }, found: null });
    this.box = byId("samples");
    byId("sample-outcome").addEventListener("change", (event) => this.search({ outcome: event.target.value }));
    let typing = 0;
    byId("sample-search").addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => this.search({ q: event.target.value.trim() }), 250);
    });
    const hold = byId("sample-hold");
    hold.addEventListener("click", () => {
      this.held = !this.held;
      hold.setAttribute("aria-pressed", String(this.held));
      hold.textContent = this.held ? "Go on" : "Hold";
      if (!this.held) this.draw();
    });
    this.box.addEventListener("click", (event) => {
      const button = event.target.closest("[data-toggle]");
      if (!button) return;
      const key = button.dataset.toggle;
      if (this.opened.has(key)) this.opened.delete(key);
      else this.opened.add(key);
      this.draw(true);
    });
  }

  // Filters ask the database, which holds every sample and not only the latest ones.
  async search(change) {
    Object.assign(this.query, change);
    if (!this.query.outcome && !this.query.q) this.found = null;
    else {
      const url = `${this.base}samples.json?${new URLSearchParams({ ...this.query, limit: "60" })}`;
      const reply = await fetch(url, { credentials: "same-origin" });
      this.found = reply.ok ? (await reply.json()).samples : [];
    }
    this.draw(true);
  }

  draw(forced = false) {
    if (this.held && !forced) return;
    const list = (this.found || this.store.samples).slice(0, this.found ? 60 : SHOWN);
    if (!list.length) {
      this.box.replaceChildren(el("p", { class: "none" }, this.found ? "No sample matches." : "no data yet"));
      return;
    }
    const place = this.box.scrollTop;
    this.box.replaceChildren(...list.map((sample) => this.card(sample)));
    this.box.scrollTop = place;
    for (const sample of list.slice(0, SHOWN)) this.fetchTokens(sample);
  }

  card(sample) {
    const key = `${sample.attempt}/${sample.seq}`;
    const open = this.opened.has(key);
    const span = sample.version_min === null || sample.version_min === undefined ? "–" : sample.version_min === sample.version_max ? `v${sample.version_min}` : `v${sample.version_min}–v${sample.version_max}`;
    const head = el("div", { class: "sample-head" }, this.reward(sample), el("span", {}, "advantage ", el("b", {}, fixed(sample.advantage, 2))),
      el("span", {}, "sampled by ", el("b", {}, span), sample.outcome === "trained" && typeof sample.version_trained === "number" ? ` · trained at v${sample.version_trained}` : ""),
      el("span", {}, `step ${sample.step}`), sample.outcome === "trained" ? null : el("b", {}, sample.outcome + (sample.drop_reason ? `: ${sample.drop_reason}` : "")),
      sample.finish_reason === "length" ? el("span", {}, "cut at the limit") : null,
      el("button", { class: "button quiet small", type: "button", "data-toggle": key, "aria-expanded": String(open) }, open ? "Less" : "More"));
    const given = sample.answer_given === "" || sample.answer_given === null || sample.answer_given === undefined ? "nothing" : sample.answer_given;
    const answers = el("p", { class: "expected" }, `expected ${sample.answer_expected || "–"}, given ${given}`);
    const article = el("article", { class: "sample", "data-open": open }, head, el("div", { class: "prompt" }, sample.prompt), this.completion(sample, key), open || sample.answer_expected ? answers : null);
    if (open) this.details(article, key);
    return article;
  }

  reward(sample) {
    // No reward is not a reward of 0.
    if (sample.reward === null || sample.reward === undefined) return el("span", { class: "reward-tag" }, "no reward");
    const level = sample.reward >= 0.5 ? "high" : "low";
    return el("span", { class: `reward-tag ${level}`, title: "reward" }, fixed(sample.reward, 2));
  }

  completion(sample, key) {
    const tokens = this.tokens.get(key);
    if (!tokens?.text?.length) return el("div", { class: "completion" }, sample.completion);
    const first = Math.min(...tokens.versions);
    // Shades tell versions apart; one version needs none.
    const several = tokens.versions.some((version) => version !== first);
    const spans = tokens.text.map((text, index) => {
      const version = tokens.versions[index];
      const logprob = tokens.logprobs?.[index];
      const title = `v${version}${typeof logprob === "number" ? `, log-prob ${fixed(logprob, 3)}` : ""}`;
      return el("span", { class: several ? `token shade-${(version - first) % SHADES}` : "token", title }, text);
    });
    return el("div", { class: "completion" }, spans);
  }

  details(article, key) {
    const tokens = this.tokens.get(key);
    if (!tokens?.versions?.length) return;
    const first = Math.min(...tokens.versions);
    const counts = new Map();
    for (const version of tokens.versions) counts.set(version, (counts.get(version) || 0) + 1);
    const keys = [...counts].map(([version, number]) => el("span", { class: `shade-${(version - first) % SHADES}` }, `v${version}: ${number} token${number === 1 ? "" : "s"}`));
    article.append(el("p", { class: "version-key" }, keys));
  }

  async fetchTokens(sample) {
    const key = `${sample.attempt}/${sample.seq}`;
    if (this.tokens.has(key) || this.wanted.has(key) || this.wanted.size > 3) return;
    this.wanted.add(key);
    try {
      const reply = await fetch(`${this.base}samples/${key}.json`, { credentials: "same-origin" });
      if (reply.ok) this.tokens.set(key, (await reply.json()).data.tokens || {});
      if (this.tokens.size > 200) this.tokens.delete(this.tokens.keys().next().value);
    } catch (error) {
      console.warn("Tokens of a sample could not be fetched:", error.message);
    } finally {
      this.wanted.delete(key);
      if (!this.wanted.size) this.draw();
    }
  }
}
