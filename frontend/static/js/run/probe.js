// Base model against trained: asks, waits, and shows both answers side by side, token by token.
import { ago, duration, fixed } from "../format.js";
import { byId, el } from "./dom.js";
import { TokenView } from "./tokens.js";
import { param, setParams } from "./url.js";
import { visible, visibleNodes } from "./visible.js";

const POLL = 1200;
const SEPARATOR = /^\s*---\s*$/m;
const SIDES = [["base", "Base model"], ["trained", "Trained"]];
const SHADES = [["logprob", "its own log-prob"], ["trainer", "the other model's log-prob"], ["mismatch", "the other against itself"], ["none", "nothing"]];
const WORDS = { queued: "waiting for its turn", running: "both models answer", stopping: "being cancelled", done: "answered", failed: "failed", cancelled: "cancelled" };

export class Probe {
  constructor(base) {
    Object.assign(this, { base, probes: [], shade: "logprob", chosen: param("probe"), timer: 0 });
    this.form = byId("probe-form");
    this.problem = byId("probe-problem");
    this.answer = byId("probe-answer");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    byId("probe-prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    byId("probe-history").addEventListener("click", (event) => {
      const row = event.target.closest("[data-probe]");
      if (row) this.choose(row.dataset.probe);
    });
  }

  async get(path) {
    const reply = await fetch(this.base + path, { credentials: "same-origin" });
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    return reply.json();
  }

  async draw() {
    try {
      const found = await this.get("probes.json");
      this.probes = found.probes;
      this.fillForm(found);
      if (!this.chosen && this.probes.length) this.chosen = this.probes[0].id;
      this.history();
      const known = this.probes.find((probe) => probe.id === this.chosen);
      if (this.chosen && (!this.shown || this.shown.id !== this.chosen || this.shown.state !== known?.state)) await this.show(this.chosen);
    } catch (error) {
      this.say(`The probes could not be fetched: ${error.message}.`);
    }
    clearTimeout(this.timer);
    if (this.probes.some((probe) => probe.active)) this.timer = setTimeout(() => (document.hidden ? (this.timer = setTimeout(() => this.draw(), POLL * 4)) : this.draw()), POLL);
  }

  fillForm(found) {
    const select = byId("probe-checkpoint");
    const names = found.checkpoints.map((item) => item.id).join();
    if (select.dataset.names !== names) {
      const before = select.dataset.names === undefined ? found.checkpoints[0]?.id : select.value;
      select.replaceChildren(el("option", { value: "" }, "none: the base model alone"), ...found.checkpoints.map((item) => el("option", { value: item.id, selected: item.id === before }, `step ${item.step ?? "?"} (${visible(item.name)})`)));
      select.dataset.names = names;
    }
    if (!this.filled) {
      this.filled = true;
      for (const [name, value] of Object.entries(found.sampling)) if (this.form.elements[name]) this.form.elements[name].value = value;
    }
    const button = byId("probe-ask");
    button.disabled = !found.may || Boolean(this.asking);
    button.title = found.may ? "" : "Your role in this team does not allow probes: ask an owner of the team";
    if (found.may) return;
    this.say("Your role lets you read the answers below. To ask yourself, have an owner of the team make you a member.", true);
  }

  say(words, mild = false) {
    this.problem.hidden = !words;
    this.problem.className = mild ? "message" : "message error";
    this.problem.textContent = words || "";
  }

  async ask() {
    const data = new FormData(this.form);
    const prompts = String(data.get("prompt")).split(SEPARATOR).map((text) => text.trim()).filter(Boolean);
    data.delete("prompt");
    for (const prompt of prompts) data.append("prompt", prompt);
    for (const field of this.form.elements) field.removeAttribute("aria-invalid");
    this.asking = true;
    byId("probe-ask").disabled = true;
    try {
      const reply = await fetch(this.form.action, { method: "POST", body: data, credentials: "same-origin", headers: { Accept: "application/json" } });
      const body = await reply.json().catch(() => ({}));
      if (reply.status === 201) {
        this.say("");
        this.choose(body.id, false);
      } else {
        this.fault(body, reply.status);
      }
    } catch (error) {
      this.say(`It could not be asked: ${error.message}.`);
    } finally {
      this.asking = false;
      await this.draw();
    }
  }

  fault(body, status) {
    const words = [body.message, body.cure].filter(Boolean).map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`).join(" ");
    const name = { prompts: "prompt", artifact: "checkpoint" }[body.field] || body.field;
    const field = name && this.form.elements[name];
    this.say(words ? `${field && name !== "prompt" ? `${field.closest(".field")?.querySelector(".label")?.textContent || name}: ` : ""}${words}` : `The server answered ${status}.`);
    if (!field) return;
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }

  choose(id, draw = true) {
    this.chosen = id;
    setParams({ probe: id });
    if (draw) {
      this.history();
      this.show(id).catch((error) => this.say(`It could not be fetched: ${error.message}.`));
    }
  }

  history() {
    const box = byId("probe-history");
    if (!this.probes.length) return;
    const focused = document.activeElement?.dataset?.probe;
    box.replaceChildren(...this.probes.map((probe) => el("li", {}, el("button", { type: "button", "data-probe": probe.id, "aria-current": probe.id === this.chosen ? "true" : null },
      el("span", { class: "asked" }, visible(probe.prompts[0] || "")), el("span", { class: "note" }, `${WORDS[probe.state]}, ${probe.checkpoint ? visible(probe.checkpoint) : "base alone"}, ${visible(probe.by)}, ${ago(new Date(probe.created))}`)))));
    if (focused) box.querySelector(`[data-probe="${CSS.escape(focused)}"]`)?.focus();
  }

  async show(id) {
    const probe = await this.get(`probes/${encodeURIComponent(id)}.json`);
    if (id !== this.chosen) return;
    this.shown = probe;
    const select = el("select", { class: "input compact", id: "probe-shade" }, SHADES.map(([name, words]) => el("option", { value: name, selected: name === this.shade }, words)));
    select.addEventListener("change", () => {
      this.shade = select.value;
      for (const redraw of this.views) redraw();
    });
    this.views = [];
    const { sampling } = probe;
    const how = `temperature ${sampling.temperature}, top-p ${sampling.top_p}, at most ${sampling.max_new_tokens} tokens, seed ${sampling.seed}${probe.seconds ? `, took ${duration(probe.seconds)}` : ""}`;
    const head = el("div", { class: "probe-head" }, el("span", { class: "chip", "data-state": { done: "succeeded", running: "running", failed: "failed", cancelled: "cancelled", stopping: "stopping" }[probe.state] || "queued" }, probe.state), el("span", { class: "note" }, how),
      el("span", { class: "end" }, probe.state === "done" ? [el("label", { class: "note", for: "probe-shade" }, "Shade by"), select] : null, probe.active ? this.cancelButton(probe) : null));
    this.answer.replaceChildren(head, ...this.body(probe));
    for (const redraw of this.views) redraw();
  }

  body(probe) {
    if (probe.state === "done" && probe.result) return probe.result.answers.map((item) => this.item(item));
    const prompts = probe.prompts.map((prompt) => el("div", { class: "text-box" }, visibleNodes(prompt)));
    if (probe.active) return [el("p", {}, `${WORDS[probe.state][0].toUpperCase()}${WORDS[probe.state].slice(1)}. A small model takes half a minute, most of it to load.`), el("div", { class: "waiting-bar", "aria-hidden": "true" }), ...prompts];
    const { problem } = probe;
    return [el("p", { class: problem ? "message error" : "none" }, problem ? [problem.message, problem.cure].filter(Boolean).map((text) => `${visible(text)[0].toUpperCase()}${visible(text).slice(1)}.`).join(" ") : "Cancelled before it answered."), ...prompts];
  }

  cancelButton(probe) {
    const button = el("button", { class: "button small", type: "button", disabled: probe.state === "stopping" }, "Cancel");
    button.addEventListener("click", async () => {
      button.disabled = true;
      const data = new FormData();
      data.set("csrfmiddlewaretoken", this.form.elements.csrfmiddlewaretoken.value);
      const reply = await fetch(`${this.base}probes/${probe.id}/cancel/`, { method: "POST", body: data, credentials: "same-origin" });
      if (!reply.ok) this.say((await reply.json().catch(() => ({}))).message || `The server answered ${reply.status}.`);
      this.draw();
    });
    return button;
  }

  item(item) {
    const same = item.base && item.trained && item.base.completion === item.trained.completion;
    return el("article", { class: "probe-item" }, el("div", { class: "text-box", tabindex: "0", role: "group", "aria-label": "The prompt" }, visibleNodes(item.prompt)), same ? el("p", { class: "note" }, "Both answer alike, word for word.") : null,
      el("div", { class: "probe-pair" }, SIDES.filter(([side]) => item[side]).map(([side, words]) => this.side(item[side], side, words))));
  }

  side(answer, side, words) {
    const view = new TokenView(`Answer of the ${words.toLowerCase()}, token by token`);
    const other = side === "base" ? "trained" : "base";
    const tokens = { ...answer.tokens, logprobs: answer.tokens[`${side}_logprobs`] ?? answer.tokens.logprobs, trainer_logprobs: answer.tokens[`${other}_logprobs`] };
    const draw = () => view.show(tokens, answer.completion, this.shade, { names: { engine: words.toLowerCase(), trainer: side === "base" ? "trained" : "base model" } });
    this.views.push(draw);
    const given = (tokens.logprobs || []).filter((value) => typeof value === "number");
    const sum = given.reduce((total, value) => total + value, 0);
    const length = (tokens.ids || tokens.text || []).length;
    const facts = [`${length} ${length === 1 ? "token" : "tokens"}`, answer.finish_reason === "length" ? "cut at the limit" : null, given.length ? `log-prob ${fixed(sum, 1)}` : null].filter(Boolean).join(", ");
    return el("section", { class: "probe-side" }, el("div", { class: "detail-bar" }, el("h4", {}, words), el("span", { class: "note" }, facts)), view.node);
  }
}
