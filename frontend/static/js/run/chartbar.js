// The bar above the charts: axis, smoothing, scale, seeds, the step slider. It stands in whichever tab shows charts.
import { byId, setAttribute, setText } from "./dom.js";
import { hasAxis } from "./plot.js";
import { activeTab } from "./tabs.js";
import { AXES, change, view } from "./view.js";

const SCALES = { none: [0, 0, 1], ema: [0, 0.99, 0.01], mean: [2, 100, 1] };

export class ChartBar {
  constructor(store, bands) {
    Object.assign(this, { store, bands });
    this.bar = byId("chart-bar");
    this.axes = [...this.bar.querySelectorAll("[data-axis]")];
    this.kind = byId("smooth-kind");
    this.amount = byId("smooth-amount");
    this.log = byId("log-scale");
    this.seeds = byId("seeds-band");
    this.slider = byId("step-slider");
    for (const button of this.axes) button.addEventListener("click", () => change({ axis: button.dataset.axis }));
    this.kind.addEventListener("change", () => change({ smooth: { kind: this.kind.value, amount: { ema: 0.6, mean: 10 }[this.kind.value] ?? 0 } }));
    this.amount.addEventListener("input", () => change({ smooth: { ...view.smooth, amount: Number(this.amount.value) } }));
    // A range of y is told in the scale's own numbers: it does not outlive the scale
    this.log.addEventListener("click", () => change({ log: !view.log, own: new Map([...view.own].map(([name, mine]) => [name, mine.log === undefined ? { ...mine, y: null } : mine])) }));
    this.seeds.addEventListener("click", () => change({ seeds: !view.seeds }));
    byId("reset-zoom").addEventListener("click", () => change({ zoom: null, own: new Map([...view.own].map(([name, mine]) => [name, { ...mine, y: null }])) }));
    this.slider.addEventListener("input", () => change({ step: Number(this.slider.value) }));
    byId("step-none").addEventListener("click", () => change({ step: null }));
    document.addEventListener("headrace:view", () => this.show());
    document.addEventListener("headrace:tab", () => this.place());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "x" || event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
      const usable = Object.keys(AXES).filter((axis) => hasAxis(store, axis));
      change({ axis: usable[(usable.indexOf(view.axis) + 1) % usable.length] });
    });
    this.place();
    this.show();
  }

  place() {
    const slot = document.querySelector(`#panel-${activeTab()} [data-chart-bar]`);
    if (slot && this.bar.parentElement !== slot) slot.append(this.bar);
    this.bar.hidden = !slot;
  }

  show() {
    for (const button of this.axes) {
      setAttribute(button, "aria-pressed", button.dataset.axis === view.axis);
      button.disabled = !hasAxis(this.store, button.dataset.axis);
      button.title = button.disabled ? "The run has told no such count yet" : "";
    }
    this.kind.value = view.smooth.kind;
    const [low, high, step] = SCALES[view.smooth.kind];
    Object.assign(this.amount, { min: low, max: high, step });
    this.amount.value = view.smooth.amount;
    this.amount.disabled = view.smooth.kind === "none";
    setText(byId("smooth-words"), view.smooth.kind === "none" ? "" : view.smooth.kind === "ema" ? view.smooth.amount.toFixed(2) : `${view.smooth.amount} points`);
    setAttribute(this.log, "aria-pressed", view.log);
    setAttribute(this.seeds, "aria-pressed", view.seeds);
    const latest = Math.max(this.store.state?.step ?? 0, this.store.finished?.step ?? 0, 1);
    this.slider.max = latest;
    this.slider.value = view.step ?? latest;
    this.slider.setAttribute("aria-valuetext", view.step === null ? "no step chosen" : `step ${view.step}`);
    setText(byId("step-words"), view.step === null ? "latest" : `step ${view.step}`);
    byId("step-none").hidden = view.step === null;
  }

  // Seeds are offered where there are others to compare with.
  async offerSeeds() {
    const runs = await this.bands.siblings().catch(() => []);
    this.seeds.hidden = !runs.length;
    setText(this.seeds, `Band of ${runs.length + 1} seeds`);
    this.seeds.title = runs.map((run) => `${run.name}, seed ${run.seed}, ${run.state}`).join("\n");
    if (view.seeds && runs.length) this.bands.changed();
  }
}
