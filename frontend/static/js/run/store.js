// What the page knows of a run: a snapshot, series and lag rows from the database, and every event since, applied once each.
import { decode } from "../format.js";

const KEPT_POINTS = 6000;
const KEPT_SAMPLES = 60;
const KEPT_LINES = 1500;
const KEPT_STEPS = 2000; // of the lag histogram
const KEPT_EVALUATIONS = 500;
const COLUMNS = ["step", "t", "value", "faint", "low", "high", "bad", "seq"];

export function emptyStore() {
  return {
    run: null, attempt: null, attempts: [], state: null, phase: null, phases: [], samples: [], logs: [], lag: new Map(), evaluations: [],
    syncs: [], checkpoint: null, transitions: [], provenance: {}, finished: null, series: new Map(), latest: new Map(), capacity: [],
    snapshotSeq: 0, seriesSeq: 0, seen: 0, began: null, logsGone: 0, whole: new Set(), until: null,
  };
}

// When the server was last asked, and when the run was last heard.
export function heard(store) {
  store.askedAt = Date.now();
  store.heardAt = Date.now();
}

export function takeSnapshot(store, data) {
  const { attempt } = data;
  Object.assign(store, {
    run: data.run, attempt, began: data.began ?? null, attempts: data.attempts || (attempt ? [attempt] : []), state: data.state, phase: data.phase,
    samples: data.samples || [], logs: data.logs || [], evaluations: data.evaluations || [], syncs: data.syncs || [],
    transitions: data.transitions || [], provenance: data.provenance || {}, checkpoint: data.checkpoint || null, finished: data.finished || null,
  });
  heard(store);
  store.spoke = false;
  store.logsGone = 0;
  store.phases = data.phase ? [data.phase] : [];
  store.snapshotSeq = attempt ? attempt.ingested_through : 0;
}

// Columns as the server gives them: value is a bucket's mean, low and high its extremes, bad how many points in it are not finite.
export function columnsFrom(data, through) {
  const size = data?.value.length ?? 0;
  const at = (list, index, fallback) => (list?.[index] === undefined || list[index] === null ? fallback : list[index]);
  const kept = { step: [], t: [], value: [], faint: [], low: [], high: [], bad: [], seq: [], decimated: false };
  for (let index = 0; index < size; index += 1) {
    const value = decode(data.value[index]);
    kept.step.push(data.step[index]);
    kept.t.push(data.t[index]);
    kept.value.push(value);
    kept.faint.push(Boolean(data.faint?.[index]));
    kept.low.push(at(data.min, index, value));
    kept.high.push(at(data.max, index, value));
    kept.bad.push(at(data.nonfinite, index, 0));
    kept.seq.push(through);
    if (at(data.count, index, 1) > 1) kept.decimated = true;
  }
  return kept;
}

function takeColumns(store, name, columns) {
  store.series.set(name, columns);
  const last = columns.value.findLastIndex((value, index) => value !== null && !columns.faint[index]);
  if (last >= 0) store.latest.set(name, columns.value[last]);
}

// `whole` names the series whose history is here; of the others only live points are.
export function takeSeries(store, data, names) {
  store.series.clear();
  store.whole = new Set(names);
  for (const [name, columns] of Object.entries(data.series || {})) takeColumns(store, name, columnsFrom(columns, data.through_seq || 0));
  store.seriesSeq = data.through_seq || 0;
}

// Further series, asked for later: their live points that the reply does not hold yet stay behind it.
export function takeMore(store, data, names) {
  for (const name of names) {
    store.whole.add(name);
    const live = store.series.get(name);
    const columns = columnsFrom(data.series[name], data.through_seq);
    const first = live ? live.seq.findIndex((seq) => seq > data.through_seq) : -1;
    if (first >= 0) for (const key of COLUMNS) columns[key].push(...live[key].slice(first));
    if (columns.value.length) takeColumns(store, name, columns);
  }
}

// tokens[lag][step], summed over a bucket of steps where there are many.
export function takeLag(store, data) {
  store.lag.clear();
  (data.steps || []).forEach((step, row) => {
    const counts = new Map();
    data.lags.forEach((lag, column) => {
      if (data.tokens[column][row]) counts.set(Number(lag), data.tokens[column][row]);
    });
    store.lag.set(step, counts);
  });
}

