// The flow as a picture: inference pool -> buffer -> trainer -> weight sync and back, drawn as water in a channel.
// Geometry is data: one layout for wide screens, one for narrow ones. Numbers are written by `update`, never the shapes.
import { bytes, count, duration, rate, seconds, short } from "../format.js";
import { byId, el, setAttribute, setText, svg } from "./dom.js";
import { average, isOver } from "./head.js";
import { inPast } from "./past.js";

const WIDE = {
  view: [1160, 300], engine: [10, 24, 330, 196], tank: [490, 24, 180, 196], trainer: [820, 24, 330, 196],
  pipes: { generate: "M340 122 H490", train: "M670 122 H820", sync: "M985 220 V268 H175 V226" },
  labels: { generate: [415, 96, "middle"], train: [745, 96, "middle"], sync: [580, 256, "middle"] },
  notes: { generate: [415, 152, "middle"], train: [745, 152, "middle"], sync: [580, 292, "middle"] }, arrow: "M166 238 L175 224 L184 238",
};
const NARROW = {
  view: [360, 690], engine: [8, 8, 300, 186], tank: [58, 262, 200, 130], trainer: [8, 462, 300, 186],
  pipes: { generate: "M158 194 V262", train: "M158 392 V462", sync: "M308 555 H338 V100 H314" },
  labels: { generate: [176, 224, "start"], train: [176, 422, "start"], sync: [8, 670, "start"] },
  notes: { generate: [176, 246, "start"], train: [176, 444, "start"], sync: [8, 687, "start"] }, arrow: "M324 91 L312 100 L324 109",
};
const SLOTS_DRAWN = 128;
const HELD = {
  buffer_full: ["generate", "buffer full: generation waits"],
  buffer_empty: ["train", "buffer empty: trainer waits"],
  depth_bound: ["generate", "dispatch bound: generation waits"],
  sync: ["sync", "sync: dispatch waits for the swap"],
};

function waiting(buffer) {
  const units = `${buffer.unit || "group"}s`;
  if (buffer.capacity === 0) return "no buffer: handed over";
  return buffer.capacity ? `${units} wait` : `${units} wait, unbounded`;
}

// How long until the buffer is full or empty if both rates stay as they are. In and out are smoothed: a step's rate jumps.
export function outlook(buffer, into, out, groupSize) {
  const size = buffer.unit === "sample" ? 1 : groupSize || 1;
  if (buffer.capacity === 0 || !(into >= 0) || !(out >= 0) || !(into + out > 0)) return "";
  const drift = (into - out) / size;
  if (Math.abs(into - out) <= 0.05 * Math.max(into, out)) return "steady";
  if (drift < 0) return buffer.depth > 0 ? `empty in ${duration(Math.max(1, buffer.depth / -drift))}` : "empty";
  if (!buffer.capacity) return `grows by ${short(drift * 60)} a minute`;
  return buffer.depth < buffer.capacity ? `full in ${duration(Math.max(1, (buffer.capacity - buffer.depth) / drift))}` : "full";
}

export class Flow {
  constructor(box, store) {
    this.box = box;
    this.store = store;
    this.lastSync = 0;
    new ResizeObserver(() => this.layout()).observe(box);
    this.layout();
  }

  layout() {
    const wanted = this.box.clientWidth < 720 ? NARROW : WIDE;
    if (wanted === this.shape) return;
    this.shape = wanted;
    this.slotCount = -1;
    this.box.replaceChildren(this.build(wanted));
    this.update();
  }

  text(className, x, y, anchor = "start") {
    return svg("text", { class: className, x, y, "text-anchor": anchor });
  }

  tag([x, y, width]) {
    const box = svg("rect", { class: "tag-box", x: x + width - 76, y: y + 14, width: 62, height: 22, rx: 11 });
    const words = this.text("tag", x + width - 45, y + 29, "middle");
    return [svg("g", {}, box, words), words];
  }

