// The overview's charts: the figures come from the server, checked there; here they get data, theme and live updates.
import { short } from "../format.js";
import { setAttribute, setText } from "./dom.js";
import { CONFIG, color, crosshair, placesOf, plotly, rangeOf, smoothed, soft, themed, valueAt } from "./plot.js";
import { picked } from "./source.js";
import { TITLES, change, view } from "./view.js";

function paint(trace) {
  const shade = color(trace.meta.color || "chart-1");
  if (trace.meta.lag === "heat") trace.marker = { ...trace.marker, colorscale: [[0, soft(shade, 0.08)], [1, shade]] };
  else if (trace.type === "bar") trace.marker = { ...trace.marker, color: shade };
  else {
    trace.line = { ...trace.line, color: shade };
    if (trace.marker) trace.marker = { ...trace.marker, color: shade };
    if (trace.fill) trace.fillcolor = soft(shade, 0.16);
    if (trace.error_y) trace.error_y = { ...trace.error_y, color: shade };
  }
}

// The points of the current history, or those that a later attempt replaced.
function chosen(columns, faint) {
  if (!columns || !(faint || columns.faint.some(Boolean))) return columns;
  return picked(columns, (index) => columns.faint[index] === faint);
}

// Neighbouring rows summed to at most `most` columns: [middle, width, counts].
const HEAT_COLUMNS = 90;
function gathered(rows, most) {
  if (!rows.length) return [];
  const first = rows[0][0];
  const last = rows[rows.length - 1][0];
  const gap = rows.length > 1 ? (last - first) / (rows.length - 1) : 1;
  if (rows.length <= most) return rows.map(([at, counts]) => [at, gap, counts]);
  const width = (last - first) / most;
  const columns = new Map();
  for (const [at, counts] of rows) {
    const place = Math.min(most - 1, Math.floor((at - first) / width));
    const sums = columns.get(place) || new Map();
    for (const [lag, tokens] of counts) sums.set(lag, (sums.get(lag) || 0) + tokens);
    columns.set(place, sums);
  }
  return [...columns].map(([place, sums]) => [first + (place + 0.5) * width, width, sums]);
}

