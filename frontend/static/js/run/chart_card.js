// One series as a card: its line, what it was before smoothing, extremes of decimated stretches, points that are not finite, older attempts,
// the band over seeds, and its own menu. Used by the Charts tab and for what is pinned to the overview.
import { short } from "../format.js";
import { el, setAttribute, setText } from "./dom.js";
import { inPast } from "./past.js";
import { CONFIG, color, crosshair, placesOf, rangeOf, smoothed, soft, themed, valueAt } from "./plot.js";
import { picked } from "./source.js";
import { AXES, TITLES, change, changeOwn, pinned, settingsOf, togglePin, view } from "./view.js";

const SHADES = { reward: "chart-1", evaluation: "chart-2", loss: "chart-3", staleness: "chart-2", flow: "chart-1", sync: "chart-5", throughput: "chart-4" };
const shadeOf = (group) => SHADES[group] || "chart-6";
const AXIS = { automargin: true, zeroline: false, nticks: 5, ticks: "" };

const option = (value, words, chosen) => el("option", { value, selected: value === chosen }, words);
function picker(label, key, options, chosen) {
  return el("label", { class: "own-field" }, el("span", {}, label), el("select", { class: "input compact", "data-own": key }, options.map(([value, words]) => option(value, words, chosen))));
}

export class ChartCard {
  constructor(series, { store, source, base, bands }) {
    Object.assign(this, { series, store, source, base, bands, stale: true, seen: false, drawn: false });
    this.now = el("span", { class: "end chart-now" });
    this.pin = el("button", { class: "button quiet small pin", type: "button" });
    this.pin.addEventListener("click", () => togglePin(series.name));
    this.menu = el("details", { class: "menu own" }, el("summary", { class: "button quiet small", "aria-label": `Options of ${series.title}` }, "⋯"), (this.box = el("div", { class: "menu-box" })));
    this.menu.addEventListener("toggle", () => this.menu.open && this.fillMenu());
    this.plot = el("div", { class: "plot", role: "group", "aria-label": `${series.title}: no data yet` });
    this.card = el("figure", { class: "card chart compact", "data-series": series.name }, el("figcaption", { class: "card-head" },
      el("h4", { title: series.text || null }, series.title), series.title === series.name ? null : el("code", { class: "chart-name" }, series.name), this.now, this.pin, this.menu), this.plot);
    this.showPin();
  }

  showPin() {
    const on = pinned(this.series.name);
    setText(this.pin, on ? "★" : "☆");
    setAttribute(this.pin, "aria-pressed", String(on));
    setAttribute(this.pin, "aria-label", `Pin ${this.series.title} to the overview`);
    setAttribute(this.pin, "title", on ? "On the overview: take it off" : "Pin to the overview");
  }

  fillMenu() {
    const { name } = this.series;
    const mine = view.own.get(name) || {};
    const kind = mine.smooth ? (mine.smooth.kind === "none" ? "none" : `${mine.smooth.kind}:${mine.smooth.amount}`) : "";
    const file = `${this.base}series.csv?names=${encodeURIComponent(name)}`;
    const png = el("button", { class: "menu-item", type: "button" }, "Save as PNG");
    png.addEventListener("click", () => this.savePicture());
    const reset = el("button", { class: "menu-item", type: "button" }, "Reset zoom");
    reset.addEventListener("click", () => {
      changeOwn(name, { y: null });
      change({ zoom: null });
    });
    this.box.replaceChildren(
      picker("Smoothing", "smooth", [["", "as the others"], ["none", "none"], ["ema:0.6", "EMA 0.6"], ["ema:0.9", "EMA 0.9"], ["ema:0.97", "EMA 0.97"], ["mean:5", "mean of 5"], ["mean:20", "mean of 20"]], kind),
      picker("Scale", "log", [["", "as the others"], ["linear", "linear"], ["log", "logarithmic"]], mine.log === undefined ? "" : mine.log ? "log" : "linear"),
      picker("Horizontal", "axis", [["", "as the others"], ...Object.entries(AXES)], mine.axis || ""),
      reset, png, el("a", { class: "menu-item", href: file, download: true }, "Download CSV"));
    for (const select of this.box.querySelectorAll("[data-own]")) select.addEventListener("change", () => this.own(select.dataset.own, select.value));
  }

  own(key, value) {
    if (key === "smooth") {
      const [kind, amount] = value.split(":");
      changeOwn(this.series.name, { smooth: value ? { kind, amount: Number(amount || 0) } : undefined });
    } else if (key === "log") changeOwn(this.series.name, { log: value ? value === "log" : undefined, y: null });
    else changeOwn(this.series.name, { axis: value || undefined });
  }

  async savePicture() {
    const { width, height } = this.plot.getBoundingClientRect();
    const picture = await this.Plot.toImage({ data: this.plot.data, layout: { ...this.plot.layout, paper_bgcolor: color("surface"), title: { text: this.series.title, font: { size: 14 } }, margin: { l: 50, r: 20, t: 44, b: 44 } } }, { format: "png", width: Math.max(720, width), height: Math.max(420, height), scale: 2 });
    const link = el("a", { href: picture, download: `${this.series.name.replaceAll("/", "-")}.png` });
    document.body.append(link);
    link.click();
    link.remove();
  }