  build(shape) {
    const part = (this.part = {});
    const [ex, ey, ew, eh] = shape.engine;
    const [tx, ty, tw, th] = shape.tank;
    const [rx, ry, rw, rh] = shape.trainer;
    const pipes = {};
    for (const [name, path] of Object.entries(shape.pipes)) {
      part[`${name}Stream`] = svg("path", { class: `stream ${name === "sync" ? "sync" : ""}`, d: path });
      part[`${name}Label`] = this.text("label", ...shape.labels[name]);
      part[`${name}Note`] = this.text("sub", ...shape.notes[name]);
      pipes[name] = part[name] = svg("g", {}, svg("path", { class: "bed", d: path }), part[`${name}Stream`], part[`${name}Label`], part[`${name}Note`]);
    }
    const [engineTag, engineVersion] = this.tag(shape.engine);
    const [trainerTag, trainerVersion] = this.tag(shape.trainer);
    Object.assign(part, { engineVersion, trainerVersion });
    part.slots = svg("g", {});
    part.halo = svg("rect", { class: "halo pulse", x: ex, y: ey, width: ew, height: eh, rx: 14 });
    part.engineSub = this.text("sub", ex + 18, ey + 50);
    part.engineBig = this.text("big", ex + 18, ey + eh - 40);
    part.engineMore = this.text("sub", ex + 18, ey + eh - 17);
    part.engine = svg("g", {}, svg("rect", { class: "box", x: ex, y: ey, width: ew, height: eh, rx: 14 }), part.halo, this.named("Inference pool", ex, ey), engineTag,
      part.engineSub, part.slots, part.engineBig, part.engineMore);
    part.fill = svg("rect", { class: "fill", x: tx + 2, y: ty + th, width: tw - 4, height: 0 });
    part.marks = svg("g", {});
    part.tankBig = this.text("big on-water", tx + tw / 2, ty + th / 2 + 12, "middle");
    part.tankSub = this.text("sub on-water", tx + tw / 2, ty + th / 2 + 34, "middle");
    part.tankTime = this.text("sub on-water time", tx + tw / 2, ty + th / 2 + 54, "middle");
    const title = this.named("Buffer", tx + tw / 2 - 18, ty, "middle", "title on-water");
    part.tank = svg("g", {}, svg("rect", { class: "tank", x: tx, y: ty, width: tw, height: th, rx: 10 }), part.fill, part.marks, title, part.tankBig, part.tankSub, part.tankTime);
    part.trainerSub = this.text("sub", rx + 18, ry + 50);
    part.trainerBig = this.text("big", rx + 18, ry + rh - 40);
    part.trainerMore = this.text("sub", rx + 18, ry + rh - 17);
    part.trainBar = svg("rect", { class: "slot busy", x: rx + 18, y: ry + 70, width: 0, height: 14, rx: 4 });
    const bar = svg("rect", { class: "slot", x: rx + 18, y: ry + 70, width: rw - 36, height: 14, rx: 4 });
    part.trainBarText = this.text("sub", rx + 18, ry + 104);
    part.trainer = svg("g", {}, svg("rect", { class: "box", x: rx, y: ry, width: rw, height: rh, rx: 14 }), this.named("Trainer", rx, ry), trainerTag, part.trainerSub,
      bar, part.trainBar, part.trainBarText, part.trainerBig, part.trainerMore);
    const arrow = svg("path", { class: "stream-arrow", d: shape.arrow, fill: "none", stroke: "currentColor", "stroke-width": 2.5, "stroke-linecap": "round", "stroke-linejoin": "round" });
    part.root = svg("svg", { class: "flow", viewBox: `0 0 ${shape.view.join(" ")}`, role: "img", "aria-labelledby": "flow-title flow-words" },
      pipes.generate, pipes.train, pipes.sync, arrow, part.engine, part.tank, part.trainer);
    return part.root;
  }

  named(words, x, y, anchor = "start", className = "title") {
    const node = this.text(className, x + 18, y + 28, anchor);
    node.textContent = words;
    return node;
  }

  drawSlots(total) {
    if (total === this.slotCount) return;
    this.slotCount = total;
    const [x, y, width] = this.shape.engine;
    const shown = Math.min(total || 0, SLOTS_DRAWN);
    const columns = Math.max(16, Math.ceil(shown / (shown > 64 ? 4 : 2)));
    const pitch = Math.min(18, (width - 36) / columns);
    const size = pitch * 0.78;
    this.cells = Array.from({ length: shown }, (_, index) =>
      svg("rect", { class: "slot", x: x + 18 + (index % columns) * pitch, y: y + 66 + Math.floor(index / columns) * (pitch + 2), width: size, height: size, rx: 2 }));
    this.part.slots.replaceChildren(...this.cells);
  }

