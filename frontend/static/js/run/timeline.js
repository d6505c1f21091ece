// The timeline: what every lane did and when. Drag to zoom, shift-drag to move, double click for the whole run; keys work as well.
import { clock, duration, percent, seconds } from "../format.js";
import { CAUSES, colorOf, fillOf, nameOf, order } from "./causes.js";
import { byId, el, setAttribute, setText } from "./dom.js";
import { IdleLedger } from "./idle.js";
import { inPast } from "./past.js";
import { registerPanel } from "./tabs.js";
import { param, setParams } from "./url.js";

const LANE_PX = 26;
const REFETCH_MS = 2500;
const LEAST_S = 0.05;

const sum = (values) => values.reduce((total, value) => total + value, 0);

class Timeline {
  open(store) {
    this.store = store;
    this.ledger = new IdleLedger(store);
    this.box = byId("lanes");
    this.tip = byId("lanes-tip");
    this.range = this.readRange();
    this.bind();
    new ResizeObserver(() => this.draw()).observe(this.box);
    document.addEventListener("themechange", () => this.draw());
    this.ledger.draw(null);
    this.fetch();
  }

  update(store, touched) {
    this.ledger.draw(this.data);
    if (touched.has("load")) this.fetch();
    else if ((touched.has("spans") || touched.has("state")) && this.following()) this.fetchLater();
  }

  // At most one request a period, and always one after the last news.
  fetchLater() {
    if (this.later) return;
    this.later = setTimeout(() => {
      this.later = 0;
      if (!document.hidden) this.fetch();
    }, Math.max(0, REFETCH_MS - (performance.now() - (this.fetchedAt || 0))));
  }

  // null: the whole run. {last}: its newest seconds. {from, to}: seconds since it began.
  readRange() {
    const text = param("window");
    const [from, to] = (text || "").split("*").map(Number);
    if (text?.startsWith("last:") && Number(text.slice(5)) > 0) return { last: Number(text.slice(5)) };
    return Number.isFinite(from) && Number.isFinite(to) && from < to ? { from, to } : null;
  }

