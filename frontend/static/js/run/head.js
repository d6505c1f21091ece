// The page's head: state, progress, vitals; start-up phases; the failure panel; provenance and history.
import { NONE, ago, clock, count, duration, fixed, seconds, short, when } from "../format.js";
import { byId, el, setText } from "./dom.js";

const OVER = ["succeeded", "failed", "cancelled", "lost"];
// The contract's largest number of steps: another bound of the budget ends such a run.
const NO_BOUND = 10_000_000;
export const isOver = (run) => OVER.includes(run?.state);

function vital(name, value, small) {
  const node = document.querySelector(`[data-vital="${name}"]`);
  const known = value !== null && value !== undefined && value !== NONE;
  node.classList.toggle("none", !known);
  const text = known ? `${value}|${small || ""}` : "no data yet";
  if (node.dataset.shown === text) return;
  node.dataset.shown = text;
  node.replaceChildren(known ? value : "no data yet", ...(known && small ? [" ", el("small", {}, small)] : []));
}

// The driver's own clock counts: a run may have been uploaded long after it was trained.
function times(store) {
  const wall = store.state?.time?.wall_s;
  const start = typeof wall === "number" ? store.state.t - wall : store.attempt?.started ? Date.parse(store.attempt.started) / 1000 : null;
  if (start === null) return { start, elapsed: null };
  return { start, elapsed: isOver(store.run) ? wall ?? null : Math.max(0, (store.until ?? Date.now() / 1000) - start) };
}

// Where the axis of time begins: with the run's first event, whichever attempt is shown.
export function startOf(store) {
  return store.began ?? times(store).start ?? store.series.get("reward/mean")?.t[0] ?? null;
}

export function drawHead(store) {
  const { run, state, latest } = store;
  if (!run) return;
  const chip = byId("state-chip");
  chip.dataset.state = run.state;
  setText(chip, run.state);
  const over = isOver(run);
  drawQuiet(store);
  const told = state?.steps_total ?? run.steps_total;
  const total = told < NO_BOUND ? told : null;
  // The last state may be from before the last step's end.
  const step = state === null ? null : Math.max(state.step, store.finished?.step ?? 0);
  byId("step-progress").hidden = !total;
  byId("step-progress").max = total || 1;
  byId("step-progress").value = step ?? 0;
  vital("step", step === null ? null : count(step), total ? `of ${count(total)}` : "");
  vital("reward", latest.has("reward/mean") ? fixed(latest.get("reward/mean"), 2) : null, "last step");
  const held = store.evaluations.length ? store.evaluations[store.evaluations.length - 1] : null;
  vital("heldout", held ? fixed(held.mean, 2) : null, held ? `at v${held.version}, n ${held.n}` : "");
  const perSecond = over ? average(store) : latest.get("throughput/samples_per_s") ?? null;
  vital("samples", perSecond === null ? null : short(perSecond), over ? "on average" : "trained");
  vital("lag", state?.lag && state.lag.mean !== null && state.lag.mean !== undefined ? `${fixed(state.lag.mean, 1)} / ${count(state.lag.max)}` : null, "versions");
  const pause = state?.sync?.count ? state.sync.last_pause_s : null;
  vital("pause", pause === null || pause === undefined ? null : seconds(pause), "last sync");
  const { elapsed } = times(store);
  vital("elapsed", elapsed === null ? null : duration(elapsed));
  vital("left", over ? "over" : remaining(store, step, total), "");
  drawStartup(store, step);
  drawFailure(store);
}

// Samples the attempt trained a second: as its summary tells (start-up left out), else over its wall time. The ledger counts those of
// earlier attempts too, so a resumed attempt that has told no summary has none. Null before anything was trained.
export function average({ state, finished, provenance }) {
  const told = finished?.summary?.samples_per_s;
  if (told) return told;
  if (provenance?.resumed_from) return null;
  const { trained } = state?.samples || {};
  const wall = state?.time?.wall_s;
  return trained > 0 && wall > 0 ? trained / wall : null;
}

// Whether the run has gone quiet.
const QUIET_S = 15;
function drawQuiet(store) {
  const { run } = store;
  const quiet = byId("run-quiet");
  const silent = quietFor(store);
  quiet.hidden = Boolean(store.until) || !["running", "stopping"].includes(run.state) || silent === null || silent < QUIET_S;
  if (!quiet.hidden) setText(quiet, `Nothing heard from the run for ${duration(silent)}. The figures below are the last it sent.`);
}

// Seconds since the run last spoke: by the server's clock where it says so, else by the two clocks; an event restarts the count.
export function quietFor(store) {
  const { attempt, heardAt } = store;
  if (heardAt === undefined) return null;
  const told = attempt?.heartbeat_age_s ?? (attempt?.heartbeat ? (store.askedAt - Date.parse(attempt.heartbeat)) / 1000 : null);
  const since = (Date.now() - heardAt) / 1000;
  if (told === null || told === undefined) return null;
  const byServer = Math.max(0, told) + (Date.now() - store.askedAt) / 1000;
  return Math.min(byServer, store.spoke ? since : Infinity);
}