  drawTank(depth, capacity) {
    const [x, y, width, height] = this.shape.tank;
    // An unbounded buffer has no rim: it is drawn against the most it has held.
    this.deepest = Math.max(this.deepest ?? 1, depth);
    const share = Math.min(1, depth / (capacity || this.deepest));
    setAttribute(this.part.fill, "y", y + height - 2 - share * (height - 4));
    setAttribute(this.part.fill, "height", share * (height - 4));
    if (this.marked === `${capacity}/${width}`) return;
    this.marked = `${capacity}/${width}`;
    const steps = capacity && capacity <= 32 ? capacity : 8;
    this.part.marks.replaceChildren(...Array.from({ length: steps - 1 }, (_, index) => {
      const level = y + height - ((index + 1) / steps) * height;
      return svg("line", { class: "mark", x1: x + width - 16, x2: x + width - 4, y1: level, y2: level });
    }));
  }

  update() {
    const { state, run } = this.store;
    const active = run && ["running", "stopping"].includes(run.state);
    const live = Boolean(active && state);
    this.part.root.classList.toggle("moving", live);
    const flow = state?.flow || {};
    const buffer = state?.buffer || {};
    this.drawSlots(flow.slots ?? 0);
    this.cells?.forEach((cell, index) => {
      const busy = flow.slots > SLOTS_DRAWN ? index < (flow.running / flow.slots) * SLOTS_DRAWN : index < flow.running;
      cell.classList.toggle("busy", Boolean(live && busy));
    });
    this.drawTank(buffer.depth ?? 0, buffer.capacity || 0);
    this.words(state, flow, buffer);
    this.smooth(flow);
    setText(this.part.tankTime, live ? outlook(buffer, this.into, this.out, this.store.groupSize) : "");
    const paused = run?.state === "paused";
    this.part.root.classList.toggle("paused", paused);
    if (state && (isOver(run) || paused)) this.rest(buffer, paused ? "paused" : "at rest");
    this.edges(live, flow);
    this.pulse();
  }

  smooth(flow) {
    const { state } = this.store;
    if (!state || state.seq === this.ratesOf) return;
    this.ratesOf = state.seq;
    // In the past each state stands alone: what came before it on the page was of another time.
    const alone = inPast(this.store) || this.wasPast;
    this.wasPast = inPast(this.store);
    const ease = (before, now) => (typeof now !== "number" ? (alone ? undefined : before) : alone || before === undefined ? now : before + 0.25 * (now - before));
    this.into = ease(this.into, flow.generate_samples_per_s);
    this.out = ease(this.out, flow.train_samples_per_s);
  }

  words(state, flow, buffer) {
    const { part, store } = this;
    const versions = Object.values(flow.versions || {});
    const known = state !== null;
    setText(part.engineVersion, versions.length ? `v${Math.min(...versions)}${Math.min(...versions) === Math.max(...versions) ? "" : `–${Math.max(...versions)}`}` : "–");
    setText(part.trainerVersion, known ? `v${state.version}` : "–");
    setText(part.engineSub, known ? `${count(flow.running)} of ${count(flow.slots)} slots busy, ${count(flow.waiting)} waiting` : "no data yet");
    setText(part.engineBig, known ? rate(flow.generate_tokens_per_s, "tokens/s") : "");
    setText(part.engineMore, known ? `${count(flow.in_flight)} samples in flight` : "");
    setText(part.tankBig, known ? (buffer.capacity ? `${count(buffer.depth)} / ${count(buffer.capacity)}` : count(buffer.depth)) : "–");
    setText(part.tankSub, known ? waiting(buffer) : "no data yet");
    setText(part.trainerSub, known ? `step ${count(state.step)} of ${count(state.steps_total ?? store.run?.steps_total)}` : "no data yet");
    const train = store.latest.get("time/train_s");
    const waited = store.latest.get("time/wait_s");
    const whole = (train ?? 0) + (waited ?? 0);
    setAttribute(part.trainBar, "width", whole ? ((this.shape.trainer[2] - 36) * train) / whole : 0);
    setText(part.trainBarText, whole ? `last step: ${seconds(train)} training, ${seconds(waited)} waiting` : "");
    setText(part.trainerBig, known ? rate(flow.train_samples_per_s, "samples/s") : "");
    const norm = store.latest.get("loss/grad_norm");
    setText(part.trainerMore, norm === undefined ? "" : `gradient norm ${short(norm)}`);
    setText(part.generateLabel, known ? rate(flow.generate_samples_per_s, "samples/s") : "");
    setText(part.trainLabel, known ? rate(flow.train_samples_per_s, "samples/s") : "");
    const sync = state?.sync || {};
    const last = store.syncs[0];
    const said = [last ? `v${last.version}` : null, `latency ${seconds(sync.last_latency_s)}`, `pause ${seconds(sync.last_pause_s)}`, last?.bytes ? bytes(last.bytes) : null];
    const brief = `Sync ${last ? `v${last.version} · ` : ""}${seconds(sync.last_latency_s)} · pause ${seconds(sync.last_pause_s)}`;
    const sentence = this.shape === NARROW ? brief : `Weight sync: ${said.filter(Boolean).join(" · ")}`;
    setText(part.syncLabel, sync.count ? sentence : "Weight sync");
  }

