// The teaching page: four sliders, the server's simulation, two timelines and a ledger.
import { CAUSES, nameOf } from "./run/causes.js";
import { byId, el, setText, svg } from "./run/dom.js";

const DELAY = 120;
const LANES = { "generator/0": "engine 1", "generator/1": "engine 2", trainer: "trainer" };
// Rows that are always there, so that nothing jumps while a slider moves.
const ROWS = ["generate", "train", "straggler_tail", "wait_buffer_empty", "wait_depth_bound", "sync_pause"];
const form = byId("lesson-form");
const percent = (share) => (share === undefined ? "" : share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);
let timer = 0;
let current = null;

function timeline(id, run, until) {
  const rows = Object.entries(LANES).map(([lane, title]) => {
    const done = run.spans.filter(([of]) => of === lane).map(([, cause, began, ended]) =>
      svg("rect", { x: began, y: 0, width: Math.max(0, ended - began), height: 10, class: `fill-${cause}` }));
    const ends = lane === "trainer" ? run.steps_at.map((at) => svg("line", { x1: at, x2: at, y1: 0, y2: 10, class: "step-end" })) : [];
    const bar = svg("svg", { viewBox: `0 0 ${until} 10`, preserveAspectRatio: "none", class: "lane-bar", "aria-hidden": "true" }, done, ends);
    return el("div", { class: "lane" }, el("span", { class: "lane-name" }, title), bar);
  });
  byId(id).replaceChildren(...rows);
}

function words(run, turns) {
  if (run.failure) return "It would train nothing: everything is too old when its turn comes.";
  const { samples_per_s: rate, lag, dropped_share: dropped } = run.figures;
  const facts = [`${rate.toFixed(2)} samples/s`, `lag ${lag.toFixed(1)}`];
  if (turns?.figures) facts.splice(1, 0, `${(rate / turns.figures.samples_per_s).toFixed(1)} times as many`);
  if (dropped > 0) facts.push(`${percent(dropped)} dropped`);
  return facts.join(" · ");
}

function ledger({ now, turns }) {
  const shares = (run, lanes, cause) => run.time?.[lanes]?.[cause];
  const present = CAUSES.filter((cause) => ROWS.includes(cause) || [now, turns].some((run) => shares(run, "generators", cause) || shares(run, "trainer", cause)));
  const rows = present.map((cause) => {
    const cells = [["generators", turns], ["generators", now], ["trainer", turns], ["trainer", now]];
    return el("tr", {}, el("th", { scope: "row" }, el("i", { class: `swatch cause-${cause}` }), nameOf(cause)),
      ...cells.map(([lanes, run]) => el("td", { class: "num" }, percent(shares(run, lanes, cause)))));
  });
  byId("ledger").tBodies[0].replaceChildren(...rows);
}

function draw(found) {
  const until = Math.max(...[found.now, found.turns].map((run) => run.steps_at.at(-1) ?? 0));
  timeline("turns", found.turns, until);
  timeline("now", found.now, until);
  setText(byId("turns-words"), words(found.turns));
  setText(byId("now-words"), words(found.now, found.turns));
  ledger(found);
}

async function ask() {
  current?.abort();
  current = new AbortController();
  const query = new URLSearchParams(new FormData(form));
  try {
    const reply = await fetch(`/help/async/run.json?${query}`, { credentials: "same-origin", signal: current.signal });
    const found = await reply.json();
    if (!reply.ok) throw new Error(found.errors?.join(" ") ?? `The server answered ${reply.status}.`);
    draw(found);
    history.replaceState(null, "", `?${query}`);
    byId("lesson-state").textContent = "";
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("lesson-state").textContent = `Not simulated: ${error.message} Move a slider to try again.`;
  }
}

form.addEventListener("input", (event) => {
  byId(`value-${event.target.name}`).value = event.target.value;
  clearTimeout(timer);
  timer = setTimeout(ask, DELAY);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
const first = JSON.parse(byId("page-data").textContent);
if (first) draw(first);