  setRange(range) {
    this.range = range;
    setParams({ window: range === null ? null : range.last ? `last:${range.last}` : `${range.from.toFixed(3)}*${range.to.toFixed(3)}` });
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), 180);
  }

  following() {
    return !inPast(this.store) && !(this.range && this.range.from !== undefined);
  }

  end() {
    return inPast(this.store) ? Math.min(this.data.ended, this.store.until) : this.data.ended;
  }

  // Unix seconds shown.
  bounds() {
    const { began } = this.data;
    if (this.range === null) return [began, this.end()];
    if (this.range.last) return [Math.max(began, this.end() - this.range.last), this.end()];
    return [began + this.range.from, began + this.range.to];
  }

  async fetch() {
    clearTimeout(this.timer);
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    try {
      const query = new URLSearchParams({ buckets: Math.max(100, Math.min(1600, Math.round(this.box.clientWidth / 2))) });
      if (this.data?.source !== "none" && this.data) {
        const [from, to] = this.bounds();
        if (this.range !== null || inPast(this.store)) query.set("from", from.toFixed(4));
        if ((this.range && this.range.to !== undefined) || inPast(this.store)) query.set("to", to.toFixed(4));
      }
      const first = !this.data;
      this.data = await this.store.get(`timeline.json?${query}`);
      this.fetchedAt = performance.now();
      if (first && this.range !== null) this.again = true;
      this.draw();
      this.ledger.draw(this.data);
    } catch (error) {
      console.warn("The timeline could not be loaded:", error.message);
      setText(byId("lanes-words"), "The timeline could not be loaded; it is tried again with the next news of the run.");
    } finally {
      this.asking = false;
      if (this.again) {
        this.again = false;
        this.fetch();
      }
    }
  }

  bind() {
    byId("lanes-in").addEventListener("click", () => this.zoom(0.5));
    byId("lanes-out").addEventListener("click", () => this.zoom(2));
    byId("lanes-back").addEventListener("click", () => this.move(-0.5));
    byId("lanes-on").addEventListener("click", () => this.move(0.5));
    byId("lanes-all").addEventListener("click", () => this.setRange(null));
    byId("lanes-last").addEventListener("click", () => this.setRange({ last: 60 }));
    this.box.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => this.move(-0.25), ArrowRight: () => this.move(0.25), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.setRange(null), Home: () => this.setRange(null) }[event.key];
      if (!act || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    });
    this.box.addEventListener("pointerdown", (event) => this.grab(event));
    this.box.addEventListener("pointermove", (event) => this.hover(event));
    this.box.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.box.addEventListener("dblclick", () => this.setRange(null));
    this.box.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey) || !this.data?.began) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.instant(event));
    }, { passive: false });
  }

  canvasBounds() {
    return this.box.querySelector("canvas")?.getBoundingClientRect();
  }

  instant(event) {
    const { left, width } = this.canvasBounds();
    const [from, to] = this.bounds();
    return from + ((event.clientX - left) / width) * (to - from);
  }

  zoom(factor, around) {
    if (!this.data?.began) return;
    const [from, to] = this.bounds();
    const middle = around ?? (from + to) / 2;
    const width = Math.max(LEAST_S, (to - from) * factor);
    this.show(middle - ((middle - from) / (to - from)) * width, middle + ((to - middle) / (to - from)) * width);
  }

  move(share) {
    if (!this.data?.began) return;
    const [from, to] = this.bounds();
    const by = Math.min(Math.max((to - from) * share, this.data.began - from), this.data.ended - to);
    this.show(from + by, to + by);
  }

  show(from, to) {
    const { began, ended } = this.data;
    const low = Math.max(began, from);
    const high = Math.min(ended, to);
    if (low <= began && high >= ended) this.setRange(null);
    else if (high - low >= LEAST_S) this.setRange({ from: low - began, to: high - began });
  }

  grab(event) {
    if (event.button !== 0 || !this.data?.began || event.target.tagName !== "CANVAS") return;
    const began = event.clientX;
    const [from, to] = this.bounds();
    const { left, width } = this.canvasBounds();
    const mark = byId("lanes-mark");
    const over = (moved) => {
      if (event.shiftKey) {
        const by = ((began - moved.clientX) / width) * (to - from);
        this.show(from + by, to + by);
        return;
      }
      const offset = left - this.box.getBoundingClientRect().left;
      mark.hidden = Math.abs(moved.clientX - began) < 4;
      mark.style.left = `${offset + Math.min(began, moved.clientX) - left}px`;
      mark.style.width = `${Math.abs(moved.clientX - began)}px`;
    };
    const done = (ended) => {
      removeEventListener("pointermove", over);
      mark.hidden = true;
      if (event.shiftKey || Math.abs(ended.clientX - began) < 4) return;
      const at = (x) => from + ((x - left) / width) * (to - from);
      this.show(at(Math.min(began, ended.clientX)), at(Math.max(began, ended.clientX)));
    };
    addEventListener("pointermove", over);
    addEventListener("pointerup", done, { once: true });
  }

  // Cause, seconds and share of what lies under the pointer.
  hover(event) {
    const lane = event.target.dataset?.lane;
    if (!lane || !this.data?.lanes?.[lane]) {
      this.tip.hidden = true;
      return;
    }
    const t = this.instant(event);
    const lines = this.data.mode === "spans" ? this.spanAt(lane, t) : this.bucketAt(lane, t);
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(el("strong", {}, lane), ...lines);
    const box = this.box.getBoundingClientRect();
    this.tip.style.left = `${Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 4)}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  spanAt(lane, t) {
    const [from, to] = this.bounds();
    for (const [cause, spans] of Object.entries(this.data.lanes[lane])) {
      const span = spans.find(([began, ended]) => began <= t && t <= ended);
      if (span) {
        const all = sum(spans.map(([began, ended]) => Math.max(0, Math.min(ended, to) - Math.max(began, from))));
        return [this.line(cause, `${seconds(span[1] - span[0])}, from ${clock(span[0])}`), el("span", { class: "note" }, `${percent(all / (to - from), 1)} of what is shown, ${seconds(all)} in ${spans.length}`)];
      }
    }
    return [el("span", { class: "note" }, "nothing was told of this moment")];
  }

  bucketAt(lane, t) {
    const { edges, lanes } = this.data;
    const place = edges.findIndex((edge, index) => edge <= t && t < edges[index + 1]);
    if (place < 0) return null;
    const width = edges[place + 1] - edges[place];
    const found = Object.entries(lanes[lane]).map(([cause, spent]) => [cause, spent[place]]).filter(([, spent]) => spent > 0).sort((a, b) => b[1] - a[1]);
    return [el("span", { class: "note" }, `${clock(edges[place])}, ${seconds(width)} wide`), ...found.slice(0, 5).map(([cause, spent]) => this.line(cause, `${seconds(spent)}, ${percent(spent / width)}`))];
  }

  line(cause, words) {
    return el("span", {}, el("i", { class: `swatch ${colorOf(cause)}`, "aria-hidden": "true" }), `${nameOf(cause)}: ${words}`);
  }

  draw() {
    if (!this.data) return;
    const { source, mode } = this.data;
    setText(byId("lanes-words"), { none: "No data yet.", spans: mode === "spans" ? "Each stretch as the run told it." : "So many stretches that each column shows their shares; zoom in for single ones.",
      ledger: "This run tells no single stretches: drawn from the differences of its time ledger." }[source]);
    byId("lanes-frame").classList.toggle("bare", source === "none");
    if (source === "none") return;
    const lanes = Object.keys(this.data.lanes).sort((a, b) => Number(b.startsWith("trainer")) - Number(a.startsWith("trainer")) || a.localeCompare(b, "en", { numeric: true }));
    this.rows(lanes);
    for (const lane of lanes) this.drawLane(lane, this.canvases.get(lane));
    this.drawAxis();
    this.legend(lanes);
    setAttribute(byId("lanes-all"), "aria-pressed", this.range === null);
    setAttribute(byId("lanes-last"), "aria-pressed", Boolean(this.range?.last));
  }

  rows(lanes) {
    const key = lanes.join("|");
    if (key === this.rowsOf) return;
    this.rowsOf = key;
    this.canvases = new Map(lanes.map((lane) => [lane, el("canvas", { "data-lane": lane, role: "img" })]));
    this.axisCanvas = el("canvas", { class: "lanes-axis", "aria-hidden": "true" });
    this.box.replaceChildren(...lanes.flatMap((lane) => [el("span", { class: "lane-name" }, lane), this.canvases.get(lane)]), el("span", {}), this.axisCanvas, this.tip, byId("lanes-mark") || el("div", { id: "lanes-mark", class: "lanes-mark", hidden: true }));
  }

  context(canvas, height) {
    const width = canvas.clientWidth;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    return [pen, width];
  }

  drawLane(lane, canvas) {
    const [pen, width] = this.context(canvas, LANE_PX);
    const [from, to] = this.bounds();
    const x = (t) => ((t - from) / (to - from)) * width;
    const causes = Object.keys(this.data.lanes[lane]).sort(order);
    const totals = new Map();
    if (this.data.mode === "spans") {
      for (const cause of causes) {
        pen.fillStyle = fillOf(cause);
        for (const [began, ended] of this.data.lanes[lane][cause]) {
          if (ended < from || began > to) continue;
          const left = x(Math.max(began, from));
          pen.fillRect(left, 0, Math.max(0.6, x(Math.min(ended, to)) - left), LANE_PX);
          totals.set(cause, (totals.get(cause) || 0) + Math.min(ended, to) - Math.max(began, from));
        }
      }
    } else this.drawShares(pen, lane, causes, x, totals);
    const said = [...totals].map(([cause, spent]) => `${nameOf(cause)} ${percent(spent / (to - from))}`).join(", ");
    setAttribute(canvas, "aria-label", `${lane}, ${seconds(to - from)} shown: ${said || "nothing told"}`);
  }

  drawShares(pen, lane, causes, x, totals) {
    const { edges, lanes } = this.data;
    for (let place = 0; place + 1 < edges.length; place += 1) {
      const left = x(edges[place]);
      const wide = x(edges[place + 1]) - left;
      let y = LANE_PX;
      for (const cause of causes) {
        const spent = lanes[lane][cause][place];
        if (!spent) continue;
        const high = Math.min(1, spent / (edges[place + 1] - edges[place])) * LANE_PX;
        pen.fillStyle = fillOf(cause);
        pen.fillRect(left, y - high, wide + 0.3, high);
        y -= high;
        totals.set(cause, (totals.get(cause) || 0) + spent);
      }
    }
  }

  drawAxis() {
    const [pen, width] = this.context(this.axisCanvas, 22);
    const [from, to] = this.bounds();
    const { began } = this.data;
    const rough = (to - from) / Math.max(2, Math.floor(width / 110));
    const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((size) => size >= rough) || 86400 * Math.ceil(rough / 86400);
    const style = getComputedStyle(this.box);
    pen.fillStyle = style.color;
    pen.font = `11px ${style.fontFamily}`;
    pen.textAlign = "center";
    for (let mark = Math.ceil((from - began) / step) * step; mark <= to - began; mark += step) {
      const at = ((mark + began - from) / (to - from)) * width;
      pen.fillRect(at, 0, 1, 5);
      const words = step < 1 ? `${mark.toFixed(2)} s` : mark < 60 && step < 60 ? `${Math.round(mark)} s` : duration(Math.round(mark));
      pen.fillText(words, Math.min(width - 22, Math.max(22, at)), 17);
    }
  }

  legend(lanes) {
    const used = CAUSES.filter((cause) => lanes.some((lane) => this.data.lanes[lane][cause]));
    const other = [...new Set(lanes.flatMap((lane) => Object.keys(this.data.lanes[lane])))].filter((cause) => !CAUSES.includes(cause));
    const key = [...used, ...other].join("|");
    if (key === this.legendOf) return;
    this.legendOf = key;
    byId("lanes-legend").replaceChildren(...[...used, ...other].map((cause) => el("li", {}, el("i", { class: `swatch ${colorOf(cause)}`, "aria-hidden": "true" }), nameOf(cause))));
  }
}

const timeline = new Timeline();
registerPanel("timeline", { open: (store) => timeline.open(store), update: (store, touched) => timeline.update(store, touched) });
