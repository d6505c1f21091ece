// After a resume: which attempt the log and the provenance are of. The current one is followed live, earlier ones are fetched once.
import { el } from "./dom.js";

export class Attempts {
  // changed() draws what depends on the choice.
  constructor(get, store, changed) {
    this.get = get;
    this.store = store;
    this.changed = changed;
    this.pickers = [...document.querySelectorAll("[data-attempts]")];
    for (const picker of this.pickers) picker.addEventListener("change", () => this.choose(Number(picker.value)));
  }

  draw() {
    const { attempts, attempt } = this.store;
    const key = `${attempts.map((row) => `${row.number} ${row.state}`)}`;
    if (key === this.drawn) return;
    this.drawn = key;
    for (const picker of this.pickers) {
      picker.hidden = attempts.length < 2;
      picker.replaceChildren(...attempts.map((row) => el("option", { value: row.number }, `attempt ${row.number}${row.number === attempt?.number ? ", current" : ""}`)));
      picker.value = String(this.store.shown?.number ?? attempt?.number ?? "");
    }
  }

  async choose(number) {
    for (const picker of this.pickers) picker.value = String(number);
    this.asked = number;
    if (number === this.store.attempt?.number) {
      this.store.shown = null;
      this.changed();
      return;
    }
    try {
      const [logs, first] = await Promise.all([this.get(`logs.json?attempt=${number}`), this.get(`events.json?attempt=${number}&after=0&limit=50`)]);
      if (this.asked !== number) return;
      const started = first.events.find((event) => event.kind === "started");
      this.store.shown = { number, logs: logs.logs, provenance: started ? { ...started.data.provenance, ...started.data } : {} };
      this.changed();
    } catch (error) {
      console.warn(`Attempt ${number} could not be loaded:`, error.message);
      this.choose(this.store.attempt.number);
    }
  }
}