  traces(columns, set, shade) {
    const x = placesOf(this.store, set.axis, columns);
    const base = { type: "scatter", mode: "lines", connectgaps: false, showlegend: false, hoverinfo: "skip" };
    const traces = [];
    const current = columns.faint.map((old) => !old);
    const only = (list) => list.map((value, index) => (current[index] ? value : null));
    const raw = only(columns.value);
    if (columns.decimated) {
      traces.push({ ...base, x, y: only(columns.low), line: { width: 0 } }, { ...base, x, y: only(columns.high), line: { width: 0 }, fill: "tonexty", fillcolor: soft(shade, 0.15) });
    }
    if (columns.faint.some(Boolean)) traces.push({ ...base, x, y: columns.value.map((value, index) => (current[index] ? null : value)), line: { width: 1.2, color: shade }, opacity: 0.35, name: "earlier attempt" });
    const smooth = set.smooth.kind !== "none";
    if (smooth) traces.push({ ...base, x, y: raw, line: { width: 1, color: shade }, opacity: 0.35 });
    const y = smooth ? smoothed(raw, set.smooth) : raw;
    const single = raw.filter((value) => value !== null).length === 1;
    traces.push({ ...base, x, y, customdata: columns.step, mode: single ? "markers" : "lines", line: { width: 1.9, color: shade }, marker: { color: shade, size: 6 }, hoverinfo: "all", hovertemplate: "%{y:.5g}<extra></extra>", name: this.series.title });
    const bad = columns.bad.flatMap((count, index) => (count > 0 ? [index] : []));
    if (bad.length) {
      traces.push({ ...base, mode: "markers", yaxis: "y2", x: bad.map((index) => x[index]), customdata: bad.map((index) => columns.step[index]), y: bad.map(() => 0.03), marker: { symbol: "x", size: 7, color: color("bad") }, hoverinfo: "all", name: "not finite",
        hovertemplate: "%{text}<extra></extra>", text: bad.map((index) => `${columns.bad[index]} value${columns.bad[index] === 1 ? "" : "s"} not finite`) });
    }
    return traces;
  }

  bandTraces(set, shade) {
    // A band is of now: what the other runs had done at an earlier second is not asked
    const band = view.seeds && !inPast(this.store) ? this.bands.of(this.series.name, set.axis) : null;
    if (!band) return [];
    const scale = set.axis === "time" ? 1 / 60 : 1;
    const x = band.x.map((value) => value * scale);
    const base = { type: "scatter", mode: "lines", x, showlegend: false, hoverinfo: "skip", connectgaps: false };
    return [{ ...base, y: band.low, line: { width: 0 } }, { ...base, y: band.high, line: { width: 0 }, fill: "tonexty", fillcolor: soft(shade, 0.18), name: "seeds" },
      { ...base, y: band.mean, line: { width: 1.6, color: shade, dash: "dash" }, hoverinfo: "all", hovertemplate: "%{y:.5g} mean of seeds<extra></extra>" }];
  }

  draw(Plot) {
    this.stale = false;
    this.Plot = Plot;
    this.showPin();
    const { name, title, group, unit } = this.series;
    this.source.want([name]);
    const columns = this.source.columns(name);
    const set = settingsOf(name);
    const shade = color(shadeOf(group));
    const traces = columns ? [...this.bandTraces(set, shade), ...this.traces(columns, set, shade)] : [];
    this.plot.classList.toggle("bare", !columns?.value.length);
    const layout = themed({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 12, t: 4, b: 6, pad: 3 }, showlegend: false, hovermode: "x unified", dragmode: "zoom",
      xaxis: { ...AXIS, title: { text: TITLES[set.axis], standoff: 4 }, ...rangeOf(this.store, set.axis, set.zoom) },
      yaxis: { ...AXIS, title: { text: unit, standoff: 6 }, type: set.log ? "log" : "linear", separatethousands: true, tickformat: unit === "bytes" ? "~s" : "", ...(set.y ? { range: [...set.y], autorange: false } : { autorange: true }) },
      yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
      shapes: crosshair(this.store, set.axis, view.step),
    });
    Plot.react(this.plot, traces, layout, CONFIG);
    if (!this.drawn) this.listen();
    this.drawn = true;
    this.describe(columns, title, unit);
  }

  describe(columns, title, unit) {
    const value = columns ? (view.step === null ? this.store.latest.get(this.series.name) ?? null : valueAt(columns, view.step)) : null;
    const words = value === null ? "" : `${short(value)}${unit && unit !== "share" ? ` ${unit}` : ""}`;
    setText(this.now, words);
    this.now.classList.toggle("then", view.step !== null);
    setAttribute(this.plot, "aria-label", `${title}. ${view.step === null ? "Latest" : `At step ${view.step}`}: ${words || "no data yet"}`);
  }

  listen() {
    this.plot.on("plotly_relayout", (event) => {
      const set = settingsOf(this.series.name);
      if (event["yaxis.range[0]"] !== undefined) changeOwn(this.series.name, { y: [event["yaxis.range[0]"], event["yaxis.range[1]"]].map(Number) });
      else if (event["yaxis.autorange"] && set.y) changeOwn(this.series.name, { y: null });
      if (set.axis !== view.axis) return;
      if (event["xaxis.range[0]"] !== undefined) change({ zoom: [event["xaxis.range[0]"], event["xaxis.range[1]"]].map(Number) });
      else if (event["xaxis.autorange"] && view.zoom) change({ zoom: null });
    });
    this.plot.on("plotly_click", (event) => {
      const step = event.points?.find((point) => point.customdata !== undefined)?.customdata;
      if (Number.isInteger(step)) change({ step });
    });
  }
}
