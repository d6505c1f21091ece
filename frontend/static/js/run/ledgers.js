// The two ledgers: where each lane's time went, and what became of every sample. Each shows whether it closes.
import { count, fixed, percent, seconds } from "../format.js";
import { byId, el } from "./dom.js";
import { swatch } from "./flow.js";

const CAUSES = ["generate", "train", "score", "environment", "sync_pause", "evaluation", "checkpoint", "wait_buffer_empty", "wait_buffer_full",
  "wait_depth_bound", "wait_sync", "straggler_tail", "idle", "startup", "down"];
const NAMES = {
  generate: "generate", train: "train", score: "score", environment: "environment", sync_pause: "sync pause", evaluation: "evaluation",
  checkpoint: "checkpoint", wait_buffer_empty: "waits: buffer empty", wait_buffer_full: "waits: buffer full", wait_depth_bound: "waits: dispatch bound",
  wait_sync: "waits: weight swap",
  straggler_tail: "straggler tail", idle: "idle", startup: "start-up", down: "down",
};
const nameOf = (cause) => NAMES[cause] || cause.replaceAll("_", " ");
const colorOf = (cause) => (CAUSES.includes(cause) ? `cause-${cause}` : "cause-other");
const order = (a, b) => (CAUSES.indexOf(a) + 100) % 100 - ((CAUSES.indexOf(b) + 100) % 100);

function verdict(node, holds, words) {
  node.replaceChildren(el("span", { class: `verdict ${holds ? "holds" : "broken"}` }, `${holds ? "✓" : "✗"} ${words}`));
}

// Widths are set through the style object: a style attribute would need an unsafe policy.
function barOf(parts, total, label) {
  const bar = el("div", { class: "bar", role: "img", "aria-label": label });
  for (const [className, value, title] of parts) {
    const piece = el("span", { class: className, title });
    piece.style.flexBasis = `${(100 * value) / total}%`;
    bar.append(piece);
  }
  return bar;
}

export function drawTime(store) {
  const time = store.state?.time;
  const box = byId("time-ledger");
  if (!time || !time.lanes || !Object.keys(time.lanes).length) return;
  const lanes = Object.entries(time.lanes).sort(([a], [b]) => a.localeCompare(b));
  const causes = [...new Set(lanes.flatMap(([, spent]) => Object.keys(spent)))].filter((cause) => lanes.some(([, spent]) => spent[cause] > 0)).sort(order);
  const wall = time.wall_s;
  const drawn = lanes.map(([lane, spent]) => {
    const total = Object.values(spent).reduce((sum, value) => sum + value, 0);
    const said = causes.filter((cause) => spent[cause] > 0);
    const parts = said.map((cause) => [colorOf(cause), spent[cause], `${nameOf(cause)}: ${seconds(spent[cause])}, ${percent(spent[cause] / total, 1)}`]);
    const label = `${lane}: ${said.map((cause) => `${nameOf(cause)} ${percent(spent[cause] / total)}`).join(", ")}`;
    return el("div", { class: "lane" }, el("div", { class: "lane-head" }, el("strong", {}, lane), el("span", { class: "note" }, seconds(total))), barOf(parts, total || 1, label));
  });
  box.replaceChildren(...drawn, timeTable(lanes, causes, wall));
  const worst = Math.max(...lanes.map(([, spent]) => Math.abs(Object.values(spent).reduce((sum, value) => sum + value, 0) - wall)));
  const holds = worst <= Math.max(0.01 * wall, 0.05);
  verdict(byId("time-check"), holds, holds ? `every lane sums to ${seconds(wall)}` : `a lane misses wall time by ${seconds(worst)}`);
}

function timeTable(lanes, causes, wall) {
  const cell = (value) => el("td", { class: "number" }, value ? seconds(value) : "–", el("span", { class: "part" }, value ? percent(value / wall) : ""));
  const rows = causes.map((cause) => el("tr", {}, el("td", {}, swatch(colorOf(cause)), nameOf(cause)), lanes.map(([, spent]) => cell(spent[cause]))));
  const sums = lanes.map(([, spent]) => el("td", { class: "number" }, seconds(Object.values(spent).reduce((sum, value) => sum + value, 0)), el("span", { class: "part" })));
  return el("div", { class: "table-wrap" }, el("table", { class: "time-table" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Cause"), lanes.map(([lane]) => el("th", { scope: "col", class: "number" }, lane)))),
    el("tbody", {}, rows, el("tr", {}, el("td", {}, "sum"), sums))));
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
