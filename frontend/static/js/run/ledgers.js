// What became of every sample: the ledger says whether it closes. And the held-out evaluations.
import { bytes, count, fixed, percent, seconds } from "../format.js";
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

// Before the first word of a thing, as in the past of a run, nothing of later stands there.
export const noneYet = (id) => byId(id).replaceChildren(el("p", { class: "none" }, "no data yet"));

export function drawEvaluations(store) {
  if (!store.evaluations.length) return noneYet("evaluations");
  const number = (words) => el("td", { class: "number" }, words);
  const rows = store.evaluations.slice(-8).reverse().map((item) => el("tr", {}, number(count(item.step)), number(`v${item.version}`),
    number(`${fixed(item.mean, 3)} ± ${fixed(item.stderr, 3)}`), number(count(item.n)), number(seconds(item.seconds))));
  const heads = ["Step", "Version", "Mean ± standard error", "Prompts", "Took"].map((name) => el("th", { scope: "col", class: "number" }, name));
  return byId("evaluations").replaceChildren(el("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": "Held-out evaluations" }, el("table", { class: "time-table" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows))));
}

// What was dropped against what was trained: a filter that takes the long or the hard ones shows here.
function toldTable(told) {
  const rows = Object.entries(told || {}).filter(([, row]) => row?.n > 0).sort(([a, x], [b, y]) => Number(b === "trained") - Number(a === "trained") || y.n - x.n);
  if (!rows.length) return null;
  const trained = told.trained;
  const beside = (value, base) => (typeof value === "number" && typeof base === "number" && base > 0 && Math.abs(value / base - 1) >= 0.05 ? `${value > base ? "+" : "−"}${percent(Math.abs(value / base - 1))}` : "");
  const number = (words, part) => el("td", { class: "number" }, words, el("span", { class: "part" }, part || ""));
  const body = rows.map(([outcome, row]) => {
    const mine = outcome === "trained";
    return el("tr", {}, el("th", { scope: "row" }, swatch(mine ? "ledger-trained" : "ledger-dropped"), mine ? "trained" : `dropped, ${outcome.replaceAll("_", " ")}`), number(count(row.n)),
      number(fixed(row.tokens_mean, 1), mine ? "" : beside(row.tokens_mean, trained?.tokens_mean)), number(fixed(row.reward_mean, 2)), number(fixed(row.difficulty_mean, 2), mine ? "" : beside(row.difficulty_mean, trained?.difficulty_mean)));
  });
  const heads = ["Outcome", "Samples", "Mean tokens", "Mean reward", "Difficulty"].map((name, index) => el("th", { scope: "col", class: index ? "number" : null, title: name === "Difficulty" ? "1 − mean reward of the sample's group" : null }, name));
  return el("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": "Trained and dropped samples compared" }, el("table", { class: "time-table" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, body)));
}

// The newest publishes as stacked bars: export, transfer, apply, and the pause they caused.
const PHASES = [["export_s", "export", "phase-export"], ["transfer_s", "transfer", "phase-transfer"], ["apply_s", "apply", "phase-apply"]];
const SYNCS_SHOWN = 14;
export function drawSyncs(syncs) {
  if (!syncs.length) return noneYet("syncs");
  const shown = [...syncs].sort((a, b) => b.t - a.t).slice(0, SYNCS_SHOWN);
  const pauseOf = (sync) => Math.max(0, ...Object.values(sync.pause_s || {}));
  const longest = Math.max(1e-9, ...shown.map((sync) => Math.max(sync.latency_s || 0, PHASES.reduce((sum, [key]) => sum + (sync.phases?.[key] || 0), 0) + pauseOf(sync))));
  const rows = shown.map((sync) => {
    const parts = PHASES.map(([key, name, className]) => [className, sync.phases?.[key] || 0, `${name}: ${seconds(sync.phases?.[key])}`]).filter(([, value]) => value > 0);
    if (pauseOf(sync) > 0) parts.push(["phase-pause", pauseOf(sync), `longest pause of decoding: ${seconds(pauseOf(sync))}`]);
    const bar = barOf(parts, longest, `Version ${sync.version}: ${parts.map(([, , words]) => words).join(", ") || "no phases told"}`);
    const how = [sync.payload, sync.transport && `over ${sync.transport.replaceAll("_", " ")}`].filter(Boolean).join(" ");
    const { merge_survived_share: survived, changed_share: changed } = sync.note || {};
    // A merge into bfloat16 rounds small updates away: the sampler then lags behind without a word.
    const kept = typeof survived === "number" ? [" · ", el("span", { class: survived < 0.5 ? "few" : null, title: "Share of the update that survived the merge" }, `merge kept ${percent(survived)}`)] : [];
    const more = [how, sync.bytes ? bytes(sync.bytes) : "", typeof changed === "number" ? `${percent(changed)} changed` : ""].filter(Boolean);
    return el("li", {}, el("strong", {}, `v${sync.version}`), bar, el("span", { class: "note" }, seconds(sync.latency_s), kept, more.map((word) => ` · ${word}`)));
  });
  const key = [...PHASES.map(([, name, className]) => [name, className]), ["pause of decoding", "phase-pause"]].map(([name, className]) => el("li", {}, swatch(className), name));
  return byId("syncs").replaceChildren(el("ul", { class: "lanes-legend" }, key), el("ol", { class: "syncs" }, rows));
}

export function drawSamplesLedger(store) {
  const samples = store.state?.samples;
  if (!samples || samples.dispatched === undefined) {
    byId("sample-check").replaceChildren();
    return noneYet("sample-ledger");
  }
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
  const told = toldTable(samples.told);
  const note = el("p", { class: "note" }, "One completion slot is one sample, counted once however often it is sent again.");
  byId("sample-ledger").replaceChildren(...[equation, bar, why, told, also, note].filter(Boolean));
  const holds = total === samples.dispatched;
  return verdict(byId("sample-check"), holds, holds ? "closes" : `${count(Math.abs(samples.dispatched - total))} unaccounted for`);
}
