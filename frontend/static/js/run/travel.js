// The time bar: drag it, step through it or play it, and every panel shows the run as it was then. `?t=` is the permalink.
import { clock, duration, fixed } from "../format.js";
import { byId, el, setAttribute, setText, svg } from "./dom.js";
import { inPast, showPast, showPresent } from "./past.js";
import { param, setParams } from "./url.js";

const WIDTH = 1000;
const LANES = { attempt: [3, 8], state: [1, 11], evaluation: [13, 20], checkpoint: [21, 28], sync: [30, 36], step: [37, 45], alert: [12, 45] };
const NAMES = { step: "step", sync: "sync", evaluation: "evaluation", checkpoint: "checkpoint", state: "state", alert: "alert" };
const JUMPS = ["evaluation", "checkpoint", "state", "alert"];
const REFRESH_MS = 15000;
const TICK_MS = 250;

const said = {
  sync: (mark) => `sync of version ${mark[1] ?? "?"}`,
  evaluation: (mark) => `evaluation at step ${mark[2]}: ${typeof mark[1] === "number" ? fixed(mark[1], 3) : "no mean"}`,
  checkpoint: (mark) => `checkpoint of step ${mark[1] ?? mark[2]}`,
  state: (mark) => `the run became ${mark[1]}`,
  alert: (mark) => `alert: ${mark[1]}`,
};

// Rounded up: what happened at this very moment is in it.
const upTo = (t, digits) => (Math.ceil(t * 10 ** digits) / 10 ** digits).toFixed(digits);

export class Travel {
  // changed() draws every panel again.
  constructor({ base, view, get, changed }) {
    Object.assign(this, { base, view, get, changed, axis: null, wanted: null, asking: false, playing: 0, turn: 0, alerts: [] });
    this.box = byId("travel");
    this.slider = byId("travel-axis");
    this.bind();
  }

  get present() {
    return Object.getPrototypeOf(this.view);
  }

  get end() {
    const over = this.axis.over;
    return over ? this.axis.end : Math.max(this.axis.end, this.present.state?.t ?? 0);
  }

  get at() {
    return this.wanted ?? this.end;
  }

  // Called once the run is loaded, and again now and then while it goes on.
  async load() {
    try {
      const [axis, alerts] = await Promise.all([this.get("axis.json"), this.get("alerts.json").catch(() => ({ alerts: [] }))]);
      this.axis = axis;
      this.alerts = alerts.alerts || [];
      this.drawAlerts();
    } catch (error) {
      console.warn("The time bar could not be loaded:", error.message);
      this.box.hidden = !this.axis;
      return;
    } finally {
      this.box.classList.remove("awaited");
    }
    this.box.hidden = this.axis.start === null || this.end - this.axis.start < 1;
    if (this.box.hidden) return;
    this.drawMarks();
    this.drawPlace();
    if (!this.begun) {
      this.begun = true;
      const given = Number(param("t"));
      if (param("t") && Number.isFinite(given)) this.go(given);
    }
  }

  marks(kind) {
    if (kind === "alert") return this.alerts.map((alert) => [alert.t, alert.title]);
    return this.axis.marks[kind] || [];
  }

  x(t) {
    return (WIDTH * (t - this.axis.start)) / Math.max(1e-6, this.end - this.axis.start);
  }

  drawMarks() {
    const parts = [];
    for (const attempt of this.axis.attempts) {
      const [top, bottom] = LANES.attempt;
      const last = attempt === this.axis.attempts[this.axis.attempts.length - 1];
      const width = Math.max(2, this.x(last ? this.end : attempt.end) - this.x(attempt.start));
      parts.push(svg("rect", { class: "travel-attempt", x: this.x(attempt.start), y: top, width, height: bottom - top, rx: 2 }, svg("title", {}, `attempt ${attempt.number}`)));
    }
    for (const kind of Object.keys(NAMES)) {
      const [top, bottom] = LANES[kind];
      for (const mark of this.marks(kind)) {
        if (mark[0] < this.axis.start - 1 || mark[0] > this.end + 1) continue;
        const x = this.x(mark[0]);
        const words = said[kind] ? `${clock(mark[0])} ${said[kind](mark)}` : `step ${mark[1]}`;
        parts.push(svg("line", { class: `travel-mark travel-${kind}`, x1: x, x2: x, y1: top, y2: bottom }, svg("title", {}, words)));
      }
    }
    byId("travel-marks").replaceChildren(...parts);
  }

