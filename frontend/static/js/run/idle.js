// The idle ledger: every reserved second of every lane under one cause, in seconds, shares, device-hours and money. It sums to wall time.
import { fixed, percent, seconds } from "../format.js";
import { CAUSES, WAITING, colorOf, nameOf, order } from "./causes.js";
import { byId, el } from "./dom.js";
import { swatch } from "./flow.js";
import { barOf, noneYet, verdict } from "./ledgers.js";

const MOST_LANES = 8; // more are summed by pool
const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

function hours(value) {
  const n = value / 3600;
  return n >= 100 ? fixed(n, 0) : n >= 1 ? fixed(n, 2) : fixed(n, 4);
}

// {lane: {cause: seconds}} of one attempt or of several together.
function added(ledgers) {
  const lanes = {};
  for (const { lanes: mine } of ledgers) {
    for (const [lane, spent] of Object.entries(mine)) {
      lanes[lane] ??= {};
      for (const [cause, value] of Object.entries(spent)) lanes[lane][cause] = (lanes[lane][cause] || 0) + value;
    }
  }
  return lanes;
}

export class IdleLedger {
  constructor(store) {
    this.store = store;
    this.chosen = "now";
    this.picker = byId("ledger-attempt");
    this.picker.addEventListener("change", () => {
      this.chosen = this.picker.value;
      this.draw(this.data);
    });
  }

  // `data` is the timeline's answer, or null before it came: it holds the price and what earlier attempts spent.
  draw(data) {
    this.data = data || this.data;
    const time = this.store.state?.time;
    const current = { attempt: this.store.attempt?.number, wall_s: time?.wall_s, lanes: time?.lanes };
    const earlier = (this.data?.ledgers || []).filter((ledger) => ledger.attempt < (current.attempt ?? 0));
    this.offer(earlier, current);
    const asked = this.chosen === "all" ? [...earlier, current] : this.chosen === "now" ? [current] : earlier.filter((ledger) => String(ledger.attempt) === this.chosen);
    const known = asked.filter((ledger) => ledger.lanes && Object.keys(ledger.lanes).length);
    if (!known.length) {
      byId("time-check").replaceChildren();
      return noneYet("time-ledger");
    }
    return this.show(added(known), sum(known.map((ledger) => ledger.wall_s)));
  }

  offer(earlier, current) {
    const key = earlier.map((ledger) => ledger.attempt).join();
    if (key === this.offered) return;
    this.offered = key;
    this.picker.hidden = !earlier.length;
    const rows = [["now", `attempt ${current.attempt}, current`], ...earlier.map((ledger) => [String(ledger.attempt), `attempt ${ledger.attempt}`]), ["all", "all attempts together"]];
    this.picker.replaceChildren(...rows.map(([value, words]) => el("option", { value }, words)));
    this.picker.value = this.chosen;
  }

  show(lanes, wall) {
    const names = Object.keys(lanes).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const causes = [...new Set(names.flatMap((lane) => Object.keys(lanes[lane])))].filter((cause) => names.some((lane) => lanes[lane][cause] > 0)).sort(order);
    const whole = sum(names.map((lane) => sum(Object.values(lanes[lane]))));
    const bars = names.slice(0, 64).map((lane) => this.lane(lane, lanes[lane], causes));
    byId("time-ledger").replaceChildren(this.headline(lanes, names, whole), ...bars, this.table(this.pools(lanes, names), causes, whole, wall));
    const worst = Math.max(...names.map((lane) => Math.abs(sum(Object.values(lanes[lane])) - wall)));
    const holds = worst <= Math.max(0.01 * wall, 0.05);
    verdict(byId("time-check"), holds, holds ? `every lane sums to ${seconds(wall)}` : `a lane misses wall time by ${seconds(worst)}`);
  }

