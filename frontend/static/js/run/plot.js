// What every Plotly chart shares: the library fetched when the first chart comes into view, the theme, smoothing, and where a point lies on x.
import { inPast } from "./past.js";
import { byId } from "./dom.js";

export const CONFIG = { displaylogo: false, displayModeBar: "hover", responsive: true, scrollZoom: false, doubleClick: "reset",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "toImage"] };
export const CUMULATIVE = { samples: "samples/trained", tokens: "samples/tokens" };

const AGAIN_MS = 2000;
let fetched = null;

// Fetched until it comes: a server that is starting again, or a link that is down, must not leave a page without charts.
function fetchInto(resolve) {
  const script = document.createElement("script");
  script.src = byId("run-page").dataset.plotly;
  script.addEventListener("load", () => resolve(window.Plotly));
  script.addEventListener("error", () => {
    script.remove();
    console.warn(`The chart library could not be fetched: once more in ${AGAIN_MS / 1000} s.`);
    setTimeout(fetchInto, AGAIN_MS, resolve);
  });
  document.head.append(script);
}

// The chart library, once. Never fails: it comes, or is asked for again.
export function plotly() {
  fetched ||= window.Plotly ? Promise.resolve(window.Plotly) : new Promise(fetchInto);
  return fetched;
}

// light-dark() in a custom property is resolved only in a real colour: a probe element reads it.
const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);

export function color(token) {
  probe.style.color = `var(--${token})`;
  return getComputedStyle(probe).color;
}

export function soft(rgb, alpha) {
  const parts = rgb.match(/[\d.]+/g);
  return parts ? `rgba(${parts.slice(0, 3).join(",")},${alpha})` : rgb;
}

export function themed(layout) {
  const [text, muted, line, surface] = ["text", "muted", "line", "surface"].map(color);
  const next = { ...layout, font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: text } };
  for (const name of ["xaxis", "xaxis2", "yaxis", "yaxis2"]) {
    if (!layout[name]) continue;
    next[name] = { ...layout[name], gridcolor: line, linecolor: line, tickfont: { color: muted, size: 11 }, title: { ...layout[name].title, font: { size: 11, color: muted } } };
  }
  next.legend = { ...layout.legend, font: { size: 11, color: muted } };
  next.hoverlabel = { bgcolor: surface, bordercolor: line, font: { color: text, size: 12 } };
  next.modebar = { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: text };
  return next;
}

function runningMean(values, width) {
  const kept = [];
  let sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    kept.push(value);
    sum += value;
    if (kept.length > width) sum -= kept.shift();
    return sum / kept.length;
  });
}

// Exponential moving average, its start corrected so that the first points are not drawn towards 0.
function exponential(values, weight) {
  let last = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    last = last * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return last / share;
  });
}

export function smoothed(values, { kind, amount }) {
  if (kind === "mean") return runningMean(values, amount);
  return kind === "ema" ? exponential(values, amount) : values;
}

// Gauges come every second and carry the last finished step: those of one step are spread over it, in their order.
function spread(steps) {
  const placed = new Array(steps.length);
  for (let first = 0; first < steps.length; ) {
    let end = first + 1;
    while (end < steps.length && steps[end] === steps[first]) end += 1;
    for (let index = first; index < end; index += 1) placed[index] = steps[first] + (index - first) / (end - first);
    first = end;
  }
  return placed;
}

function between(list, at) {
  let low = 0;
  let high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] <= at) low = middle;
    else high = middle;
  }
  return [low, high];
}

function interpolate(from, to, at) {
  if (!from.length || at < from[0]) return null;
  if (at >= from[from.length - 1]) return to[to.length - 1];
  const [low, high] = between(from, at);
  const width = from[high] - from[low];
  return width > 0 ? to[low] + ((at - from[low]) / width) * (to[high] - to[low]) : to[high];
}

// The cumulative series of the current history: how many samples or tokens were trained at a moment.
function counted(store, axis) {
  const columns = store.series.get(CUMULATIVE[axis]);
  if (!columns) return null;
  const kept = columns.t.map((_, index) => index).filter((index) => columns.value[index] !== null && !columns.faint[index]);
  return { t: kept.map((index) => columns.t[index]), value: kept.map((index) => columns.value[index]) };
}
export const hasAxis = (store, axis) => !CUMULATIVE[axis] || Boolean(store.series.get(CUMULATIVE[axis])?.t.length);

export function placesOf(store, axis, columns) {
  if (axis === "step") return spread(columns.step);
  if (axis === "time") {
    const start = store.startOf() ?? columns.t[0];
    return columns.t.map((t) => (t - start) / 60);
  }
  const count = counted(store, axis);
  return count ? columns.t.map((t) => interpolate(count.t, count.value, t)) : columns.t.map(() => null);
}

// A stretch of an axis as the server is asked for it: by step, or by Unix seconds.
export function asked(store, axis, [low, high]) {
  if (axis === "step") return { x: "step", from: Math.floor(low) - 1, to: Math.ceil(high) + 1 };
  if (axis === "time") {
    const start = store.startOf() ?? 0;
    return { x: "time", from: start + low * 60 - 1, to: start + high * 60 + 1 };
  }
  const count = counted(store, axis);
  if (!count?.t.length) return null;
  return { x: "time", from: (interpolate(count.value, count.t, low) ?? count.t[0]) - 1, to: (interpolate(count.value, count.t, high) ?? count.t[count.t.length - 1]) + 1 };
}

// Where a step lies on an axis: its crosshair.
export function placeOfStep(store, axis, step) {
  if (axis === "step") return step;
  const columns = store.series.get("reward/mean") || store.series.get(CUMULATIVE.samples);
  if (!columns) return null;
  const index = columns.step.findIndex((value, at) => value >= step && !columns.faint[at]);
  return index < 0 ? null : placesOf(store, axis, columns)[index];
}

// The second that time travel shows, on an axis.
function placeOfTime(store, axis) {
  if (!inPast(store)) return null;
  if (axis === "step") return store.state?.step ?? null;
  if (axis === "time") return (store.until - (store.startOf() ?? store.until)) / 60;
  const count = counted(store, axis);
  return count ? interpolate(count.t, count.value, store.until) : null;
}

export function crosshair(store, axis, step) {
  const line = (at, token) => ({ type: "line", x0: at, x1: at, y0: 0, y1: 1, yref: "paper", line: { color: color(token), width: 1.4, dash: "dot" } });
  const places = [[step === null ? null : placeOfStep(store, axis, step), "accent"], [placeOfTime(store, axis), "violet"]];
  return places.filter(([at]) => at !== null).map(([at, token]) => line(at, token));
}

// The range of an x-axis: what is zoomed; in the past as wide as the present, so that nothing jumps while time is moved.
export function rangeOf(store, axis, zoom) {
  if (zoom) return { range: [...zoom], autorange: false };
  const columns = inPast(store) ? store.series.get("reward/mean") : null;
  if (!columns?.t.length) return { autorange: true };
  const places = placesOf(store, axis, columns).filter((place) => place !== null);
  return places.length > 1 ? { range: [places[0], places[places.length - 1]], autorange: false } : { autorange: true };
}

// The last value at or before a step, of the current history.
export function valueAt(columns, step) {
  for (let index = columns.step.length - 1; index >= 0; index -= 1) {
    if (!columns.faint[index] && columns.step[index] <= step && columns.value[index] !== null) return columns.value[index];
  }
  return null;
}
