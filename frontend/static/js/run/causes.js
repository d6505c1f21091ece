// The time ledger's causes: their order, words and colours.
export const CAUSES = ["generate", "train", "score", "environment", "sync_pause", "evaluation", "checkpoint", "wait_buffer_empty", "wait_buffer_full",
  "wait_depth_bound", "wait_sync", "straggler_tail", "idle", "paused", "startup", "down"];
const NAMES = {
  sync_pause: "sync pause", wait_buffer_empty: "waits: buffer empty", wait_buffer_full: "waits: buffer full", wait_depth_bound: "waits: dispatch bound",
  wait_sync: "waits: weight swap", straggler_tail: "straggler tail", startup: "start-up",
};
// Reserved and doing nothing for the training: what the idle ledger adds up.
export const WAITING = ["wait_buffer_empty", "wait_buffer_full", "wait_depth_bound", "wait_sync", "sync_pause", "straggler_tail", "idle", "paused", "down"];

export const nameOf = (cause) => NAMES[cause] || cause.replaceAll("_", " ");
export const colorOf = (cause) => (CAUSES.includes(cause) ? `cause-${cause}` : "cause-other");
export const order = (a, b) => (CAUSES.indexOf(a) + 100) % 100 - ((CAUSES.indexOf(b) + 100) % 100);

const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);
const known = new Map();
document.addEventListener("themechange", () => known.clear());

// The colour of a cause as a canvas takes it.
export function fillOf(cause) {
  if (!known.has(cause)) {
    probe.className = colorOf(cause);
    known.set(cause, getComputedStyle(probe).backgroundColor);
  }
  return known.get(cause);
}
