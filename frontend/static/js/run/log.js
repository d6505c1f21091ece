// The log: its end as it is written, further back on request, searched by the database. Lines are text and nothing else.
import { clock } from "../format.js";
import { byId, el } from "./dom.js";
import { param, setParams } from "./url.js";
import { marked, visible } from "./visible.js";

const RANK = { debug: 0, info: 1, warning: 2, error: 3 };
const PAGE = 400;
const KEPT = 4000;

export class Log {
  constructor(store) {
    Object.assign(this, { store, base: store.base, lines: [], older: null, newer: null, live: true, follow: true, turn: 0, sources: new Set() });
    this.box = byId("log");
    this.level = byId("log-level");
    this.source = byId("log-source");
    this.search = byId("log-search");
    this.level.value = param("l.level") || "info";
    this.search.value = param("l.q") || "";
    this.bind();
    this.setFollow(true);
  }

  bind() {
    let typing = 0;
    const ask = () => {
      setParams({ "l.level": this.level.value === "info" ? null : this.level.value, "l.q": this.search.value.trim() });
      this.load();
    };
    for (const field of [this.level, this.source]) field.addEventListener("change", ask);
    this.search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(ask, 300);
    });
    byId("log-follow").addEventListener("click", () => {
      this.setFollow(!this.follow);
      if (this.follow && !this.live) this.load();
      else this.show();
    });
    byId("log-wrap").addEventListener("click", (event) => {
      const wrapped = this.box.classList.toggle("nowrap");
      event.currentTarget.setAttribute("aria-pressed", String(!wrapped));
    });
    byId("log-copy").addEventListener("click", (event) => this.copy(event.currentTarget));
    byId("log-jump").addEventListener("submit", (event) => {
      event.preventDefault();
      this.jump(byId("log-time").value);
    });
    this.box.addEventListener("click", (event) => {
      if (event.target.closest("[data-older]")) this.back();
      if (event.target.closest("[data-newer]")) this.forward();
    });
    this.box.addEventListener("scroll", () => {
      const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
      if (!atEnd && this.follow && !this.placing) this.setFollow(false);
    });
  }

  shownAttempt() {
    return this.store.shown?.number ?? this.store.attempt?.number;
  }

  setFollow(follow) {
    this.follow = follow;
    const button = byId("log-follow");
    button.setAttribute("aria-pressed", String(follow));
    button.textContent = follow ? "Following" : "Follow";
  }

  async ask(place) {
    const wanted = { attempt: this.shownAttempt(), level: this.level.value, source: this.source.value, q: this.search.value.trim(), limit: PAGE, ...place };
    const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== undefined && value !== null && value !== ""));
    const reply = await fetch(`${this.base}logs.json?${query}`, { credentials: "same-origin" });
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    return reply.json();
  }

  // In the past the log ends with the last line there was then.
  end() {
    return this.store.until === undefined || this.store.until === null ? {} : { before: (this.store.logs.at(-1)?.seq ?? 0) + 1 };
  }

  place() {
    return `${this.shownAttempt()} ${this.store.until ?? ""}`;
  }

  async load(place = this.end()) {
    const turn = (this.turn += 1);
    const heard = this.store.attempt?.ingested_through || 0; // what comes while the answer is on its way is not in it
    byId("log-download").href = `${this.base}log.txt${this.shownAttempt() ? `?attempt=${this.shownAttempt()}` : ""}`;
    try {
      const found = await this.ask(place);
      if (turn !== this.turn) return;
      Object.assign(this, { lines: found.logs, older: found.older, newer: found.newer, live: found.newer === null && !Object.keys(place).length, loaded: this.place() });
      this.through = Math.max(this.live ? heard : 0, this.lines.at(-1)?.seq || 0);
      if (this.live) this.appendLive();
      this.show();
    } catch (error) {
      if (turn === this.turn) this.box.replaceChildren(el("p", { class: "none" }, `The log could not be fetched: ${error.message}.`));
    }
  }

  async back() {
    const found = await this.ask({ before: this.older });
    const height = this.box.scrollHeight;
    this.lines = [...found.logs, ...this.lines].slice(0, KEPT);
    this.older = found.older;
    this.setFollow(false);
    this.show();
    this.box.scrollTop += this.box.scrollHeight - height;
  }

  async forward() {
    const found = await this.ask({ after: this.newer ?? this.lines.at(-1)?.seq ?? 0 });
    this.lines = [...this.lines, ...found.logs].slice(-KEPT);
    this.newer = found.newer;
    if (found.newer === null && this.shownAttempt() === this.store.attempt?.number) {
      this.live = true;
      this.through = this.lines.at(-1)?.seq || 0;
    }
    this.show();
  }

  jump(text) {
    const at = Date.parse(text) / 1000;
    if (!Number.isFinite(at)) return;
    this.setFollow(false);
    this.load({ at });
  }

  fits(line) {
    const text = this.search.value.trim().toLowerCase();
    return RANK[line.level] >= RANK[this.level.value] && (!this.source.value || line.source === this.source.value) && (!text || `${line.message}\n${line.source}`.toLowerCase().includes(text));
  }

  appendLive() {
    const fresh = this.store.logs.filter((line) => line.seq > this.through);
    if (!fresh.length) return false;
    this.through = fresh.at(-1).seq;
    const fitting = fresh.filter((line) => this.fits(line));
    for (const line of fresh) this.learnSource(line.source);
    this.lines = [...this.lines, ...fitting].slice(-KEPT);
    return fitting.length > 0;
  }

  learnSource(source) {
    if (!source || this.sources.has(source) || this.sources.size > 50) return;
    this.sources.add(source);
    this.source.append(el("option", { value: source }, visible(source)));
  }

  // Called by the run page: with `forced` the run or the attempt shown changed, else lines may have come.
  draw(forced = false) {
    if (forced && (this.loaded !== this.place() || !this.lines.length)) return void this.load();
    // Behind another tab or window more lines may have come than the page keeps: those in between are fetched.
    if (this.live && !this.store.shown && this.store.logsGone > this.through) return void this.load();
    if (this.live && !this.store.shown && this.loaded === this.place() && this.appendLive()) this.show();
    return undefined;
  }

  emptyWords() {
    if (this.search.value.trim() || this.source.value) return "No line matches.";
    if (this.store.logs.length && this.level.value !== "debug") return "No line of this level.";
    return this.store.finished || this.store.shown ? "The attempt wrote no log lines." : "no data yet";
  }

  show() {
    for (const line of this.lines) this.learnSource(line.source);
    const more = (word, words) => el("button", { class: "button quiet small", type: "button", [`data-${word}`]: true }, words);
    const place = this.box.scrollTop;
    const wanted = this.search.value.trim();
    this.placing = true;
    this.box.replaceChildren(...[
      this.older !== null ? more("older", "Earlier lines") : null, ...this.lines.map((line) => this.row(line, wanted)), this.lines.length ? null : el("p", { class: "none" }, this.emptyWords()),
      this.newer === null ? null : more("newer", "Later lines"),
    ].filter(Boolean));
    byId("log-count").textContent = this.lines.length ? `${this.lines.length} lines` : "";
    this.box.scrollTop = this.follow ? this.box.scrollHeight : place;
    requestAnimationFrame(() => (this.placing = false));
  }

  row(line, wanted) {
    const date = new Date(line.t * 1000);
    return el("div", { class: "log-line", "data-level": line.level }, el("time", { title: Number.isFinite(line.t) ? date.toLocaleString() : null }, clock(line.t)),
      el("span", { class: "level" }, line.level), el("span", { class: "source" }, visible(line.source)), el("span", { class: "text" }, marked(line.message, wanted)));
  }

  async copy(button) {
    const text = this.lines.map((line) => `${new Date(line.t * 1000).toISOString()} ${line.level} [${visible(line.source)}] ${visible(line.message)}`).join("\n");
    const word = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = "Not allowed";
      console.info("The browser did not allow copying:", error.message);
    }
    setTimeout(() => (button.textContent = word), 1500);
  }
}
