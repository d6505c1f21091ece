// The log's tail, with a level filter. Follows the end unless the reader scrolls away.
import { clock } from "../format.js";
import { byId, el } from "./dom.js";

const RANK = { debug: 0, info: 1, warning: 2, error: 3 };
const SHOWN = 400;

export class Log {
  constructor(store) {
    this.store = store;
    this.box = byId("log");
    this.level = byId("log-level");
    this.button = byId("log-follow");
    this.follow = true;
    this.setFollow(true);
    this.level.addEventListener("change", () => this.draw(true));
    this.button.addEventListener("click", () => {
      this.setFollow(!this.follow);
      this.draw(true);
    });
    this.box.addEventListener("scroll", () => {
      const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
      if (!atEnd && this.follow && !this.placing) this.setFollow(false);
    });
  }

  emptyWords() {
    if (this.lines().length) return "No line of this level.";
    return this.store.finished || this.store.shown ? "The attempt wrote no log lines." : "no data yet";
  }

  lines() {
    return this.store.shown ? this.store.shown.logs : this.store.logs;
  }

  setFollow(follow) {
    this.follow = follow;
    this.button.setAttribute("aria-pressed", String(follow));
    this.button.textContent = follow ? "Following" : "Follow";
  }

  draw(forced = false) {
    const least = RANK[this.level.value];
    const lines = this.lines().filter((line) => RANK[line.level] >= least).slice(-SHOWN);
    const last = lines.length ? lines[lines.length - 1].seq : 0;
    if (!forced && last === this.last && lines.length === this.count) return;
    this.last = last;
    this.count = lines.length;
    if (!lines.length) {
      this.box.replaceChildren(el("p", { class: "none" }, this.emptyWords()));
      return;
    }
    const place = this.box.scrollTop;
    this.placing = true;
    this.box.replaceChildren(...lines.map((line) => el("div", { class: "log-line", "data-level": line.level },
      el("time", { title: line.source || null }, clock(line.t)), el("span", { class: "level" }, line.level), el("span", { class: "text" }, line.message))));
    this.box.scrollTop = this.follow ? this.box.scrollHeight : place;
    requestAnimationFrame(() => (this.placing = false));
  }
}