export class Charts {
  constructor(figures, store, source) {
    this.store = store;
    this.source = source;
    this.revision = 0;
    this.charts = [];
    for (const figure of figures) {
      const card = document.querySelector(`[data-chart="${CSS.escape(figure.key)}"]`);
      if (card) this.charts.push({ ...figure, card, plot: card.querySelector("[data-plot]"), drawn: false, stale: true, seen: false });
    }
    // Only charts in view are drawn; the others are drawn when they come into it.
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = this.charts.find((item) => item.plot === entry.target);
        chart.seen = entry.isIntersecting;
        if (chart.seen && chart.stale) this.drawOne(chart);
      }
    }, { rootMargin: "200px" });
    for (const chart of this.charts) this.watch.observe(chart.plot);
    document.addEventListener("themechange", () => this.draw());
    document.addEventListener("headrace:view", ({ detail }) => {
      if (detail.changed.has("zoom") || detail.changed.has("axis") || detail.changed.has("all")) this.revision += 1;
      this.draw();
    });
  }

  draw() {
    for (const chart of this.charts) {
      chart.stale = true;
      if (chart.seen) this.drawOne(chart);
    }
  }

  x(columns) {
    return placesOf(this.store, view.axis, columns);
  }

  // `faint` asks for what a later attempt trained again; without it those points are left out.
  fillTrace(trace, faint = false) {
    const { meta } = trace;
    if (meta.lag !== undefined) return this.fillLag(trace);
    if (meta.capacity) return this.fillCapacity(trace);
    const columns = chosen(this.source.columns(meta.series), faint);
    if (!columns) return 0;
    const scale = meta.scale ?? 1;
    let values = columns.value.map((value) => (value === null ? null : value * scale));
    if (view.smooth.kind !== "none" && !trace.raw && trace.type === "scatter") values = smoothed(values, view.smooth);
    else if (meta.smooth) values = smoothed(values, { kind: "mean", amount: meta.smooth });
    trace.x = this.x(columns);
    trace.y = values;
    if (meta.error === "evaluations" && trace.error_y) {
      const errors = new Map(this.store.evaluations.map((item) => [item.step, item.stderr]));
      trace.error_y = { ...trace.error_y, array: columns.step.map((step) => errors.get(step) ?? 0) };
    }
    return values.filter((value) => value !== null).length;
  }

  // "heat": the share of each lag in the tokens of every step. "last": of the last step alone, or of the chosen one.
  fillLag(trace) {
    const rows = [...this.store.lag.entries()].sort((a, b) => a[0] - b[0]);
    const largest = Math.max(0, ...rows.map(([, counts]) => Math.max(0, ...counts.keys())));
    const lags = Array.from({ length: largest + 1 }, (_, lag) => lag);
    const share = (counts) => {
      const all = [...counts.values()].reduce((sum, tokens) => sum + tokens, 0);
      return lags.map((lag) => (all ? (100 * (counts.get(lag) || 0)) / all : null));
    };
    if (trace.meta.lag === "last") {
      trace.y = lags;
      const chosenRow = view.step === null ? rows[rows.length - 1] : rows.findLast(([step]) => step <= view.step);
      trace.x = chosenRow ? share(chosenRow[1]) : [];
      return 0;
    }
    const places = view.axis === "step" ? null : this.placesOfSteps();
    const placed = rows.map(([step, counts]) => [places ? places.get(step) ?? null : step, counts]).filter(([at]) => at !== null);
    const cells = gathered(placed, HEAT_COLUMNS).flatMap(([at, width, counts]) => share(counts).map((part, lag) => [at, width, lag, part])).filter((cell) => cell[3] > 0);
    Object.assign(trace, { x: cells.map(([at]) => at), width: cells.map(([, width]) => width), base: cells.map(([, , lag]) => lag - 0.46), y: cells.map(() => 0.92), textposition: "none", text: cells.map(([, , lag, part]) => `${lag}: ${short(part)} %`) });
    trace.marker = { ...trace.marker, color: cells.map(([, , , part]) => part) };
    return rows.length;
  }

  placesOfSteps() {
    const columns = this.source.columns("reward/mean");
    if (!columns) return new Map();
    const places = this.x(columns);
    return new Map(columns.step.map((step, index) => [step, places[index]]));
  }

  fillCapacity(trace) {
    const depth = this.source.columns("buffer/depth");
    const capacity = this.store.state?.buffer?.capacity ?? null;
    if (!depth || !depth.value.length || capacity === null) {
      trace.x = [];
      trace.y = [];
      return 0;
    }
    const x = this.x(depth);
    trace.x = [x[0], x[x.length - 1]];
    trace.y = [capacity, capacity];
    return 0;
  }

  traces(chart) {
    const traces = chart.data.map((trace) => ({ ...trace }));
    const aside = { showlegend: false, hoverinfo: "skip", hovertemplate: null, fill: "none", error_y: null };
    for (const trace of chart.data) {
      if (trace.type !== "scatter" || trace.meta.smooth || !trace.meta.series) continue;
      if (view.smooth.kind !== "none") traces.unshift({ ...trace, ...aside, opacity: 0.3, raw: true });
      if (this.source.columns(trace.meta.series)?.faint.some(Boolean)) traces.push({ ...trace, ...aside, opacity: 0.3, faint: true });
    }
    return traces;
  }

  async drawOne(chart) {
    chart.stale = false;
    const { Plot } = this;
    if (!Plot) {
      // The library comes with the first chart that is seen.
      plotly().then((found) => {
        if (this.Plot) return;
        this.Plot = found;
        this.draw();
      });
      chart.stale = true;
      return;
    }
    this.source.want(chart.data.map((trace) => trace.meta.series).filter(Boolean));
    let points = 0;
    const traces = this.traces(chart);
    for (const trace of traces) {
      points += this.fillTrace(trace, trace.faint);
      paint(trace);
      // One point makes no line: it is shown as a dot until the second comes.
      if (trace.mode === "lines" && trace.y?.length === 1 && !trace.meta.capacity) trace.mode = "markers";
    }
    chart.plot.classList.toggle("bare", points === 0);
    const layout = themed(chart.layout);
    layout.uirevision = `${view.axis}-${this.revision}`;
    layout.xaxis = { ...layout.xaxis, title: { ...layout.xaxis.title, text: TITLES[view.axis] }, ...rangeOf(this.store, view.axis, view.zoom) };
    if (view.log && layout.barmode === undefined) layout.yaxis = { ...layout.yaxis, type: "log", rangemode: "normal" };
    layout.shapes = crosshair(this.store, view.axis, view.step);
    Plot.react(chart.plot, traces, layout, CONFIG);
    if (!chart.drawn) this.listen(chart);
    chart.drawn = true;
    this.describe(chart, traces);
  }

  listen(chart) {
    chart.plot.on("plotly_relayout", (event) => {
      if (event["xaxis.range[0]"] !== undefined) change({ zoom: [event["xaxis.range[0]"], event["xaxis.range[1]"]].map(Number) });
      else if (event["xaxis.autorange"] && view.zoom) change({ zoom: null });
    });
  }

  describe(chart, traces) {
    const said = [];
    for (const trace of traces) {
      if (trace.meta.lag === "last") said.push(...trace.x.map((share, lag) => [`lag ${lag}`, share, " %"]));
      if (trace.meta.lag !== undefined) continue;
      const last = trace.y.findLast?.((value) => value !== null && value !== undefined);
      if (last === undefined || trace.meta.capacity || trace.faint || trace.raw) continue;
      said.push([trace.name, last, ""]);
    }
    const label = said.length ? said.map(([name, value, unit]) => `${name}: ${short(value)}${unit}`).join("; ") : "no data yet";
    setAttribute(chart.plot, "aria-label", `${chart.title}. Latest: ${label}`);
    const now = chart.card.querySelector("[data-now]");
    setText(now, this.now(chart, traces, said));
    now.classList.toggle("then", view.step !== null);
  }

  // The latest value, or the one at the chosen step.
  now(chart, traces, said) {
    const { meta } = traces.find((trace) => !trace.raw) || {};
    if (!meta || meta.lag !== undefined) return "";
    const unit = chart.layout.yaxis?.title?.text;
    const plain = ["ms", "s", "nats", "groups", "samples/s", "tokens"].includes(unit) ? ` ${unit}` : "";
    const [main] = said;
    if (view.step === null) return main ? `${short(main[1])}${plain}` : "";
    const columns = this.source.columns(meta.series);
    const value = columns ? valueAt(columns, view.step) : null;
    return value === null ? "" : `${short(value * (meta.scale ?? 1))}${plain}`;
  }
}
