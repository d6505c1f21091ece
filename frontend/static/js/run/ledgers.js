// What became of every sample: the ledger says whether it closes. And the held-out evaluations.
import { count, fixed, seconds } from "../format.js";
import { byId, el } from "./dom.js";
import { swatch } from "./flow.js";

export function verdict(node, holds, words) {
  node.replaceChildren(el("span", { class: `verdict ${holds ? "holds" : "broken"}` }, `${holds ? "✓" : "✗"} ${words}`));
}

// Widths are set through the style object: a style attribute would need an unsafe policy.
export function barOf(parts, total, label) {
  const bar = el("div", { class: "bar", role: "img", "aria-label": label });
  for (const [className, value, title] of parts) {
    const piece = el("span", { class: className, title });
    piece.style.flexBasis = `${(100 * value) / total}%`;
    bar.append(piece);
  }
  return bar;
}

export function drawEvaluations(store) {
  if (!store.evaluations.length) return;
  const number = (words) => el("td", { class: "number" }, words);
  const rows = store.evaluations.slice(-8).reverse().map((item) => el("tr", {}, number(count(item.step)), number(`v${item.version}`),
    number(`${fixed(item.mean, 3)} ± ${fixed(item.stderr, 3)}`), number(count(item.n)), number(seconds(item.seconds))));
  const heads = ["Step", "Version", "Mean ± standard error", "Prompts", "Took"].map((name) => el("th", { scope: "col", class: "number" }, name));
  byId("evaluations").replaceChildren(el("div", { class: "table-wrap" }, el("table", { class: "time-table" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows))));
}

export function drawSamplesLedger(store) {
  const samples = store.state?.samples;
  if (!samples || samples.dispatched === undefined) return;
  const dropped = Object.values(samples.dropped || {}).reduce((sum, value) => sum + value, 0);
  const terms = [["trained", samples.trained], ["buffered", samples.buffered], ["in_flight", samples.in_flight], ["dropped", dropped], ["lost", samples.lost]];
  const total = terms.reduce((sum, [, value]) => sum + value, 0);
  const term = (name, value) => el("div", { class: "term" }, el("strong", {}, count(value)), el("span", {}, name === "dispatched" ? null : swatch(`ledger-${name}`), name.replace("_", " ")));
  const equation = el("div", { class: "equation" }, term("dispatched", samples.dispatched), el("span", { class: "sign" }, "="),
    terms.flatMap(([name, value], index) => [index ? el("span", { class: "sign" }, "+") : null, term(name, value)]));
  const parts = terms.filter(([, value]) => value > 0).map(([name, value]) => [`ledger-${name}`, value, `${name.replace("_", " ")}: ${count(value)}`]);
  const bar = barOf(parts, total || 1, terms.map(([name, value]) => `${name.replace("_", " ")} ${count(value)}`).join(", "));
  bar.classList.add("sample-bar");
  const reasons = Object.entries(samples.dropped || {}).filter(([, value]) => value > 0);
  const why = reasons.length
    ? el("ul", { class: "reasons" }, reasons.map(([reason, value]) => el("li", {}, `dropped, ${reason.replaceAll("_", " ")}: `, el("strong", {}, count(value)))))
    : el("p", { class: "note" }, samples.lost ? "" : "Nothing was dropped, nothing was lost.");
  const effects = Object.entries(samples.effects || {}).filter(([, value]) => value > 0);
  const also = effects.length
    ? el("p", { class: "note" }, "On the way: ", effects.map(([name, value]) => `${name.replaceAll("_", " ")} ${count(value)}`).join(" · "))
    : null;
  const note = el("p", { class: "note" }, "One completion slot is one sample, counted once however often it is sent again.");
  byId("sample-ledger").replaceChildren(...[equation, bar, why, also, note].filter(Boolean));
  const holds = total === samples.dispatched;
  verdict(byId("sample-check"), holds, holds ? "closes" : `${count(Math.abs(samples.dispatched - total))} unaccounted for`);
}
