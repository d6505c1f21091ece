// The Charts tab: every series of the run, by group, found by name, title or group; and the pinned ones on the overview.
import { byId, el, setText, throttled } from "./dom.js";
import { Cards } from "./cards.js";
import { ChartCard } from "./chart_card.js";
import { param, setParams } from "./url.js";
import { view } from "./view.js";

const GROUPS = { reward: "Reward", evaluation: "Held-out", loss: "Loss", staleness: "Staleness", flow: "Flow", buffer: "Buffer", sync: "Weight sync", throughput: "Throughput", time: "Time",
  engine: "Engines", samples: "Samples and tokens", system: "System" };
const A_GROUP = 40;
const order = (group) => (Object.keys(GROUPS).indexOf(group) + 100) % 100;
// System series are filed under time in the catalogue of older runs; a reader looks for them under their own name.
const groupOf = (series) => (series.name.startsWith("system/") ? "system" : series.name.startsWith("engine/") ? "engine" : series.group);

// The list of series, asked for once and again when a name is seen that it does not hold.
export class Catalogue {
  constructor(store) {
    Object.assign(this, { store, series: null, asked: 0 });
  }

  async load() {
    this.series = (await this.store.get("catalogue.json")).series.map((row) => ({ ...row, group: groupOf(row) }));
    return this.series;
  }

  async fresh() {
    const known = this.series && new Set(this.series.map((row) => row.name));
    const missing = !known || [...this.store.series.keys()].some((name) => !known.has(name));
    if (missing && Date.now() - this.asked > 5000) {
      this.asked = Date.now();
      await this.load();
    }
    return this.series;
  }
}

export class Pins {
  constructor(parts, catalogue) {
    Object.assign(this, { parts, catalogue, cards: new Cards(), made: new Map() });
    this.box = byId("pinned");
    document.addEventListener("headrace:view", ({ detail }) => (detail.changed.has("pins") || detail.changed.has("all")) && this.show());
  }

  async show() {
    if (view.pins.length) await this.catalogue.fresh();
    const rows = new Map((this.catalogue.series || []).map((row) => [row.name, row]));
    const cards = view.pins.filter((name) => rows.has(name)).map((name) => {
      if (!this.made.has(name)) this.made.set(name, new ChartCard(rows.get(name), this.parts));
      return this.made.get(name);
    });
    this.box.hidden = !cards.length;
    this.box.replaceChildren(...cards.map((card) => card.card));
    this.cards.set(cards);
    this.cards.draw();
  }
}

export class Explorer {
  constructor(parts, catalogue) {
    Object.assign(this, { parts, catalogue, cards: new Cards(), made: new Map(), opened: new Set() });
    this.box = byId("explorer");
    this.input = byId("series-search");
    this.input.value = param("find") || "";
    this.input.addEventListener("input", throttled(() => {
      setParams({ find: this.input.value.trim() });
      this.show();
    }, 120));
    this.redraw = throttled(() => this.cards.draw(), 400);
  }

  async open() {
    await this.catalogue.load();
    this.show();
  }

  async update() {
    const before = this.catalogue.series;
    if ((await this.catalogue.fresh()) !== before) this.show();
    else this.redraw();
  }

  matches(row, words) {
    const text = `${row.name} ${row.title} ${GROUPS[row.group] || row.group}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  show() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = this.catalogue.series || [];
    const found = all.filter((row) => this.matches(row, words));
    setText(byId("series-found"), all.length ? `${found.length} of ${all.length} series` : "");
    const groups = new Map();
    for (const row of found) groups.set(row.group, [...(groups.get(row.group) || []), row]);
    const shown = [];
    const sections = [...groups].sort(([a], [b]) => order(a) - order(b) || a.localeCompare(b)).map(([group, rows]) => this.section(group, rows, shown));
    this.box.replaceChildren(...(sections.length ? sections : [this.nothing(all.length)]));
    this.cards.set(shown);
    this.cards.draw();
  }

  nothing(any) {
    return el("p", { class: "card card-body none" }, any ? "No series matches. A name such as loss/entropy, a word of its title or a group finds it." : "No data yet: series appear here with the first events of the run.");
  }

  section(group, rows, shown) {
    const limit = this.opened.has(group) ? rows.length : A_GROUP;
    const first = [...rows].sort((a, b) => Number(b.overview) - Number(a.overview) || a.name.localeCompare(b.name, "en", { numeric: true })).slice(0, limit);
    const cards = first.map((row) => {
      if (!this.made.has(row.name)) this.made.set(row.name, new ChartCard(row, this.parts));
      return this.made.get(row.name);
    });
    shown.push(...cards);
    const title = GROUPS[group] || group;
    const more = el("button", { class: "button small", type: "button" }, `Show all ${rows.length}`);
    more.addEventListener("click", () => {
      this.opened.add(group);
      this.show();
    });
    return el("section", { class: "series-group", "aria-label": title }, el("div", { class: "section-bar" }, el("h3", {}, title), el("span", { class: "note" }, `${rows.length} series`), rows.length > limit ? more : null),
      el("div", { class: "charts dense" }, cards.map((card) => card.card)));
  }
}
