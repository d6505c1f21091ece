// Two stores: the present, which every event goes into, and the view, which the panels draw. Live, the view shows through to the
// present; in the past it holds what the run was at `until` (Unix seconds). Series stay whole: who draws them cuts them by asItWas.
const OWN = ["until", "run", "attempt", "attempts", "state", "phase", "phases", "samples", "logs", "evaluations", "syncs", "checkpoint",
  "transitions", "provenance", "finished", "latest", "lag", "starts"];
const COLUMNS = ["step", "t", "value", "faint", "low", "high", "bad", "seq"];

export const viewOf = (present) => Object.create(present);
export const inPast = (view) => view.until !== undefined && view.until !== null;

// Columns up to the moment shown. What a later attempt trained again was not replaced before that attempt began.
export function asItWas(columns, view) {
  if (!columns || !inPast(view)) return columns;
  const cut = { decimated: columns.decimated };
  for (const key of COLUMNS) if (columns[key]) cut[key] = columns[key].filter((_, index) => columns.t[index] <= view.until);
  const starts = view.starts || [];
  if (cut.faint) cut.faint = cut.faint.map((faint, index) => faint && starts.some((start) => start > cut.t[index] && start <= view.until));
  return cut;
}

// The last finite value of each series by then, as the live store keeps it.
class LatestThen {
  constructor(view) {
    this.view = view;
  }

  get(name) {
    const columns = asItWas(this.view.series.get(name), this.view);
    return columns?.value.findLast((value, index) => value !== null && !columns.faint?.[index]);
  }

  has(name) {
    return this.get(name) !== undefined;
  }
}

// `then` is then.json's answer; `starts` are the attempts' first seconds.
export function showPast(view, then, starts) {
  const present = Object.getPrototypeOf(view);
  const step = then.state?.step ?? -1;
  const numbers = new Set(then.attempts);
  const attempt = then.attempt && { ...present.attempts.find((row) => row.number === then.attempt.number), ...then.attempt };
  Object.assign(view, {
    until: then.t, starts, run: { ...present.run, ...then.run }, attempt, attempts: present.attempts.filter((row) => numbers.has(row.number)),
    state: then.state, phase: then.phase, phases: then.phase ? [then.phase] : [], samples: then.samples, logs: then.logs, evaluations: then.evaluations,
    syncs: then.syncs, checkpoint: then.checkpoint, transitions: then.transitions, provenance: then.provenance, finished: then.finished,
    latest: new LatestThen(view), lag: new Map([...present.lag].filter(([at]) => at <= step)),
  });
}

export function showPresent(view) {
  for (const name of OWN) delete view[name];
}
