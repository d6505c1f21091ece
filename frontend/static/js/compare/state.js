// What the comparison shows beyond axis, smoothing, scale and zoom (run/view.js): series, groups, hidden runs, brushes, fields of the lower charts.
import { byId } from "../run/dom.js";
import { param, setParams } from "../run/url.js";
import { view } from "../run/view.js";

export const page = JSON.parse(byId("page-data").textContent);
export const ids = page.runs.map((run) => run.id);
const FIRST = ["reward/mean", "eval/reward_mean", "lag/mean", "loss/entropy", "loss/kl_mismatch", "throughput/samples_per_s"];
export const MOST_SERIES = 16;
export const MOST_AXES = 10;

const list = (text) => (text || "").split(",").filter(Boolean);
// Brushes as `key*low*high`, separated by spaces; of a field of words low and high are places from 0 to 1.
function readBrush(text) {
  const found = new Map();
  for (const entry of (text || "").split(" ").slice(0, MOST_AXES)) {
    const [key, low, high] = entry.split("*");
    if (key && Number.isFinite(Number(low)) && Number.isFinite(Number(high)) && high !== undefined) found.set(key, [Number(low), Number(high)]);
  }
  return found;
}
const tidy = (value) => Number(value.toPrecision(6));
const writeBrush = (brush) => [...brush].map(([key, [low, high]]) => `${key}*${tidy(low)}*${tidy(high)}`).join(" ");

const fieldKeys = new Set(page.fields.map((field) => field.key));
export const field = (key) => page.fields.find((item) => item.key === key) || { key, title: key, kind: "number", unit: "" };
const has = (key) => fieldKeys.has(key);

function defaults() {
  const results = ["lag/mean", "reward", "heldout"].filter(has);
  const settings = page.varied.filter(has).slice(0, 5);
  const numbers = settings.filter((key) => field(key).kind === "number");
  return {
    charts: FIRST.filter((name) => page.series.includes(name)).slice(0, 6), par: [...(settings.length ? settings : ["preset"]), ...results].filter(has),
    sx: numbers[0] || settings[0] || (has("duration") ? "duration" : "seed"), sy: has("heldout") ? "heldout" : "reward",
  };
}
const first = defaults();
const known = (keys) => keys.filter((key) => has(key));

export const state = {
  charts: param("charts") === null ? first.charts : list(param("charts")).slice(0, MOST_SERIES),
  by: param("by") || "", band: ["ci", "range"].includes(param("band")) ? param("band") : "sd", each: param("each") === "1",
  hide: new Set(list(param("hide")).filter((id) => ids.includes(id))), brush: readBrush(param("brush")),
  par: param("par") === null ? first.par : known(list(param("par"))).slice(0, MOST_AXES),
  sx: has(param("sx")) ? param("sx") : first.sx, sy: has(param("sy")) ? param("sy") : first.sy, sc: has(param("sc")) ? param("sc") : "", names: param("names") === "1",
  cols: param("cols") || "",
};

const same = (a, b) => a.join() === b.join();
// keep({by: "preset"}): in the address at once, and told to every part by "headrace:compare" with the names of what changed.
export function keep(patch) {
  Object.assign(state, patch);
  setParams({
    charts: same(state.charts, first.charts) ? null : state.charts.join(",") || "-", by: state.by, band: state.by && state.band !== "sd" ? state.band : null, each: state.by && state.each ? "1" : null,
    hide: [...state.hide].join(","), brush: writeBrush(state.brush), par: same(state.par, first.par) ? null : state.par.join(","),
    sx: state.sx === first.sx ? null : state.sx, sy: state.sy === first.sy ? null : state.sy, sc: state.sc, names: state.names ? "1" : null, cols: state.cols,
  });
  follow();
  document.dispatchEvent(new CustomEvent("headrace:compare", { detail: { changed: new Set(Object.keys(patch)) } }));
}

// Links and forms of the page that carry the view.
export function follow() {
  const query = new URL(location).searchParams.toString();
  for (const node of document.querySelectorAll("[data-here]")) node.value = query;
  const series = new URLSearchParams({ runs: ids.join(","), names: state.charts.join(","), x: view.axis });
  for (const node of document.querySelectorAll("[data-csv]")) node.href = node.dataset.csv === "series" ? `/compare/series.csv?${series}` : `/compare/results.csv?${query}`;
}

const DASHES = ["solid", "dash", "dot", "dashdot"];
export const token = (index) => `run-${index % 8}`;
export const dash = (index) => DASHES[Math.floor(index / 8) % 4];
export const indexOf = (id) => ids.indexOf(id);

const text = (value) => (typeof value === "boolean" ? (value ? "yes" : "no") : String(value));
export const valueOf = (run, key) => {
  const value = run.values[key];
  return value === undefined || value === "" ? null : value;
};
// How a field is laid out over the runs: numbers by size, everything else by name.
export function scaleOf(key) {
  const values = page.runs.map((run) => valueOf(run, key)).filter((value) => value !== null);
  const numeric = values.length > 0 && values.every((value) => typeof value === "number");
  if (numeric) {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    return { numeric, low, high, place: (value) => (value - low) / (high - low) };
  }
  const words = [...new Set(values.map(text))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return { numeric, words, place: (value) => (words.length === 1 ? 0.5 : words.indexOf(text(value)) / (words.length - 1)) };
}

export function inBrush(run) {
  for (const [key, [low, high]] of state.brush) {
    if (!state.par.includes(key)) continue;
    const value = valueOf(run, key);
    if (value === null) return false;
    const scale = scaleOf(key);
    const at = scale.numeric ? value : scale.place(value);
    if (at < low || at > high) return false;
  }
  return true;
}
export const isShown = (run) => !state.hide.has(run.id) && inBrush(run);
export const shownRuns = () => page.runs.filter(isShown);