  // The banner: what is open now, or was open at the second shown.
  drawAlerts() {
    const t = this.wanted;
    const open = this.alerts.filter((alert) => (t === null ? alert.open : alert.t <= t && (!alert.resolved || Date.parse(alert.resolved) / 1000 > t)));
    const key = open.map((alert) => alert.id).join();
    const list = byId("run-alerts");
    if (list.dataset.shown === key) return;
    list.dataset.shown = key;
    list.replaceChildren(...open.slice(-4).reverse().map((alert) => {
      const then = el("button", { class: "button quiet small end", type: "button" }, "See the run then");
      then.addEventListener("click", () => this.go(alert.t));
      return el("li", { "data-severity": alert.severity }, el("strong", {}, alert.title), el("span", { class: "note" }, `${alert.rule}, since ${clock(alert.t)}${alert.held_run ? "; the run was asked to pause" : ""}`), then);
    }));
  }

  stepAt(t) {
    if (inPast(this.view)) return this.view.state?.step ?? null;
    let found = null;
    for (const [at, step] of this.marks("step")) if (at <= t) found = step;
    return found;
  }

  drawPlace() {
    const past = this.wanted !== null;
    this.drawAlerts();
    const share = (this.at - this.axis.start) / Math.max(1e-6, this.end - this.axis.start);
    byId("travel-handle").style.left = `${100 * Math.min(1, Math.max(0, share))}%`;
    byId("travel-gone").style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    const step = this.stepAt(this.at);
    const words = `${clock(this.at)}, ${duration(this.at - this.axis.start)} in${step === null ? "" : `, step ${step}`}`;
    setText(byId("travel-now"), past ? words : `${this.axis.over ? "the end" : "now"}, ${duration(this.at - this.axis.start)} in`);
    setAttribute(this.slider, "aria-valuemin", 0);
    setAttribute(this.slider, "aria-valuemax", Math.round(this.end - this.axis.start));
    setAttribute(this.slider, "aria-valuenow", Math.round(this.at - this.axis.start));
    setAttribute(this.slider, "aria-valuetext", past ? words : `${words}, live`);
    this.box.classList.toggle("past", past);
    document.body.classList.toggle("in-past", past);
    // Buttons act on the present: in the past they rest.
    byId("controls").inert = past;
    byId("travel-live").disabled = !past;
    const pill = byId("travel-pill");
    pill.hidden = !past;
    setText(byId("travel-pill-words"), `The run as it was at ${clock(this.at)}`);
    setAttribute(byId("travel-play"), "aria-pressed", String(Boolean(this.playing)));
    setAttribute(byId("travel-play"), "aria-label", this.playing ? "Hold" : "Play from here");
    byId("travel-play").dataset.playing = String(Boolean(this.playing));
  }

