// One whole sample: facts, prompt, completion token by token, answers, and its group's other completions.
import { count, fixed, short } from "../format.js";
import { el } from "./dom.js";
import { SHADES } from "./shades.js";
import { TokenView } from "./tokens.js";
import { visible, visibleNodes } from "./visible.js";

const has = (value) => value !== null && value !== undefined && value !== "";

export function rewardTag(sample) {
  // No reward is not a reward of 0.
  if (!has(sample.reward)) return el("span", { class: "reward-tag" }, "no reward");
  return el("span", { class: `reward-tag ${sample.reward >= 0.5 ? "high" : "low"}`, title: "reward" }, fixed(sample.reward, 2));
}

export function versionSpan(sample) {
  if (!has(sample.version_min)) return "no version";
  return sample.version_min === sample.version_max ? `v${sample.version_min}` : `v${sample.version_min} to v${sample.version_max}`;
}

export function outcomeWords(sample) {
  return has(sample.drop_reason) ? `${sample.outcome}: ${visible(sample.drop_reason).replaceAll("_", " ")}` : sample.outcome;
}

export class SampleDetail {
  // hooks: shade(name) and open(key) when the reader chooses; move(by) for next and previous; get(path) fetches JSON
  constructor(box, hooks) {
    Object.assign(this, { box, hooks, key: null, first: 0 });
    this.tokens = new TokenView("The completion, token by token: arrow keys move, each token tells its numbers");
  }

  async open(key, { shade, bounds }) {
    if (this.key !== key) this.first = 0;
    Object.assign(this, { key, shade, bounds });
    this.box.setAttribute("aria-busy", "true");
    try {
      const sample = await this.hooks.get(`samples/${key}.json?first=${this.first}`);
      if (this.key === key) this.draw(sample);
    } catch (error) {
      if (this.key === key) this.box.replaceChildren(el("p", { class: "none" }, `This sample could not be fetched (${error.message}).`));
    } finally {
      if (this.key === key) this.box.removeAttribute("aria-busy");
    }
  }

  setShade(shade) {
    this.shade = shade;
    if (this.sample) this.drawTokens();
  }

  draw(sample) {
    this.sample = sample;
    const { data } = sample;
    const move = (by, sign, words) => {
      const button = el("button", { class: "button small", type: "button", title: `${words} (${by > 0 ? "j" : "k"})`, "aria-label": words }, sign);
      button.addEventListener("click", () => this.hooks.move(by));
      return button;
    };
    const select = el("select", { class: "input compact", id: "sample-shade" }, SHADES.map(([name, words]) => el("option", { value: name, selected: name === this.shade }, words)));
    select.addEventListener("change", () => {
      this.hooks.shade(select.value);
      this.setShade(select.value);
    });
    this.box.replaceChildren(...[
      el("div", { class: "detail-head" }, el("h3", { id: "sample-detail-title", tabindex: "-1" }, `Sample ${sample.seq}, step ${sample.step}`), rewardTag(data),
        el("div", { class: "end" }, move(-1, "↑", "Previous sample"), move(1, "↓", "Next sample"))),
      this.facts(sample), this.group(sample),
      this.section("Prompt", el("div", { class: "text-box prompt-text", tabindex: "0", role: "group", "aria-label": "The prompt" }, visibleNodes(data.prompt))),
      el("section", {}, el("div", { class: "detail-bar" }, el("h4", {}, "Completion"), el("span", { class: "end" }, el("label", { class: "note", for: "sample-shade" }, "Shade tokens by"), select)), this.tokens.node, this.pager(sample)),
      this.answers(data),
    ].filter(Boolean));
    this.drawTokens();
  }

  drawTokens() {
    const { data, tokens_first: first } = this.sample;
    this.tokens.show(data.tokens || {}, data.completion, this.shade, { trained: data.version_trained, outcome: data.outcome, bounds: this.bounds, first });
  }

  section(title, ...content) {
    return el("section", {}, el("h4", {}, title), ...content);
  }

  facts(sample) {
    const { data } = sample;
    const lag = has(data.version_trained) && has(data.version_min) && data.outcome === "trained" ? data.version_trained - data.version_min : null;
    const rows = [
      ["outcome", outcomeWords(data)], ["advantage", has(data.advantage) ? fixed(data.advantage, 3) : "none"],
      ["sampled by", versionSpan(data)], ["trained at", has(data.version_trained) && data.outcome === "trained" ? `v${data.version_trained}${lag === null ? "" : `, lag ${lag}`}` : null],
      ["length", `${count(sample.tokens_total)} ${sample.tokens_total === 1 ? "token" : "tokens"}`], ["ended by", { length: "the limit", stop: "itself", abort: "an abort" }[data.finish_reason] || data.finish_reason],
      ["prompt id", data.prompt_id], ["attempt", sample.attempt],
    ];
    return el("dl", { class: "detail-facts" }, rows.filter(([, value]) => has(value)).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, visible(value)))));
  }

  // The completions of this prompt that were kept, as bars of their reward: the open one is marked.
  group(sample) {
    const { samples, mean, spread } = sample.group;
    if (!samples?.length || samples.length < 2) return null;
    const buttons = samples.map((other) => {
      const key = `${sample.attempt}/${other.seq}`;
      const button = el("button", { type: "button", class: "sibling", "aria-current": key === this.key ? "true" : null },
        el("span", { class: "unseen" }, `Completion ${other.index}, reward`), el("b", {}, has(other.reward) ? fixed(other.reward, 2) : "–"), el("span", {}, has(other.advantage) ? `A ${fixed(other.advantage, 2)}` : other.outcome));
      button.addEventListener("click", () => this.hooks.open(key));
      return button;
    });
    return el("section", {}, el("div", { class: "detail-bar" }, el("h4", {}, "Same prompt"), el("span", { class: "note" }, `${samples.length} kept, mean reward ${has(mean) ? short(mean) : "–"}, spread ${has(spread) ? short(spread) : "–"}`)), el("div", { class: "siblings" }, buttons));
  }

  answers(data) {
    const given = has(data.answer_given) ? visibleNodes(data.answer_given) : [el("span", { class: "none" }, "nothing")];
    return el("dl", { class: "answers" }, el("div", {}, el("dt", {}, "Expected"), el("dd", {}, has(data.answer_expected) ? visibleNodes(data.answer_expected) : "–")), el("div", {}, el("dt", {}, "Given"), el("dd", {}, given)),
      has(data.error) ? el("div", {}, el("dt", {}, "Error"), el("dd", {}, visible(data.error))) : null);
  }

  // A very long completion comes in stretches.
  pager(sample) {
    const size = sample.data.tokens?.ids?.length || 0;
    if (!size || size >= sample.tokens_total) return null;
    const turn = (first, words, off) => {
      const button = el("button", { class: "button small", type: "button", disabled: off }, words);
      button.addEventListener("click", () => {
        this.first = first;
        this.open(this.key, this);
      });
      return button;
    };
    const first = sample.tokens_first;
    return el("p", { class: "detail-bar note" }, `Tokens ${count(first + 1)} to ${count(first + size)} of ${count(sample.tokens_total)}`,
      turn(Math.max(0, first - 2048), "Earlier", first === 0), turn(first + size, "Later", first + size >= sample.tokens_total));
  }
}
