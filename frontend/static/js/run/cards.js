// A set of chart cards of which those in view are drawn. Also what the band over seeds is fetched by.
import { isOver } from "./head.js";
import { plotly } from "./plot.js";

const NAMES = 16;
const FRESH_MS = 60000; // a band of runs that go on is asked for again
const AGAIN_MS = 10000;

export class Bands {
  constructor(store, changed) {
    Object.assign(this, { store, changed, runs: null, known: new Map(), queued: new Set(), timer: 0 });
  }

  // The runs that differ from this one in the seed alone; asked once.
  async siblings() {
    if (this.runs === null) this.runs = (await this.store.get("seeds.json")).runs;
    return this.runs;
  }

  // The band, or null until it has come.
  of(name, axis) {
    const key = `${axis} ${name}`;
    const held = this.known.get(key);
    if (this.runs?.length && (!held || Date.now() > held.due)) {
      this.keep(key, held?.band, Infinity);
      this.queued.add(key);
      this.timer ||= setTimeout(() => this.fetchQueued(), 80);
    }
    return held?.band ?? null;
  }

  keep(key, band, due) {
    this.known.set(key, { band: band ?? null, due });
  }

  async fetchQueued() {
    this.timer = 0;
    const axis = [...this.queued][0].split(" ")[0];
    const keys = [...this.queued].filter((key) => key.startsWith(`${axis} `)).slice(0, NAMES);
    for (const key of keys) this.queued.delete(key);
    if (this.queued.size) this.timer = setTimeout(() => this.fetchQueued(), 80);
    const names = keys.map((key) => key.slice(axis.length + 1));
    try {
      const { bands } = await this.store.get(`seeds.json?${new URLSearchParams({ names: names.join(","), x: axis })}`);
      const due = isOver(this.store.run) ? Infinity : Date.now() + FRESH_MS;
      for (const name of names) this.keep(`${axis} ${name}`, bands[name], due);
      this.changed();
    } catch (error) {
      for (const key of keys) this.keep(key, this.known.get(key).band, Date.now() + AGAIN_MS);
      console.warn("The band over seeds could not be loaded:", error.message);
    }
  }
}

export class Cards {
  constructor() {
    this.cards = new Map();
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const card = entry.target.card;
        card.seen = entry.isIntersecting;
        if (card.seen && card.stale) this.drawOne(card);
      }
    }, { rootMargin: "150px" });
    document.addEventListener("themechange", () => this.draw());
    document.addEventListener("headrace:view", () => this.draw());
  }

  set(cards) {
    for (const card of this.cards.values()) if (!cards.includes(card)) this.watch.unobserve(card.plot);
    this.cards = new Map(cards.map((card) => [card.series.name, card]));
    for (const card of cards) {
      card.plot.card = card;
      this.watch.observe(card.plot);
    }
  }

  draw() {
    for (const card of this.cards.values()) {
      card.stale = true;
      if (card.seen) this.drawOne(card);
      else card.showPin();
    }
  }

  drawOne(card) {
    if (this.Plot) return card.draw(this.Plot);
    return plotly().then((found) => {
      this.Plot = found;
      if (card.seen) card.draw(found);
    });
  }
}

