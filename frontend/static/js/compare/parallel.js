// Parallel coordinates in SVG: an axis a field, a line a run. A stretch dragged on an axis keeps the runs within it.
import { short } from "../format.js";
import { svg } from "../run/dom.js";
import { dash, field, inBrush, indexOf, keep, page, scaleOf, state, valueOf } from "./state.js";

const HEIGHT = 384;
const [TOP, BOTTOM, SIDE, NONE] = [46, 40, 72, 22];
const DASH = { solid: null, dash: "7 4", dot: "2 4", dashdot: "8 3 2 3" };
const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export class Parallel {
  constructor(box) {
    this.box = box;
    this.width = 0;
    new ResizeObserver(() => {
      const width = Math.max(480, box.clientWidth - 32);
      if (Math.abs(width - this.width) > 4) this.draw();
    }).observe(box);
  }

  draw() {
    this.width = Math.max(480, this.box.clientWidth - 32);
    this.axes = state.par.map((key, index) => ({ key, field: field(key), scale: scaleOf(key), x: this.x(index) }));
    const picture = svg("svg", { viewBox: `0 0 ${this.width} ${HEIGHT}`, role: "group", "aria-label": `Parallel coordinates of ${page.runs.length} runs over ${state.par.length} fields` });
    if (this.axes.length < 2) {
      picture.append(svg("text", { x: this.width / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "axis-tick" }, "Choose two axes or more."));
    } else {
      const lines = page.runs.filter((run) => !state.hide.has(run.id)).map((run) => this.line(run));
      picture.append(svg("g", {}, ...lines.filter((node) => node.classList.contains("out")), ...lines.filter((node) => !node.classList.contains("out"))));
      for (const axis of this.axes) picture.append(this.axis(axis));
    }
    const focused = this.box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.box.replaceChildren(picture);
    if (focused) this.box.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  x(index) {
    const many = Math.max(1, state.par.length - 1);
    return SIDE + (index * (this.width - 2 * SIDE)) / many;
  }

  // Large values stand high; runs without a value stand under the axis.
  y(axis, value) {
    return value === null ? HEIGHT - BOTTOM + NONE : HEIGHT - BOTTOM - axis.scale.place(value) * (HEIGHT - TOP - BOTTOM);
  }

  line(run) {
    const points = this.axes.map((axis) => `${axis.x.toFixed(1)},${this.y(axis, valueOf(run, axis.key)).toFixed(1)}`).join(" ");
    const index = indexOf(run.id);
    const node = svg("polyline", { points, class: `run-line run-c${index}${inBrush(run) ? "" : " out"}`, "stroke-dasharray": DASH[dash(index)], "data-run": run.id }, svg("title", {}, run.name));
    node.addEventListener("pointerenter", () => node.classList.add("near"));
    node.addEventListener("pointerleave", () => node.classList.remove("near"));
    return node;
  }

  axis(axis) {
    const { x, scale, key } = axis;
    const room = Math.max(8, Math.floor((this.width - 2 * SIDE) / Math.max(1, state.par.length - 1) / 7.4));
    const group = svg("g", {}, svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, class: "axis-line" }));
    const title = svg("text", { x, y: 18, "text-anchor": "middle", class: "axis-title" }, clip(axis.field.title.replace(/ \([^)]*\)$/, ""), room), svg("title", {}, `${axis.field.title}: ${key}`));
    group.append(title);
    const tick = (y, text) => group.append(svg("text", { x, y, "text-anchor": "middle", class: "axis-tick" }, clip(text, room)));
    if (scale.numeric) {
      tick(TOP - 8, short(scale.high));
      tick(HEIGHT - BOTTOM + 14, short(scale.low));
    } else for (const word of scale.words.slice(0, 12)) tick(this.y(axis, word) - 5, word);
    if (page.runs.some((run) => valueOf(run, key) === null)) tick(HEIGHT - BOTTOM + NONE + 13, "none");
    const brush = state.brush.get(key);
    if (brush) {
      const [low, high] = brush.map((at) => HEIGHT - BOTTOM - Math.min(1, Math.max(0, scale.numeric ? scale.place(at) : at)) * (HEIGHT - TOP - BOTTOM));
      group.append(svg("rect", { x: x - 9, y: high, width: 18, height: Math.max(3, low - high), rx: 3, class: "brush" }));
    }
    group.append(this.handle(axis, brush));
    return group;
  }

  handle(axis, brush) {
    const { key, scale } = axis;
    const say = (at) => (scale.numeric ? short(at) : `${Math.round(at * 100)} %`);
    const words = brush ? `${say(brush[0])} to ${say(brush[1])}` : "everything";
    const center = brush ? this.share(axis, (brush[0] + brush[1]) / 2) : 0.5;
    const node = svg("rect", { x: axis.x - 16, y: TOP - 4, width: 32, height: HEIGHT - TOP - BOTTOM + 8, class: "axis-hit", tabindex: 0, role: "slider", "data-key": key, "aria-label": `${axis.field.title}: keep the runs within`,
      "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(center * 100), "aria-valuetext": words, "aria-orientation": "vertical" });
    let from = null;
    const at = (event) => {
      const shape = node.ownerSVGElement.getBoundingClientRect();
      const y = ((event.clientY - shape.top) * HEIGHT) / shape.height;
      return Math.min(1.02, Math.max(-0.02, (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM)));
    };
    node.addEventListener("pointerdown", (event) => {
      from = at(event);
      node.setPointerCapture(event.pointerId);
    });
    node.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = at(event);
      const ends = [Math.min(from, to), Math.max(from, to)];
      from = null;
      this.set(axis, ends[1] - ends[0] < 0.02 ? null : ends);
    });
    node.addEventListener("keydown", (event) => {
      const move = { ArrowUp: 0.1, ArrowDown: -0.1 }[event.key];
      if (event.key === "Delete" || event.key === "Backspace") this.set(axis, null);
      if (!move) return;
      event.preventDefault();
      const ends = brush ? brush.map((value) => this.share(axis, value) + move) : move > 0 ? [0.5, 1.02] : [-0.02, 0.5];
      this.set(axis, ends);
    });
    return node;
  }

  share({ scale }, value) {
    return scale.numeric ? scale.place(value) : value;
  }

  set({ key, scale }, ends) {
    const brush = new Map(state.brush);
    if (ends) brush.set(key, scale.numeric ? ends.map((share) => scale.low + share * (scale.high - scale.low)) : ends);
    else brush.delete(key);
    keep({ brush });
  }
}