  // To a second, clamped to the run; the last one asked for wins while an answer is on its way.
  go(t) {
    if (!this.axis || this.box.hidden) return;
    this.wanted = Math.min(this.end, Math.max(this.axis.start, t));
    this.drawPlace();
    clearTimeout(this.linking);
    this.linking = setTimeout(() => setParams({ t: this.wanted === null ? null : upTo(this.wanted, 1) }), 300);
    this.ask();
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      while (this.wanted !== null && this.shown !== this.wanted) {
        const [t, turn] = [this.wanted, this.turn];
        const then = await this.get(`then.json?t=${upTo(t, 3)}`);
        if (turn !== this.turn) continue; // the reader has been back in the present since
        this.shown = t;
        showPast(this.view, then, this.axis.attempts.map((row) => row.start));
        this.drawPlace();
        this.changed();
      }
      setText(byId("travel-problem"), "");
    } catch (error) {
      this.wanted = inPast(this.view) ? this.shown : null; // the bar says what the panels show
      this.stop();
      setText(byId("travel-problem"), `That second could not be read: ${error.message}`);
    } finally {
      this.asking = false;
    }
  }

  live() {
    this.stop();
    clearTimeout(this.linking);
    this.turn += 1;
    this.wanted = this.shown = null;
    showPresent(this.view);
    setParams({ t: null });
    this.drawPlace();
    this.changed();
  }

  play() {
    if (this.playing) return this.stop();
    if (this.wanted === null || this.wanted >= this.end) this.go(this.axis.start);
    this.playing = setInterval(() => {
      if (this.asking || document.hidden) return;
      const next = this.wanted + (Number(byId("travel-speed").value) * TICK_MS) / 1000;
      if (next >= this.end) {
        this.go(this.end);
        this.stop();
      } else this.go(next);
    }, TICK_MS);
    return this.drawPlace();
  }

  stop() {
    clearInterval(this.playing);
    this.playing = 0;
    if (this.axis && !this.box.hidden) this.drawPlace();
  }

  jump(direction, kinds = JUMPS) {
    const times = kinds.flatMap((kind) => this.marks(kind).map((mark) => mark[0])).sort((a, b) => a - b);
    const next = direction > 0 ? times.find((t) => t > this.at + 0.05) : times.findLast((t) => t < this.at - 0.05);
    if (next !== undefined) this.go(next);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && event.shiftKey) this.jump(by, ["step"]);
    else if (by) this.go(this.at + by);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") this.jump(event.key === "ArrowUp" ? 1 : -1);
    else if (event.key === "PageUp") this.go(this.at + 60);
    else if (event.key === "PageDown") this.go(this.at - 60);
    else if (event.key === "Home") this.go(this.axis.start);
    else if (event.key === "End") this.live();
    else if (event.key === " ") this.play();
    else return;
    event.preventDefault();
  }

  bind() {
    const { slider } = this;
    const timeOf = (event) => {
      const edge = slider.getBoundingClientRect();
      return this.axis.start + ((event.clientX - edge.left) / Math.max(1, edge.width)) * (this.end - this.axis.start);
    };
    slider.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.stop();
      slider.setPointerCapture(event.pointerId);
      this.dragging = true;
      this.go(timeOf(event));
    });
    slider.addEventListener("pointermove", (event) => this.dragging && this.go(timeOf(event)));
    for (const name of ["pointerup", "pointercancel"]) slider.addEventListener(name, () => (this.dragging = false));
    slider.addEventListener("keydown", (event) => this.key(event));
    byId("travel-play").addEventListener("click", () => this.play());
    byId("travel-back").addEventListener("click", () => this.jump(-1));
    byId("travel-next").addEventListener("click", () => this.jump(1));
    for (const id of ["travel-live", "travel-pill-live"]) byId(id).addEventListener("click", () => this.live());
    document.addEventListener("keydown", (event) => {
      if (this.box.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      if (event.key === "h") slider.focus();
      if (event.key === "Escape" && this.wanted !== null) this.live();
    });
    addEventListener("popstate", () => {
      const given = param("t");
      if (given === null && this.wanted !== null) this.live();
      else if (given && Number.isFinite(Number(given)) && (this.wanted === null || upTo(this.wanted, 1) !== given)) this.go(Number(given));
    });
    setInterval(() => {
      if (document.hidden || !this.axis || this.axis.over || this.wanted !== null) return;
      this.load();
    }, REFRESH_MS);
    setInterval(() => !document.hidden && this.axis && !this.box.hidden && this.wanted === null && this.drawPlace(), 1000);
  }
}