  // A run that is over has no rates of the moment: the pools rest, and what is shown is the average of the whole attempt.
  rest(buffer, word) {
    const { part, store } = this;
    const mean = average(store);
    const words = mean === null ? "–" : `${short(mean)} samples/s`;
    setText(part.engineSub, word);
    setText(part.engineBig, "–");
    setText(part.engineMore, "");
    setText(part.tankSub, buffer.depth ? `${buffer.unit || "group"}s ${word === "paused" ? "held" : "left"}` : "empty");
    setText(part.trainerBig, words);
    setText(part.trainerMore, mean === null ? "" : "trained, average of the attempt");
    setText(part.trainBarText, word);
    setAttribute(part.trainBar, "width", 0);
    setText(part.generateLabel, "–");
    setText(part.trainLabel, "–");
  }

  edges(live, flow) {
    const { part } = this;
    const held = live ? HELD[flow.throttle] : undefined;
    const speeds = { generate: flow.generate_samples_per_s, train: flow.train_samples_per_s, sync: Date.now() - this.lastSync < 1200 ? 1 : 0 };
    for (const name of ["generate", "train", "sync"]) {
      part[name].classList.toggle("held", held?.[0] === name);
      part[`${name}Stream`].classList.toggle("on", live && speeds[name] > 0);
      part[`${name}Stream`].classList.toggle("slow", speeds[name] < 2);
      part[`${name}Note`].setAttribute("class", held?.[0] === name ? "warn-text" : "sub");
      setText(part[`${name}Note`], held?.[0] === name ? this.fitting(held[1]) : "");
    }
    part.engine.classList.toggle("held", held?.[0] === "generate");
    part.tank.classList.toggle("held", flow.throttle === "buffer_full" && live);
    part.trainer.classList.toggle("held", held?.[0] === "train");
    this.say(live, held);
  }

  // Between the boxes there is room for a few words; the whole sentence stands in the card's head.
  fitting(sentence) {
    return this.shape === WIDE && !sentence.startsWith("sync") ? sentence.split(":")[0] : sentence;
  }

  say(live, held) {
    const { state, run } = this.store;
    let words = "No data yet.";
    if (run?.state === "paused") words = "Paused: the run holds at the end of a step, nothing is generated or trained until it goes on.";
    else if (state && !live) words = isOver(run) ? "The run is over and both pools are at rest." : "No data yet.";
    else if (state && held) words = `Held back now: ${held[1]}.`;
    else if (state) words = "Nothing holds the flow back.";
    setText(byId("flow-words"), words);
  }

  pulse() {
    const version = this.store.syncs[0]?.version;
    if (version === undefined || version === this.pulsed) return;
    const first = this.pulsed === undefined;
    this.pulsed = version;
    if (first) return;
    this.lastSync = Date.now();
    this.part.halo.classList.remove("go");
    requestAnimationFrame(() => this.part.halo.classList.add("go"));
    setTimeout(() => this.update(), 1300);
  }
}

export const swatch = (className) => el("i", { class: `swatch ${className}`, "aria-hidden": "true" });
