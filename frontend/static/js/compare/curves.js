// The curves: one chart a series, a line a run, or a mean with its band a group.
import { inert, short } from "../format.js";
import { el, setAttribute } from "../run/dom.js";
import { CONFIG, color, plotly, smoothed, soft, themed } from "../run/plot.js";
import { TITLES, change, view } from "../run/view.js";
import { dash, field, ids, indexOf, isShown, page, state, token } from "./state.js";

const CROWDED = 8;
const charts = new Map();
let found = { runs: {}, groups: [], x: "step" };
let box = null;
let turn = 0;

export async function load() {
  const mine = (turn += 1);
  if (!state.charts.length || state.charts[0] === "-") {
    found = { runs: {}, groups: [], x: view.axis };
    draw();
    return false;
  }
  const query = new URLSearchParams({ runs: ids.join(","), names: state.charts.join(","), x: view.axis });
  if (state.by) query.set("by", state.by);
  if (state.by) query.set("band", state.band);
  box.setAttribute("aria-busy", "true");
  const reply = await fetch(`/compare/series.json?${query}`, { credentials: "same-origin" });
  if (reply.status === 401 || reply.redirected) location.reload();
  const body = await reply.json();
  if (!reply.ok) throw new Error(`${body.message}. ${body.cure || ""}`);
  if (mine !== turn) return body.active;
  found = body;
  draw();
  return body.active;
}

export function startCurves(node) {
  box = node;
  document.addEventListener("themechange", draw);
}
export const groupsNow = () => found.groups;

function card(name) {
  const known = field(name === "reward/mean" ? "reward" : name === "eval/reward_mean" ? "heldout" : name);
  const plot = el("div", { class: "plot", role: "group" });
  const node = el("figure", { class: "card compare-chart", "data-series": name }, el("figcaption", { class: "card-head" }, el("h3", {}, known.title), el("code", { class: "note" }, name), el("p", { class: "note" }, known.help || "")), plot);
  return { name, node, plot, unit: known.unit, title: known.title, bound: false };
}

export function draw() {
  const wanted = state.charts.filter((name) => name !== "-");
  for (const [name, chart] of charts) if (!wanted.includes(name)) {
    window.Plotly?.purge(chart.plot);
    charts.delete(name);
  }
  for (const name of wanted) if (!charts.has(name)) charts.set(name, card(name));
  const nodes = wanted.map((name) => charts.get(name).node);
  if (nodes.length !== box.children.length || nodes.some((node, index) => node !== box.children[index])) box.replaceChildren(...nodes);
  if (!nodes.length) box.replaceChildren(el("p", { class: "none" }, "No series is chosen. Add one above."));
  plotly().then(() => {
    for (const chart of charts.values()) drawOne(chart);
    box.setAttribute("aria-busy", "false");
  }).catch((error) => console.warn("The charts could not be drawn:", error.message));
}

function line(x, y, name, index, extra = {}) {
  const shade = color(token(index));
  const few = x.length <= 24;
  return { type: "scatter", mode: few ? "lines+markers" : "lines", x, y: smoothed(y, view.smooth), name: inert(name), line: { color: shade, width: 1.9, dash: dash(index), ...extra.line }, marker: { color: shade, size: 5 }, hovertemplate: "%{y:.4g}", ...extra, ...(extra.line ? { line: { color: shade, width: 1.9, dash: dash(index), ...extra.line } } : {}) };
}

function runTraces(chart, faint) {
  return page.runs.filter(isShown).flatMap((run) => {
    const columns = found.runs[run.id]?.[chart.name];
    if (!columns) return [];
    return [line(columns.x, columns.y, run.name, indexOf(run.id), faint ? { opacity: 0.28, line: { width: 1 }, mode: "lines", hoverinfo: "skip", hovertemplate: null, showlegend: false, runFaint: true } : {})];
  });
}

// Where a run of the group has ended or not begun, the mean is of fewer runs: it is dotted there.
function groupTraces(chart) {
  return found.groups.flatMap((group, index) => {
    const columns = group.series[chart.name];
    const members = group.runs.filter((id) => page.runs.some((run) => run.id === id && isShown(run)));
    if (!columns || !members.length) return [];
    const shade = color(token(index));
    const [mean, low, high] = [columns.mean, columns.low, columns.high].map((values) => smoothed(values, view.smooth));
    const all = Math.max(...columns.n);
    const whole = mean.map((value, at) => (columns.n[at] === all ? value : null));
    const part = mean.map((value, at) => (columns.n[at] < all || columns.n[at - 1] < all || columns.n[at + 1] < all ? value : null));
    const edge = { type: "scatter", mode: "lines", x: columns.x, line: { width: 0 }, hoverinfo: "skip", showlegend: false, band: true };
    const common = { customdata: columns.n.map((n, at) => [n, low[at], high[at]]), hovertemplate: "%{y:.4g} (%{customdata[1]:.3g} to %{customdata[2]:.3g}, %{customdata[0]} runs)" };
    const traces = all > 1 ? [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: soft(shade, 0.16) }] : [];
    traces.push({ ...line(columns.x, whole, group.label, index, common), y: whole });
    if (part.some((value) => value !== null)) traces.push({ type: "scatter", mode: "lines", x: columns.x, y: part, line: { color: shade, width: 1.6, dash: "dot" }, hoverinfo: "skip", showlegend: false, band: true });
    return traces;
  });
}

function drawOne(chart) {
  const traces = state.by ? [...(state.each ? runTraces(chart, true) : []), ...groupTraces(chart)] : runTraces(chart, false);
  const told = traces.filter((trace) => !trace.band && !trace.runFaint);
  const needs = view.axis === "samples" || view.axis === "tokens" ? ` over ${view.axis}` : "";
  chart.plot.dataset.empty = `No run that is shown has ${chart.name}${needs}.`;
  chart.plot.classList.toggle("bare", traces.length === 0);
  const layout = themed({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 16, t: 6, b: 8, pad: 4 }, showlegend: false, dragmode: "zoom", hovermode: told.length > CROWDED ? "closest" : "x unified", hoverdistance: 40,
    xaxis: { automargin: true, title: { text: TITLES[view.axis], standoff: 6 }, zeroline: false, ...(view.zoom ? { range: view.zoom, autorange: false } : { autorange: true }) },
    yaxis: { automargin: true, title: { text: chart.unit || "", standoff: 8 }, zeroline: false, type: view.log ? "log" : "linear", autorange: true },
    uirevision: `${view.axis}-${view.log}-${view.zoom}`,
  });
  window.Plotly.react(chart.plot, traces, layout, { ...CONFIG, toImageButtonOptions: { format: "png" } });
  if (!chart.bound) {
    chart.bound = true;
    chart.plot.on("plotly_relayout", (event) => {
      if (event["xaxis.autorange"]) change({ zoom: null });
      else if (event["xaxis.range[0]"] !== undefined) change({ zoom: [Number(event["xaxis.range[0]"]), Number(event["xaxis.range[1]"])] });
    });
  }
  const words = told.slice(0, CROWDED).map((trace) => `${trace.name}: ${short(trace.y.findLast((value) => value !== null))}`);
  setAttribute(chart.plot, "aria-label", `${chart.title}. ${words.length ? `Latest: ${words.join("; ")}` : chart.plot.dataset.empty}`);
}