  money(spent) {
    const price = this.data?.price;
    if (!price) return null;
    const amount = (spent / 3600) * price.per_device_hour;
    return `${amount >= 100 ? fixed(amount, 0) : fixed(amount, amount >= 1 ? 2 : 4)} ${price.currency}`;
  }

  headline(lanes, names, whole) {
    const idle = sum(names.map((lane) => sum(WAITING.map((cause) => lanes[lane][cause]))));
    const cost = this.money(idle);
    return el("p", { class: "idle-line" }, "Reserved and not at work: ", el("strong", {}, percent(whole ? idle / whole : 0, 1)), ` of ${hours(whole)} device-hours`,
      cost ? [", ", el("strong", {}, cost), ` of ${this.money(whole)}`] : "", ". ", cost ? "" : this.noPrice());
  }

  noPrice() {
    const where = byId("time-ledger").dataset.price;
    return el("span", { class: "note" }, "No money is shown: the cluster has no price of a device-hour. ", where ? el("a", { href: where }, "Set it at the cluster") : "An administrator sets it at the cluster.");
  }

  lane(lane, spent, causes) {
    const total = sum(Object.values(spent));
    const said = causes.filter((cause) => spent[cause] > 0);
    const parts = said.map((cause) => [colorOf(cause), spent[cause], `${nameOf(cause)}: ${seconds(spent[cause])}, ${percent(spent[cause] / total, 1)}`]);
    const label = `${lane}: ${said.map((cause) => `${nameOf(cause)} ${percent(spent[cause] / total)}`).join(", ")}`;
    return el("div", { class: "lane" }, el("div", { class: "lane-head" }, el("strong", {}, lane), el("span", { class: "note" }, seconds(total))), barOf(parts, total || 1, label));
  }

  // Many lanes are told by pool: generator/0 .. generator/63 as one column.
  pools(lanes, names) {
    if (names.length <= MOST_LANES) return names.map((lane) => [lane, lanes[lane], 1]);
    const found = new Map();
    for (const lane of names) {
      const pool = lane.split("/")[0];
      found.set(pool, [...(found.get(pool) || []), { lanes: { [pool]: lanes[lane] } }]);
    }
    return [...found].map(([pool, rows]) => [`${pool} × ${rows.length}`, added(rows)[pool], rows.length]);
  }

  table(columns, causes, whole, wall) {
    const money = Boolean(this.data?.price);
    const cell = (value, share) => el("td", { class: "number" }, value ? seconds(value) : "–", el("span", { class: "part" }, value ? percent(share, 1) : ""));
    const row = (cause) => {
      const all = sum(columns.map(([, spent]) => spent[cause]));
      return el("tr", {}, el("th", { scope: "row" }, swatch(colorOf(cause)), nameOf(cause)), columns.map(([, spent, lanes]) => cell(spent[cause], spent[cause] / (wall * lanes))), cell(all, all / whole),
        el("td", { class: "number" }, hours(all)), money ? el("td", { class: "number" }, this.money(all)) : null);
    };
    const sums = columns.map(([, spent]) => el("td", { class: "number" }, seconds(sum(Object.values(spent))), el("span", { class: "part" })));
    const last = el("tr", { class: "sum" }, el("th", { scope: "row" }, "sum"), sums, el("td", { class: "number" }, seconds(whole), el("span", { class: "part" })), el("td", { class: "number" }, hours(whole)), money ? el("td", { class: "number" }, this.money(whole)) : null);
    const heads = ["Cause", ...columns.map(([name]) => name), "all lanes", "device-hours", ...(money ? ["money"] : [])];
    return el("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": "Time by lane and cause" }, el("table", { class: "time-table" },
      el("thead", {}, el("tr", {}, heads.map((name, index) => el("th", { scope: "col", class: index ? "number" : null }, name)))), el("tbody", {}, CAUSES.filter((cause) => causes.includes(cause)).concat(causes.filter((cause) => !CAUSES.includes(cause))).map(row), last)));
  }
}
