// Any field against any other, a point a run, coloured by run or by a third field.
import { inert, short } from "../format.js";
import { byId, el, setAttribute } from "../run/dom.js";
import { CONFIG, color, plotly, themed } from "../run/plot.js";
import { field, indexOf, scaleOf, shownRuns, state, token, valueOf } from "./state.js";

const SYMBOLS = ["circle", "diamond", "square", "triangle-up"];

function axisOf(key) {
  const known = field(key);
  const time = known.kind === "time";
  const scale = scaleOf(key);
  const title = known.unit && known.unit !== "share" ? `${known.title} (${known.unit})` : known.kind === "duration" ? `${known.title} (minutes)` : known.title;
  const read = (run) => {
    const value = valueOf(run, key);
    if (value === null) return null;
    if (time) return new Date(value * 1000);
    if (known.kind === "duration") return value / 60;
    return scale.numeric ? value : inert(typeof value === "boolean" ? (value ? "yes" : "no") : value);
  };
  // From the smallest to the largest of all runs, so that hiding one moves no axis.
  const pad = scale.numeric ? (scale.high - scale.low) * 0.07 : 0;
  const unit = known.kind === "duration" ? 60 : 1;
  const range = scale.numeric && !time ? { range: [(scale.low - pad) / unit, (scale.high + pad) / unit] } : {};
  return { read, layout: { automargin: true, zeroline: false, exponentformat: "e", ...range, title: { text: inert(title), standoff: 6 }, ...(scale.numeric || time ? {} : { type: "category" }) }, title };
}

function traceOf(runs, x, y, extra) {
  return {
    type: "scatter", mode: state.names ? "markers+text" : "markers", x: runs.map(x.read), y: runs.map(y.read), text: runs.map((run) => inert(run.name)), textposition: "top center", textfont: { color: color("muted"), size: 11 },
    hovertemplate: "%{text}: %{x}, %{y:.4g}<extra></extra>", cliponaxis: false, ...extra, marker: { size: 12, line: { width: 1.5, color: color("surface") }, ...extra.marker },
  };
}

function traces(runs, x, y) {
  const plain = (run) => ({ color: color(token(indexOf(run.id))), symbol: SYMBOLS[Math.floor(indexOf(run.id) / 8) % 4] });
  if (!state.sc) return [traceOf(runs, x, y, { marker: { color: runs.map((run) => plain(run).color), symbol: runs.map((run) => plain(run).symbol) }, showlegend: false })];
  const scale = scaleOf(state.sc);
  if (scale.numeric) {
    const shades = [[0, color("run-0")], [0.5, color("run-2")], [1, color("run-1")]];
    return [traceOf(runs, x, y, { marker: { color: runs.map((run) => valueOf(run, state.sc)), colorscale: shades, showscale: false, cmin: scale.low, cmax: scale.high }, showlegend: false })];
  }
  return [...scale.words, null].flatMap((word, index) => {
    const mine = runs.filter((run) => (word === null ? valueOf(run, state.sc) === null : scale.place(valueOf(run, state.sc) ?? "\0") === scale.place(word) && valueOf(run, state.sc) !== null));
    return mine.length ? [traceOf(mine, x, y, { name: inert(word ?? "none"), marker: { color: color(token(index)), symbol: SYMBOLS[Math.floor(index / 8) % 4] } })] : [];
  });
}

// The bar of a colour that stands for a number. Plotly's own writes a style attribute, which the page does not allow.
function drawScale() {
  const bar = byId("scatter-scale");
  const scale = state.sc ? scaleOf(state.sc) : null;
  bar.hidden = !scale?.numeric;
  if (scale?.numeric) bar.replaceChildren(el("span", {}, field(state.sc).title), el("span", {}, short(scale.low)), el("i", { class: "scale-bar", "aria-hidden": "true" }), el("span", {}, short(scale.high)));
}

export function drawScatter(box) {
  drawScale();
  const [x, y] = [axisOf(state.sx), axisOf(state.sy)];
  const runs = shownRuns();
  const there = runs.filter((run) => x.read(run) !== null && y.read(run) !== null);
  box.dataset.empty = `No run that is shown has both ${x.title} and ${y.title}.`;
  box.classList.toggle("bare", there.length === 0);
  const layout = themed({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 16, t: 22, b: 8, pad: 4 }, hovermode: "closest", dragmode: "zoom", xaxis: x.layout, yaxis: y.layout,
    showlegend: Boolean(state.sc) && !scaleOf(state.sc).numeric, legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom" }, uirevision: `${state.sx}-${state.sy}`,
  });
  const left = runs.length - there.length;
  setAttribute(box, "aria-label", `Scatter of ${y.title} over ${x.title}: ${there.slice(0, 8).map((run) => `${run.name} ${short(valueOf(run, state.sy))}`).join("; ")}${left ? `; ${left} without a value` : ""}`);
  plotly().then((library) => library.react(box, traces(there, x, y), layout, CONFIG)).catch((error) => console.warn("The scatter could not be drawn:", error.message));
}