function addPoint(store, name, seq, t, step, value) {
  const number = decode(value);
  let kept = store.series.get(name);
  if (!kept) store.series.set(name, (kept = columnsFrom(null, 0)));
  kept.step.push(step);
  kept.t.push(t);
  kept.value.push(number);
  kept.faint.push(false);
  kept.low.push(number);
  kept.high.push(number);
  kept.bad.push(number === null ? 1 : 0);
  kept.seq.push(seq);
  if (number !== null) store.latest.set(name, number);
  if (kept.value.length > KEPT_POINTS) thin(kept);
}

// Two points of the older half become one with the extremes of both: the page stays light however long it is open; the database keeps all.
function thin(kept) {
  const half = KEPT_POINTS / 2;
  const either = (choose, a, b) => (a === null ? b : b === null ? a : choose(a, b));
  for (let index = 0; index + 1 < half; index += 2) {
    kept.value[index] ??= kept.value[index + 1];
    kept.low[index] = either(Math.min, kept.low[index], kept.low[index + 1]);
    kept.high[index] = either(Math.max, kept.high[index], kept.high[index + 1]);
    kept.bad[index] += kept.bad[index + 1];
  }
  kept.decimated = true;
  for (const key of COLUMNS) kept[key] = kept[key].filter((_, index) => index >= half || index % 2 === 0);
}

// As the server sums steps where there are many: two of the older half become one.
function thinLag(store) {
  const rows = [...store.lag].sort((a, b) => a[0] - b[0]);
  const kept = rows.slice(KEPT_STEPS / 2);
  for (let index = 0; index < KEPT_STEPS / 2; index += 2) {
    const [step, counts] = rows[index];
    const sums = new Map(counts);
    for (const [lag, tokens] of rows[index + 1][1]) sums.set(lag, (sums.get(lag) || 0) + tokens);
    kept.push([step, sums]);
  }
  store.lag = new Map(kept);
}

const flat = (event) => ({ ...event.data, seq: event.seq, t: event.t, step: event.data.step ?? event.step });

function newest(list, item, limit) {
  list.unshift(item);
  if (list.length > limit) list.length = limit;
}

export function takePhase(store, event) {
  const phase = flat(event);
  if (!store.phase || phase.seq >= store.phase.seq) store.phase = phase;
  const same = store.phases.findIndex((item) => item.name === phase.name);
  if (same >= 0) store.phases[same] = phase;
  else store.phases.push(phase);
  store.phases.sort((a, b) => a.seq - b.seq);
}

const onSnapshot = {
  started: (store, event) => (store.provenance = { ...event.data.provenance, ...event.data }),
  state: (store, event) => (store.state = flat(event)),
  sync: (store, event) => newest(store.syncs, flat(event), 20),
  checkpoint: (store, event) => (store.checkpoint = flat(event)),
  finished: (store, event) => (store.finished = flat(event)),
  evaluation: (store, event) => {
    store.evaluations.push(flat(event));
    if (store.evaluations.length > KEPT_EVALUATIONS) store.evaluations.shift();
  },
  sample: (store, event) => newest(store.samples, { ...event.data, seq: event.seq, t: event.t, step: event.step, attempt: store.attempt.number }, KEPT_SAMPLES),
  log: (store, event) => {
    store.logs.push({ ...event.data, seq: event.seq, t: event.t, step: event.step });
    if (store.logs.length > KEPT_LINES) store.logsGone = store.logs.splice(0, store.logs.length - KEPT_LINES).at(-1).seq;
  },
  phase: (store, event) => takePhase(store, event),
};

// Applies one event, each part at most once: what a reply from the database held already is left out. Returns what changed.
export function applyEvent(store, event) {
  if (event.seq <= store.seen) return null;
  store.seen = event.seq;
  store.began ??= event.t;
  if (event.seq > store.seriesSeq) {
    if (event.kind === "metrics") for (const [name, value] of Object.entries(event.data.values || {})) addPoint(store, name, event.seq, event.t, event.step, value);
    if (event.kind === "points") event.data.t.forEach((t, index) => addPoint(store, event.data.name, event.seq, t, event.data.step[index], event.data.value[index]));
  }
  // Absolute for its step, so setting it twice is harmless.
  if (event.kind === "lag") store.lag.set(event.step, new Map(Object.entries(event.data.counts || {}).map(([lag, tokens]) => [Number(lag), tokens])));
  if (store.lag.size > KEPT_STEPS) thinLag(store);
  if (event.seq > store.snapshotSeq) onSnapshot[event.kind]?.(store, event);
  if (store.attempt) store.attempt.ingested_through = Math.max(store.attempt.ingested_through, event.seq);
  return event.kind;
}

export function applyRun(store, change) {
  store.run = { ...store.run, ...change };
}
