// Columns of series: whole ones in the store, finer ones of the zoomed stretch beside it. The server decimates both; what is new comes live.
import { takeMore, columnsFrom } from "./store.js";
import { asItWas } from "./past.js";
import { asked } from "./plot.js";
import { view } from "./view.js";

const MOST = 64;
const BUCKETS = 1000;

export class Source {
  // present takes what is fetched, store is what is shown now or was then; changed() is called when columns have come.
  constructor(present, store, changed) {
    Object.assign(this, { present, store, changed, asking: new Set(), fine: new Map(), fineKey: "", queued: new Set(), timer: 0 });
    document.addEventListener("headrace:view", () => this.zoomChanged());
  }

  key() {
    return view.zoom ? `${view.axis}:${view.zoom.join(":")}` : "";
  }

  zoomChanged() {
    if (this.key() === this.fineKey) return;
    this.fineKey = this.key();
    this.fine.clear();
  }

  // Called with the names about to be drawn: what is not here is fetched, many in one request.
  want(names) {
    for (const name of names) {
      const known = this.store.whole.has(name); // of a name without data that is all there is to know
      const fine = !this.fineKey || this.fine.has(name) || !this.coarse(name);
      if ((!known || !fine) && !this.asking.has(name)) this.queued.add(name);
    }
    if (this.queued.size && !this.timer) this.timer = setTimeout(() => this.fetchQueued(), 60);
  }

  coarse(name) {
    return this.store.series.get(name)?.decimated ?? false;
  }

  async fetchQueued() {
    this.timer = 0;
    const names = [...this.queued].slice(0, MOST);
    for (const name of names) {
      this.queued.delete(name);
      this.asking.add(name);
    }
    if (this.queued.size) this.timer = setTimeout(() => this.fetchQueued(), 60);
    try {
      const fresh = names.filter((name) => !this.store.whole.has(name));
      if (fresh.length) takeMore(this.present, await this.ask(fresh, {}), fresh);
      const key = this.key();
      const range = view.zoom ? asked(this.store, view.axis, view.zoom) : null;
      const coarse = range ? names.filter((name) => this.coarse(name)) : [];
      if (coarse.length) {
        const data = await this.ask(coarse, range);
        if (key === this.fineKey) for (const name of coarse) this.fine.set(name, { columns: columnsFrom(data.series[name], data.through_seq), through: data.through_seq });
      }
      if (fresh.length || coarse.length) this.changed(); // drawing asks again: without news it must not be answered
    } catch (error) {
      console.warn("Series could not be loaded:", error.message);
    } finally {
      for (const name of names) this.asking.delete(name);
    }
  }

  ask(names, range) {
    return this.store.get(`series.json?${new URLSearchParams({ names: names.join(","), buckets: BUCKETS, ...range })}`);
  }

  // The columns to draw, or undefined; cut at the moment that time travel shows.
  columns(name) {
    const whole = this.store.series.get(name);
    const fine = this.fine.get(name);
    const found = fine ? joined(fine, whole) : whole;
    return asItWas(found, this.store);
  }
}

const KEYS = ["step", "t", "value", "faint", "low", "high", "bad", "seq"];
export function picked(columns, keep) {
  const out = { decimated: columns.decimated };
  for (const key of KEYS) out[key] = columns[key].filter((_, index) => keep(index));
  return out;
}

function joined({ columns, through }, whole) {
  let first = whole?.seq.length ?? 0;
  while (first > 0 && whole.seq[first - 1] > through) first -= 1;
  if (!whole || first === whole.seq.length) return columns;
  const out = { decimated: columns.decimated };
  for (const key of KEYS) out[key] = columns[key].concat(whole[key].slice(first));
  return out;
}
