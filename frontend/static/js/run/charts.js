// Plotly charts: the figures come from the server, checked there; here they get data, theme and live updates. Zoom is kept.
import { short } from "../format.js";
import { setAttribute, setText } from "./dom.js";

const CONFIG = { displaylogo: false, displayModeBar: "hover", responsive: true, scrollZoom: false, doubleClick: "reset",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"], toImageButtonOptions: { format: "svg" } };

// light-dark() in a custom property is resolved only in a real colour: a probe element reads it.
const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);

function color(token) {
  probe.style.color = `var(--${token})`;
  return getComputedStyle(probe).color;
}

function soft(rgb, alpha) {
  const parts = rgb.match(/[\d.]+/g);
  return parts ? `rgba(${parts.slice(0, 3).join(",")},${alpha})` : rgb;
}

function themed(layout) {
  const [text, muted, line, surface] = ["text", "muted", "line", "surface"].map(color);
  const axis = (extra) => ({ gridcolor: line, linecolor: line, tickfont: { color: muted, size: 11 }, ...extra });
  const next = { ...layout, font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: text } };
  for (const name of ["xaxis", "yaxis", "yaxis2"]) {
    if (!layout[name]) continue;
    next[name] = { ...layout[name], ...axis(), title: { ...layout[name].title, font: { size: 11, color: muted } } };
  }
  next.legend = { ...layout.legend, font: { size: 11, color: muted } };
  next.hoverlabel = { bgcolor: surface, bordercolor: line, font: { color: text, size: 12 } };
  next.modebar = { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: text };
  return next;
}

function paint(trace) {
  const shade = color(trace.meta.color || "chart-1");
  if (trace.type === "bar") trace.marker = { ...trace.marker, color: shade };
  else {
    trace.line = { ...trace.line, color: shade };
    if (trace.marker) trace.marker = { ...trace.marker, color: shade };
    if (trace.fill) trace.fillcolor = soft(shade, 0.16);
    if (trace.error_y) trace.error_y = { ...trace.error_y, color: shade };
  }
}

function smooth(values, width) {
  const kept = [];
  return values.map((value) => {
    if (value === null) return null;
    kept.push(value);
    if (kept.length > width) kept.shift();
    return kept.reduce((sum, item) => sum + item, 0) / kept.length;
  });
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

// The points of the current history, or those that a later attempt replaced.
function chosen(columns, faint) {
  if (!columns || !(faint || columns.faint.some(Boolean))) return columns;
  const keep = (list) => list.filter((_, index) => columns.faint[index] === faint);
  return { step: keep(columns.step), t: keep(columns.t), value: keep(columns.value) };
}

export class Charts {
  constructor(figures, store, start) {
    this.store = store;
    this.start = start;
    this.axis = "step";
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
  }

  setAxis(axis) {
    this.axis = axis;
    this.resetZoom();
  }

  resetZoom() {
    this.revision = (this.revision || 0) + 1;
    this.draw();
  }

  draw() {
    for (const chart of this.charts) {
      chart.stale = true;
      if (chart.seen) this.drawOne(chart);
    }
  }

  x(columns) {
    if (this.axis === "step") return spread(columns.step);
    const start = this.start() ?? columns.t[0];
    return columns.t.map((t) => (t - start) / 60);
  }

  // `faint` asks for what a later attempt trained again; without it those points are left out.
  fillTrace(trace, faint = false) {
    const { meta } = trace;
    if (meta.lag !== undefined) return this.fillLag(trace);
    if (meta.capacity) return this.fillCapacity(trace);
    const columns = chosen(this.store.series.get(meta.series), faint);
    if (!columns) return 0;
    const scale = meta.scale ?? 1;
    let values = columns.value.map((value) => (value === null ? null : value * scale));
    if (meta.smooth) values = smooth(values, meta.smooth);
    trace.x = this.x(columns);
    trace.y = values;
    if (meta.error === "evaluations" && trace.error_y) {
      const errors = new Map(this.store.evaluations.map((item) => [item.step, item.stderr]));
      trace.error_y = { ...trace.error_y, array: columns.step.map((step) => errors.get(step) ?? 0) };
    }
    return values.filter((value) => value !== null).length;
  }

  fillLag(trace) {
    const { lag, last } = trace.meta;
    const rows = [...this.store.lag.entries()].sort((a, b) => a[0] - b[0]);
    const times = this.axis === "step" ? null : this.timesOfSteps();
    trace.x = rows.map(([step]) => (times ? times.get(step) ?? null : step));
    trace.y = rows.map(([, counts]) => {
      let all = 0;
      let mine = 0;
      for (const [key, tokens] of counts) {
        all += tokens;
        if (key === lag || (last && key > lag)) mine += tokens;
      }
      return all ? (100 * mine) / all : null;
    });
    trace.visible = trace.y.some((value) => value) || lag === 0;
    return rows.length;
  }

  timesOfSteps() {
    const columns = this.store.series.get("reward/mean");
    if (!columns) return new Map();
    const minutes = this.x(columns);
    return new Map(columns.step.map((step, index) => [step, minutes[index]]));
  }

  fillCapacity(trace) {
    const depth = this.store.series.get("buffer/depth");
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

  drawOne(chart) {
    if (!window.Plotly) return;
    chart.stale = false;
    let points = 0;
    const traces = chart.data.map((trace) => ({ ...trace }));
    for (const trace of chart.data) {
      if (trace.type !== "scatter" || trace.meta.smooth || !this.store.series.get(trace.meta.series)?.faint.some(Boolean)) continue;
      traces.push({ ...trace, opacity: 0.3, showlegend: false, hoverinfo: "skip", hovertemplate: null, fill: "none", error_y: null, faint: true });
    }
    for (const trace of traces) {
      points += this.fillTrace(trace, trace.faint);
      paint(trace);
      // One point makes no line: it is shown as a dot until the second comes.
      if (trace.mode === "lines" && trace.y.length === 1 && !trace.meta.capacity) trace.mode = "markers";
    }
    chart.plot.classList.toggle("bare", points === 0);
    const layout = themed(chart.layout);
    layout.uirevision = `${this.axis}-${this.revision || 0}`;
    const timeTitle = this.axis === "step" ? "step" : "minutes since start";
    layout.xaxis = { ...layout.xaxis, title: { ...layout.xaxis.title, text: timeTitle } };
    Plotly.react(chart.plot, traces, layout, CONFIG);
    chart.drawn = true;
    this.describe(chart, traces);
  }

  describe(chart, traces) {
    const said = [];
    for (const trace of traces) {
      const last = trace.y.findLast?.((value) => value !== null && value !== undefined);
      if (last === undefined || trace.meta.capacity || trace.faint) continue;
      said.push([trace.name, last, trace.type === "bar" && trace.meta.lag !== undefined ? " %" : ""]);
    }
    const label = said.length ? said.map(([name, value, unit]) => `${name}: ${short(value)}${unit}`).join("; ") : "no data yet";
    setAttribute(chart.plot, "aria-label", `${chart.title}. Latest: ${label}`);
    const lag = traces[0].meta.lag !== undefined;
    const main = lag ? null : (said.find(([, , unit]) => !unit) || null);
    const unit = chart.layout.yaxis?.title?.text;
    const plain = ["ms", "s", "nats", "groups", "samples/s", "tokens"].includes(unit) ? ` ${unit}` : "";
    setText(chart.card.querySelector("[data-now]"), main ? `${short(main[1])}${plain}` : "");
  }
}
