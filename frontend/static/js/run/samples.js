// The samples: by step, by prompt or one by one; filtered, sorted and searched by the database, which holds them all.
import { count, short } from "../format.js";
import { byId, el } from "./dom.js";
import { outcomeWords, rewardTag, SampleDetail, versionSpan } from "./sample_detail.js";
import { param, setParams } from "./url.js";
import { marked } from "./visible.js";

const FILTERS = ["step", "outcome", "reason", "finish", "group", "q", "attempt", "reward_min", "reward_max", "version", "versions", "until"];
const DEFAULTS = { view: "samples", sort: "newest", shade: "version", sample: "" };
const GROUP_SORTS = ["newest", "oldest", "reward", "-reward", "spread", "-spread"];
const tokens = (n) => `${count(n)} ${n === 1 ? "token" : "tokens"}`;
const has = (value) => value !== null && value !== undefined && value !== "";

export class Samples {
  constructor(base, store = {}) {
    Object.assign(this, { base, store, held: false, rows: [], next: null, facets: null, loading: 0, drawn: false });
    this.state = { ...DEFAULTS };
    for (const name of [...FILTERS, ...Object.keys(DEFAULTS)]) this.state[name] = param(`s.${name}`) ?? DEFAULTS[name] ?? "";
    // The step that the charts show is the step of the samples, unless the address names another.
    if (this.state.step === "" && param("step")) this.state.step = param("step");
    this.box = byId("samples");
    this.detail = new SampleDetail(byId("sample-detail"), {
      get: (path) => this.get(path), shade: (shade) => this.remember({ shade }), open: (key) => this.choose(key), move: (by) => this.move(by),
    });
    this.bind();
    this.fillForm();
  }

  async get(path) {
    const reply = await fetch(this.base + path, { credentials: "same-origin" });
    if (reply.status === 401) location.assign(`/login/?next=${encodeURIComponent(location.pathname + location.search)}`);
    const body = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Error(body.message ? `${body.field ? `${body.field}: ` : ""}${body.message}${body.cure ? `; ${body.cure}` : ""}` : `the server answered ${reply.status}`);
    return body;
  }

