// A completion token by token: shaded, with a legend, and with each token's numbers on hover, focus and arrow keys. Text nodes only.
import { fixed, percent } from "../format.js";
import { el } from "./dom.js";
import { apart, maskOf, shade } from "./shades.js";
import { visible, visibleNodes } from "./visible.js";

const number = (value) => typeof value === "number" && Number.isFinite(value);
const MASKED = [
  "yes", "no", "yes, ratio under the lower bound", "yes, ratio over the upper bound", "its gradient was cut by the clip", "taken out by a correction",
];
let tip = null;

function tipBox() {
  if (!tip) (document.getElementById("main") || document.body).append((tip = el("div", { class: "token-tip", role: "tooltip", id: "token-tip", hidden: true })));
  return tip;
}

document.addEventListener("keydown", (event) => event.key === "Escape" && tip && (tip.hidden = true));
document.addEventListener("scroll", () => tip && (tip.hidden = true), { capture: true, passive: true });

export class TokenView {
  // label: what the tokens are, for those who do not see them
  constructor(label) {
    this.box = el("div", { class: "tokens completion", role: "group", "aria-label": label });
    this.legend = el("div", { class: "legend" });
    this.node = el("div", { class: "token-view" }, this.box, this.legend);
    this.box.addEventListener("pointerover", (event) => this.point(event.target.closest(".tk")));
    this.box.addEventListener("pointerleave", () => this.point(null));
    this.box.addEventListener("focusin", (event) => this.point(event.target.closest(".tk")));
    this.box.addEventListener("focusout", () => this.point(null));
    this.box.addEventListener("click", (event) => event.target.closest(".tk") && !getSelection().toString() && this.focus(Number(event.target.closest(".tk").dataset.at)));
    this.box.addEventListener("keydown", (event) => this.moved(event));
  }

  // context: {trained, outcome, bounds, first, names}; names are what the two log-probs are called
  show(tokens, text, name, context) {
    Object.assign(this, { tokens, context });
    const ids = tokens.ids || tokens.text || [];
    this.length = Math.max(ids.length, tokens.text?.length || 0);
    const shaded = shade(name, tokens, this.length, context);
    this.box.dataset.kind = shaded.kind;
    if (!this.length) {
      this.box.replaceChildren(...visibleNodes(text));
      if (!text) this.box.replaceChildren(el("span", { class: "none" }, "no text"));
    } else {
      this.box.replaceChildren(...Array.from({ length: this.length }, (_, index) => this.token(index, shaded)));
    }
    this.drawLegend(shaded);
  }

  token(index, shaded) {
    const text = this.tokens.text?.[index];
    const bin = shaded.bins[index];
    const shown = text === undefined || text === null || text === "" ? [el("span", { class: "ws-hidden" }, `id ${this.tokens.ids?.[index] ?? "?"}`)] : visibleNodes(text);
    return el("span", { class: "tk token", "data-at": index, "data-bin": bin, "data-mark": shaded.marks.get(index), tabindex: index === 0 ? "0" : "-1" }, shown);
  }

  drawLegend(shaded) {
    const items = shaded.legend.map((item) => el("li", { class: item.count ? null : "unused" },
      el("span", { class: "tk sw", "data-bin": item.bin, "aria-hidden": "true" }, "ab"), `${item.label}: `, el("b", {}, item.count)));
    if (shaded.without && !shaded.empty && shaded.kind !== "none") items.push(el("li", {}, `without a number: ${shaded.without}`));
    this.legend.dataset.kind = shaded.kind;
    this.legend.replaceChildren(...[items.length ? el("ul", { class: "tokens", "data-kind": shaded.kind }, items) : null, shaded.words ? el("p", { class: "note" }, shaded.words) : null].filter(Boolean));
  }

  moved(event) {
    const at = Number(event.target.closest(".tk")?.dataset.at);
    if (!Number.isInteger(at) || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.length - 1, ArrowDown: at + 10, ArrowUp: at - 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(this.length - 1, to)));
  }

  focus(at) {
    const token = this.box.querySelector(`[data-at="${at}"]`);
    if (!token) return;
    this.box.querySelector('.tk[tabindex="0"]')?.setAttribute("tabindex", "-1");
    token.tabIndex = 0;
    token.focus({ preventScroll: false });
    this.point(token);
  }

  facts(index) {
    const { tokens, context } = this;
    const names = { engine: "engine", trainer: "trainer", ...context.names };
    const chance = (value) => (number(value) ? `${fixed(value, 4)} (${percent(Math.exp(value), 1)})` : value === undefined || value === null ? "not kept" : visible(value));
    const difference = apart(tokens, index);
    const rows = [["token", `${(context.first || 0) + index + 1}, id ${tokens.ids?.[index] ?? "not kept"}`], ["text", JSON.stringify(visible(tokens.text?.[index] ?? ""))]];
    if (tokens.logprobs) rows.push([`log-prob, ${names.engine}`, chance(tokens.logprobs[index])]);
    if (tokens.trainer_logprobs) rows.push([`log-prob, ${names.trainer}`, chance(tokens.trainer_logprobs[index])]);
    if (difference !== null) rows.push([`${names.trainer} − ${names.engine}`, fixed(difference, 4)], ["ratio", fixed(Math.exp(difference), 4)]);
    if (tokens.versions) rows.push(["version", `${tokens.versions[index] ?? "not kept"}${number(context.trained) && number(tokens.versions[index]) ? `, lag ${context.trained - tokens.versions[index]}` : ""}`]);
    if (context.outcome) rows.push(["trained on", MASKED[maskOf(tokens, index, context)]]);
    return rows;
  }

  point(token) {
    const box = tipBox();
    if (!token || token.classList.contains("sw")) {
      box.hidden = true;
      return;
    }
    token.setAttribute("aria-describedby", "token-tip");
    box.replaceChildren(el("dl", {}, this.facts(Number(token.dataset.at)).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    box.hidden = false;
    const place = token.getClientRects()[0] || token.getBoundingClientRect();
    const left = Math.max(8, Math.min(place.left, innerWidth - box.offsetWidth - 8));
    const below = place.bottom + 8 + box.offsetHeight < innerHeight;
    // Set through the object model, which the content security policy allows and an attribute is not.
    box.style.left = `${left}px`;
    box.style.top = `${below ? place.bottom + 8 : Math.max(8, place.top - box.offsetHeight - 8)}px`;
  }
}