function remaining(store, step, total) {
  const columns = store.series.get("time/step_s");
  if (!step || !total || !columns?.value.length || store.until) return null;
  const recent = columns.value.slice(-10).filter((value) => value !== null);
  if (!recent.length) return null;
  return `≈ ${duration((total - step) * (recent.reduce((sum, value) => sum + value, 0) / recent.length))}`;
}

function drawStartup(store, step) {
  const box = byId("startup");
  const waiting = ["queued", "launching"].includes(store.run.state);
  const starting = store.run.state === "running" && (!step || step < 1) && store.phases.length > 0;
  box.hidden = !(waiting || starting);
  if (box.hidden) return;
  const row = (state, name, detail, done) => el("li", { class: state }, el("span", { class: "tick", "aria-hidden": "true" }, state === "done" ? "✓" : ""), el("strong", {}, name),
    el("span", { class: "detail" }, detail || ""), state === "now" && typeof done === "number" ? el("progress", { max: 1, value: done, "aria-label": name }) : el("span", {}));
  const { exit_cause: refused } = store.attempt || {};
  const words = refused?.message ? `not taken yet: ${refused.message}${refused.cure ? ` (${refused.cure})` : ""}; it is tried again` : null;
  const queued = store.run.state === "queued";
  const rows = [row(queued ? "now" : "done", "queued", (queued && words) || (queued ? "starts by itself as soon as there is room" : "taken from the queue"))];
  if (!queued) rows.push(row(waiting ? "now" : "done", "launching", (waiting && words) || "the job is handed to the cluster"));
  store.phases.forEach((phase, index) => {
    const last = index === store.phases.length - 1;
    const done = phase.done === 1 || !last;
    rows.push(row(done ? "done" : "now", phase.name.replaceAll("_", " "), phase.detail, phase.done));
  });
  byId("startup-list").replaceChildren(...rows);
  setText(byId("startup-note"), store.run.state_since ? `${store.run.state} ${ago(new Date(store.run.state_since))}` : "");
}

function drawFailure(store) {
  const box = byId("failure");
  const failed = ["failed", "lost"].includes(store.run.state);
  box.hidden = !failed;
  if (!failed) return;
  const cause = store.finished?.cause || store.run.outcome_cause || store.attempt?.exit_cause || {};
  const tail = store.finished?.log_tail?.length ? store.finished.log_tail : store.logs.slice(-12).map((line) => `${clock(line.t)} ${line.level} ${line.message}`);
  const key = JSON.stringify([store.run.state, cause, tail.length]);
  if (key === box.dataset.shown) return;
  box.dataset.shown = key;
  setText(byId("failure-title"), store.run.state === "lost" ? "Why it is counted as lost" : "Why it failed");
  const facts = [["Field", cause.field], ["Value", cause.value], ["Kind", cause.type], ["Retrying helps", cause.retryable === undefined ? null : cause.retryable ? "perhaps" : "no: something has to change"]];
  const given = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const lines = tail.map((line) => (typeof line === "string" ? line : `${line.t ? clock(line.t) : ""} ${line.level || ""} ${line.message || ""}`.trim()));
  byId("failure-body").replaceChildren(
    el("p", { class: "cause" }, cause.message || "The cause was not reported."),
    given.length ? el("dl", {}, given.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : "",
    cause.cure ? el("p", { class: "cure" }, `What to change: ${cause.cure}`) : "",
    el("h3", {}, "Last log lines"), lines.length ? el("pre", {}, lines.join("\n")) : el("p", { class: "none" }, "no data yet"));
  const fix = byId("clone-fix");
  if (fix && cause.field) fix.href = `${fix.href.split("&fix=")[0]}&fix=${encodeURIComponent(cause.field)}`;
}

function pairs(value, prefix = "") {
  return Object.entries(value || {}).flatMap(([name, item]) => {
    const path = prefix ? `${prefix}.${name}` : name;
    if (item && typeof item === "object" && !Array.isArray(item)) return pairs(item, path);
    return [[path, Array.isArray(item) ? item.join(" ") : item]];
  });
}

export function drawDetails(store) {
  const shown = store.shown;
  const rows = pairs(shown ? shown.provenance : store.provenance).filter(([, value]) => value !== null && value !== "" && value !== undefined);
  const attempt = shown ? store.attempts.find((row) => row.number === shown.number) : store.attempt;
  const facts = attempt ? [["attempt", `${attempt.number} (${attempt.public_id})`], ["events stored", count(attempt.ingested_through)]] : [];
  if (store.checkpoint && !shown) facts.push(["last checkpoint", `step ${store.checkpoint.step}, v${store.checkpoint.version}: ${store.checkpoint.path}`]);
  byId("provenance").replaceChildren(
    rows.length || facts.length ? el("dl", { class: "provenance" }, [...facts, ...rows].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : el("p", { class: "none" }, "no data yet"));
  const moves = store.transitions.map((move) => el("tr", {}, el("td", {}, when(new Date(move.at))), el("td", {}, move.from, " → ", el("strong", {}, move.to)), el("td", {}, move.actor), el("td", {}, move.cause?.message || "–")));
  byId("history").replaceChildren(
    moves.length ? el("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": "Changes of state" }, el("table", {}, el("thead", {}, el("tr", {}, ["When", "State", "By", "Why"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, moves))) : el("p", { class: "none" }, "no data yet"));
}