  bind() {
    const form = byId("sample-filters");
    let typing = 0;
    const read = () => this.set(Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()])));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(read, 300);
    });
    byId("samples-clear").addEventListener("click", () => {
      this.state = { ...DEFAULTS, view: this.state.view, shade: this.state.shade, ...Object.fromEntries(FILTERS.map((name) => [name, ""])) };
      this.fillForm();
      this.set({});
    });
    for (const button of document.querySelectorAll("[data-samples-view]")) button.addEventListener("click", () => this.set({ view: button.dataset.samplesView }));
    byId("sample-hold").addEventListener("click", () => this.hold(!this.held));
    byId("samples-step-slider").addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => this.set({ step: event.target.value }), 150);
    });
    byId("samples-step").addEventListener("change", (event) => this.set({ step: event.target.value.trim() }));
    byId("samples-step-before").addEventListener("click", () => has(this.before) && this.set({ step: String(this.before) }));
    byId("samples-step-after").addEventListener("click", () => has(this.after) && this.set({ step: String(this.after) }));
    byId("samples-step-all").addEventListener("click", () => this.set({ step: "" }));
    this.box.addEventListener("click", (event) => {
      const row = event.target.closest("[data-sample]");
      if (row) this.choose(row.dataset.sample, true);
      if (event.target.closest("[data-more]")) this.load(true);
    });
    document.addEventListener("headrace:step", (event) => {
      const step = event.detail?.step ?? event.detail;
      if (step === null || (Number.isInteger(step) && step >= 0)) this.set({ step: step === null ? "" : String(step) });
    });
    document.addEventListener("keydown", (event) => {
      if (!["j", "k"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select, dialog") || !this.box.offsetParent) return;
      event.preventDefault();
      this.move(event.key === "j" ? 1 : -1);
    });
  }

  hold(held) {
    this.held = held;
    const button = byId("sample-hold");
    button.setAttribute("aria-pressed", String(!held));
    button.textContent = held ? "Follow" : "Following";
    if (!held) this.draw();
  }

  remember(change) {
    Object.assign(this.state, change);
    const values = {};
    for (const [name, value] of Object.entries(this.state)) values[`s.${name}`] = value === (DEFAULTS[name] ?? "") ? null : value;
    const link = byId("samples-permalink");
    // On the run page the moment shown is the time bar's `t`.
    setParams(link ? { ...values, "s.until": null } : values);
    if (link) {
      const url = new URL(`${this.base}samples/`, location.href);
      for (const [name, value] of Object.entries(values)) if (has(value)) url.searchParams.set(name, value);
      link.href = url.href;
    }
  }

  set(change) {
    if (change.view === "groups" && !GROUP_SORTS.includes(this.state.sort)) change.sort = "newest";
    if (change.view === "samples" && this.state.sort.endsWith("spread")) change.sort = "newest";
    this.remember(change);
    this.fillForm();
    this.load();
  }

  fillForm() {
    const form = byId("sample-filters");
    for (const field of form.elements) {
      if (field.name && field !== document.activeElement && field.value !== this.state[field.name]) field.value = this.state[field.name] ?? "";
    }
    for (const button of document.querySelectorAll("[data-samples-view]")) button.setAttribute("aria-pressed", String(button.dataset.samplesView === this.state.view));
    const groups = this.state.view === "groups";
    for (const option of byId("sample-sort").options) option.hidden = groups ? !GROUP_SORTS.includes(option.value) : option.value.endsWith("spread");
    const used = ["reason", "finish", "group", "attempt", "reward_min", "reward_max", "version", "versions"].filter((name) => this.state[name]);
    byId("more-filters-count").textContent = used.length ? `, ${used.length} in use` : "";
    this.fillSteps();
  }

  fillSteps() {
    const [slider, box, f] = [byId("samples-step-slider"), byId("samples-step"), this.facets];
    const low = f?.step_min ?? 0;
    const high = Math.max(f?.step_max ?? 0, low);
    slider.min = low;
    slider.max = high;
    slider.disabled = box.disabled = !f?.n;
    slider.value = this.state.step === "" ? high : this.state.step;
    slider.setAttribute("aria-valuetext", this.state.step === "" ? "every step" : `step ${this.state.step}`);
    if (box !== document.activeElement) box.value = this.state.step;
    byId("samples-step-all").setAttribute("aria-pressed", String(this.state.step === ""));
    byId("samples-step-words").textContent = f?.n ? `of ${count(low)} to ${count(high)}` : "";
    byId("samples-step-before").disabled = !has(this.before);
    byId("samples-step-after").disabled = !has(this.after);
  }

  async fillFacets() {
    const facets = await this.get("samples/facets.json");
    this.facets = facets;
    const choices = (id, values, words) => {
      const select = byId(id);
      const chosen = this.state[select.name] ?? "";
      const all = [...new Set([...values, ...(chosen ? [chosen] : [])].map(String))];
      select.replaceChildren(el("option", { value: "" }, words), ...all.map((value) => el("option", { value, selected: value === chosen }, value.replaceAll("_", " "))));
    };
    choices("sample-reason", [...new Set(facets.outcomes.map((row) => row.drop_reason).filter(Boolean))], "any reason");
    choices("sample-finish", facets.finishes, "any end");
    choices("sample-attempt", facets.attempts.length > 1 ? facets.attempts : [], "every attempt");
    byId("sample-attempt").closest("label").hidden = facets.attempts.length < 2;
    const totals = new Map();
    for (const row of facets.outcomes) totals.set(row.outcome, (totals.get(row.outcome) || 0) + row.n);
    for (const option of byId("sample-outcome").options) if (option.value) option.textContent = `${option.value} (${count(totals.get(option.value) || 0)})`;
    this.fillSteps();
  }

  query(extra) {
    const wanted = { ...Object.fromEntries(FILTERS.map((name) => [name, this.state[name]])), sort: this.state.sort, ...extra };
    return new URLSearchParams(Object.entries(wanted).filter(([, value]) => has(value)));
  }

  async load(more = false) {
    const turn = (this.loading += 1);
    const groups = this.state.view === "groups";
    byId("samples-problem").hidden = true;
    this.box.setAttribute("aria-busy", "true");
    try {
      if (!this.facets || !more) await this.fillFacets();
      const path = groups ? "samples/groups.json" : "samples.json";
      const found = await this.get(`${path}?${this.query({ cursor: more ? this.next : "", limit: groups ? 12 : 40 })}`);
      if (turn !== this.loading) return;
      const rows = groups ? found.groups : found.samples;
      this.rows = more ? [...this.rows, ...rows] : rows;
      this.next = found.next;
      this.before = found.step_before;
      this.after = found.step_after;
      this.counted = { n: found.count, more: found.count_is_more };
      this.list();
      this.fillSteps();
      if (!this.drawn) this.firstOpen();
    } catch (error) {
      if (turn !== this.loading) return;
      const problem = byId("samples-problem");
      problem.hidden = false;
      problem.textContent = `The samples could not be fetched: ${error.message}.`;
    } finally {
      if (turn === this.loading) this.box.removeAttribute("aria-busy");
    }
  }

  // A permalink opens its sample; a first visit opens the newest one, so that the page shows what it can.
  firstOpen() {
    const first = this.flat()[0];
    const key = this.state.sample || (first ? `${first.attempt}/${first.seq}` : "");
    if (!key) return;
    this.drawn = true;
    if (this.state.sample) this.hold(true);
    this.opened = key;
    this.mark();
    this.detail.open(key, { shade: this.state.shade, bounds: this.facets?.bounds });
  }

  flat() {
    return this.state.view === "groups" ? this.rows.flatMap((group) => group.samples) : this.rows;
  }

  // The run page says that something new came: the list follows unless it is held, paged on, or read further down.
  draw() {
    const until = this.store.until ?? (byId("samples-permalink") ? "" : this.state.until);
    if (String(until) !== this.state.until) {
      this.state.until = String(until);
      this.remember({});
      return void this.load();
    }
    if (!this.loading) return void this.load();
    if (this.held || this.rows.length > 40 || this.box.scrollTop > 40 || !this.box.offsetParent || until) return undefined;
    return void this.load();
  }

  list() {
    const groups = this.state.view === "groups";
    const { n, more } = this.counted;
    byId("samples-count").textContent = `${count(n)}${more ? " or more" : ""} ${groups ? (n === 1 ? "prompt" : "prompts") : n === 1 ? "sample" : "samples"}`;
    if (!this.rows.length) {
      const filtered = FILTERS.some((name) => this.state[name]);
      const words = filtered ? this.emptyWords() : "no data yet: samples are kept with every trained step, and of what is dropped one a group.";
      this.box.replaceChildren(el("p", { class: "none" }, words));
      return;
    }
    const place = this.box.scrollTop;
    const rest = this.next ? el("button", { class: "button small", type: "button", "data-more": true }, "Show more") : null;
    this.box.replaceChildren(...this.rows.map((row) => (groups ? this.groupCard(row) : this.row(row))), ...(rest ? [rest] : []));
    this.box.scrollTop = place;
    this.mark();
  }

  emptyWords() {
    const near = [this.before, this.after].filter(has);
    return near.length ? `No sample of step ${this.state.step} fits. The nearest are at step ${near.join(" and ")}.` : "No sample matches. Clear a filter to see more.";
  }

  row(sample) {
    const key = `${sample.attempt}/${sample.seq}`;
    const lag = has(sample.version_trained) && has(sample.version_min) && sample.outcome === "trained" ? `, lag ${sample.version_trained - sample.version_min}` : "";
    return el("button", { class: "sample-row", type: "button", "data-sample": key },
      el("span", { class: "sample-head" }, rewardTag(sample), sample.outcome === "trained" ? null : el("b", {}, outcomeWords(sample)), el("span", {}, `step ${sample.step}`),
        el("span", {}, `${versionSpan(sample)}${lag}`), has(sample.advantage) ? el("span", {}, `advantage ${short(sample.advantage)}`) : null, el("span", {}, tokens(sample.token_count)), sample.finish_reason === "length" ? el("span", {}, "cut at the limit") : null),
      el("span", { class: "row-prompt" }, marked(sample.prompt, this.state.q)), el("span", { class: "completion row-completion" }, sample.completion ? marked(sample.completion, this.state.q) : el("i", { class: "none" }, "no text")));
  }

  groupCard(group) {
    const size = this.facets?.group_size;
    const first = group.samples[0];
    const words = [`step ${group.step}`, `${group.n}${size && group.n <= size ? ` of ${size}` : ""} kept`, has(group.mean) ? `mean ${short(group.mean)}` : "no reward", has(group.spread) ? `spread ${short(group.spread)}` : null];
    const column = (sample) => el("button", { class: "sample-row group-column", type: "button", "data-sample": `${sample.attempt}/${sample.seq}` },
      el("span", { class: "sample-head" }, rewardTag(sample), has(sample.advantage) ? el("span", {}, `A ${short(sample.advantage)}`) : null, sample.outcome === "trained" ? null : el("b", {}, outcomeWords(sample))),
      el("span", { class: "completion row-completion" }, sample.completion ? marked(sample.completion, this.state.q) : el("i", { class: "none" }, "no text")),
      el("span", { class: "note" }, `${versionSpan(sample)}, ${tokens(sample.token_count)}`));
    return el("section", { class: "sample-group" }, el("p", { class: "sample-head" }, words.filter(Boolean).map((text) => el("span", {}, text))), el("p", { class: "row-prompt" }, marked(first?.prompt, this.state.q)),
      el("div", { class: "group-columns" }, group.samples.map(column), group.n > group.samples.length ? el("p", { class: "note" }, `${group.n - group.samples.length} more`) : null));
  }

  mark() {
    for (const row of this.box.querySelectorAll("[data-sample]")) {
      if (row.dataset.sample === this.opened) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }

  choose(key, byHand = false) {
    this.opened = key;
    this.hold(true);
    this.remember({ sample: key });
    this.mark();
    this.detail.open(key, { shade: this.state.shade, bounds: this.facets?.bounds }).then(() => {
      // On a narrow screen the sample is below its list.
      if (byHand && innerWidth < 1080) byId("sample-detail").scrollIntoView({ block: "start" });
    });
  }

  async move(by) {
    const place = this.flat().findIndex((sample) => `${sample.attempt}/${sample.seq}` === this.opened);
    if (place + by >= this.flat().length && this.next) await this.load(true);
    const sample = this.flat()[Math.max(0, place + by)];
    if (!sample) return;
    this.choose(`${sample.attempt}/${sample.seq}`);
    this.box.querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest" });
  }
}
