// How the charts are looked at: axis, smoothing, scale, zoom, the chosen step, pins. All of it is in the address, so a link shows the same.
import { param, setParams } from "./url.js";

export const AXES = { step: "steps", samples: "samples", tokens: "tokens", time: "time" };
export const TITLES = { step: "step", samples: "samples trained", tokens: "tokens trained", time: "minutes since start" };
const PINS = "headrace-pins";
const MOST_PINS = 12;

const number = (text) => (text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);

function readSmooth(text) {
  const [kind, amount] = (text || "").split(":");
  if (kind === "ema") return { kind, amount: Math.min(0.99, Math.max(0, number(amount) ?? 0.6)) };
  if (kind === "mean") return { kind, amount: Math.min(200, Math.max(2, Math.round(number(amount) ?? 10))) };
  return { kind: "none", amount: 0 };
}
const writeSmooth = ({ kind, amount }) => (kind === "none" ? null : `${kind}:${amount}`);

function readRange(text) {
  const [low, high] = (text || "").split("*").map(number);
  return low !== null && low !== undefined && high !== null && high !== undefined && low < high ? [low, high] : null;
}
const tidy = (value) => Number(value.toPrecision(9));
const writeRange = (range) => (range ? `${tidy(range[0])}*${tidy(range[1])}` : null);

// own: what one chart has of its own, as `name!log!ema:0.9!time!0*1`, charts joined by spaces.
function readOwn(text) {
  const own = new Map();
  for (const entry of (text || "").split(" ").slice(0, 40)) {
    const [name, ...words] = entry.split("!");
    if (!name) continue;
    const mine = {};
    for (const word of words) {
      if (word === "log" || word === "linear") mine.log = word === "log";
      else if (AXES[word]) mine.axis = word;
      else if (word.includes("*")) mine.y = readRange(word);
      else if (word) mine.smooth = readSmooth(word);
    }
    own.set(name, mine);
  }
  return own;
}

function writeOwn(own) {
  const entries = [...own].map(([name, mine]) => {
    const words = [mine.log === undefined ? null : mine.log ? "log" : "linear", mine.axis, mine.smooth ? writeSmooth(mine.smooth) || "none" : null, writeRange(mine.y)];
    const kept = words.filter(Boolean);
    return kept.length ? [name, ...kept].join("!") : null;
  });
  return entries.filter(Boolean).join(" ") || null;
}

function storedPins() {
  try {
    return JSON.parse(localStorage.getItem(PINS) || "[]").filter((name) => typeof name === "string").slice(0, MOST_PINS);
  } catch (error) {
    console.info("Pins of earlier visits are not known:", error.message);
    return [];
  }
}

function read() {
  return {
    axis: AXES[param("x")] ? param("x") : "step", smooth: readSmooth(param("smooth")), log: param("log") === "1", zoom: readRange(param("zoom")), step: number(param("step")),
    seeds: param("seeds") === "1", own: readOwn(param("own")), pins: param("pins") === null ? storedPins() : param("pins").split(" ").filter(Boolean).slice(0, MOST_PINS),
  };
}

export const view = read();

// change({axis: "time"}): kept in the address and told to every chart by "headrace:view" with the names of what changed.
export function change(patch) {
  if (patch.axis && patch.axis !== view.axis && patch.zoom === undefined) patch.zoom = null;
  Object.assign(view, patch);
  setParams({
    x: view.axis === "step" ? null : view.axis, smooth: writeSmooth(view.smooth), log: view.log ? "1" : null, zoom: writeRange(view.zoom), step: view.step,
    seeds: view.seeds ? "1" : null, own: writeOwn(view.own),
  });
  if (patch.pins) keepPins();
  document.dispatchEvent(new CustomEvent("headrace:view", { detail: { changed: new Set(Object.keys(patch)) } }));
  if ("step" in patch) document.dispatchEvent(new CustomEvent("headrace:step", { detail: { step: view.step } }));
}

function keepPins() {
  setParams({ pins: view.pins.join(" ") });
  try {
    localStorage.setItem(PINS, JSON.stringify(view.pins));
  } catch (error) {
    console.info("Pins hold for this address only:", error.message);
  }
}

export const pinned = (name) => view.pins.includes(name);
export function togglePin(name) {
  change({ pins: pinned(name) ? view.pins.filter((other) => other !== name) : [...view.pins, name].slice(-MOST_PINS) });
}

// What holds for one chart: its own settings over the common ones.
export function settingsOf(name) {
  const mine = view.own.get(name) || {};
  const axis = mine.axis ?? view.axis;
  return { axis, smooth: mine.smooth ?? view.smooth, log: mine.log ?? view.log, y: mine.y ?? null, zoom: axis === view.axis ? view.zoom : null };
}

export function changeOwn(name, patch) {
  const own = new Map(view.own);
  own.set(name, { ...own.get(name), ...patch });
  change({ own });
}

addEventListener("popstate", () => {
  const before = view.step;
  Object.assign(view, read());
  document.dispatchEvent(new CustomEvent("headrace:view", { detail: { changed: new Set(["all"]) } }));
  if (view.step !== before) document.dispatchEvent(new CustomEvent("headrace:step", { detail: { step: view.step } }));
});
