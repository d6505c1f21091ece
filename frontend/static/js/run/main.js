// The run page: load what is stored, join the live link, draw what changed at most a few times a second.
import { Attempts } from "./attempts.js";
import { Bands } from "./cards.js";
import { ChartBar } from "./chartbar.js";
import { Charts } from "./charts.js";
import { byId, throttled } from "./dom.js";
import { Catalogue, Explorer, Pins } from "./explorer.js";
import { startControl } from "./control.js";
import { Flow } from "./flow.js";
import { drawDetails, drawHead, isOver, quietFor, startOf } from "./head.js";
import { drawEvaluations, drawSamplesLedger, drawSyncs } from "./ledgers.js";
import { definePanels } from "./panels.js";
import { inPast, viewOf } from "./past.js";
import { Link } from "./socket.js";
import { Source } from "./source.js";
import { applyEvent, applyRun, emptyStore, heard, takeLag, takePhase, takeSeries, takeSnapshot } from "./store.js";
import { activeTab, registerPanel, showTab, startTabs, tellPanels } from "./tabs.js";
import { Travel } from "./travel.js";

const page = JSON.parse(byId("page-data").textContent);
const base = `/runs/${page.run}/`;
const store = emptyStore();
// Events go into the store; whatever draws reads the view, which in the past shows what was then.
const view = viewOf(store);

Object.assign(store, { base, get, groupSize: page.groupSize, startOf: () => startOf(view) });

const source = new Source(store, view, () => tellPanels(["series"]));
const bands = new Bands(view, () => document.dispatchEvent(new CustomEvent("headrace:view", { detail: { changed: new Set(["bands"]) } })));
const cards = { store: view, source, base, bands };
const catalogue = new Catalogue(view);
const charts = new Charts(page.charts, view, source);
const pins = new Pins(cards, catalogue);
const explorer = new Explorer(cards, catalogue);
const flow = new Flow(byId("flow"), view);
const travel = new Travel({ base, view, get, changed: () => drawAll() });
const attempts = new Attempts(get, view, () => {
  drawDetails(view);
  tellPanels(["attempt"]);
});

// What is read at a glance follows the run frame by frame; what is heavy to draw, a few times a second.
const drawHeadSoon = throttled(() => drawHead(view), 100);
const drawFlowSoon = throttled(() => activeTab() === "overview" && flow.update(), 0);
const drawChartsSoon = throttled(() => {
  charts.draw();
  pins.cards.draw();
  bar.show();
}, 400);
function drawAll() {
  attempts.draw();
  drawHeadSoon();
  tellPanels(["load"]);
}

// Which of the overview's parts an event of a kind touches.
const CHARTED = ["state", "metrics", "points", "lag", "evaluation", "series", "load"];
const FLOWING = ["state", "metrics", "sync"]; // drawn as they come
const COUNTED = ["state", "evaluation", "load"];
const any = (touched, kinds) => kinds.some((kind) => touched.has(kind));
const whole = new Set(["load"]);
function overview(touched) {
  if (any(touched, ["run", "load"])) drawFlowSoon();
  if (any(touched, CHARTED)) drawChartsSoon();
  if (any(touched, ["sync", "load"])) drawSyncs(view.syncs);
  if (!any(touched, COUNTED)) return;
  drawSamplesLedger(view);
  drawEvaluations(view);
}
// The snapshot holds the newest publish alone; the ones before it come with the overview.
function loadSyncs() {
  get("syncs.json?limit=20")
    .then(({ syncs }) => {
      const held = new Set(store.syncs.map((sync) => sync.seq));
      const mine = syncs.filter((sync) => sync.attempt === store.attempt?.number && !held.has(sync.seq));
      store.syncs = [...store.syncs, ...mine.reverse()].sort((a, b) => b.seq - a.seq).slice(0, 20);
      if (!inPast(view)) drawSyncs(view.syncs);
    })
    .catch((error) => console.warn("The weight syncs could not be loaded:", error.message));
}
const unloaded = (error) => console.warn("The list of series could not be loaded:", error.message);
registerPanel("overview", {
  open: () => {
    overview(whole);
    pins.show().catch(unloaded);
    loadSyncs();
  },
  update: (_, touched) => overview(touched),
});
registerPanel("charts", {
  open: () => {
    explorer.open().catch(unloaded);
    bar.show();
  },
  update: (_, touched) => {
    if (any(touched, ["metrics", "points", "series", "load"])) explorer.update().catch(unloaded);
    bar.show();
  },
});
for (const name of ["config", "history"]) registerPanel(name, { open: drawDetails, update: drawDetails });
definePanels({ base, store: view });

function onEvents(events) {
  const touched = new Set();
  store.heardAt = Date.now();
  store.spoke = true;
  for (const event of events) {
    const kind = applyEvent(store, event);
    if (kind) touched.add(kind);
  }
  if (!touched.size || inPast(view)) return;
  drawHeadSoon();
  if (any(touched, FLOWING)) drawFlowSoon();
  tellPanels(touched);
}

async function get(name) {
  const reply = await fetch(base + name, { credentials: "same-origin" });
  if (reply.status === 401) location.assign(`/login/?next=${encodeURIComponent(location.pathname)}`);
  if (!reply.ok) throw new Error(`${name} answered ${reply.status}`);
  return reply.json();
}

// The snapshot holds the newest phase; while a run starts up, the earlier ones are shown as well.
async function loadPhases() {
  const early = await get(`events.json?attempt=${store.attempt.number}&after=0&limit=500`);
  for (const event of early.events) if (event.kind === "phase" && event.seq <= store.snapshotSeq) takePhase(store, event);
}

// The marks are read before the rows, so an event between two replies comes again and is applied once.
async function load() {
  // What a reader has looked at comes again after a new attempt began.
  const wanted = [...new Set([...page.series, ...store.whole])].slice(0, 64);
  const names = encodeURIComponent(wanted.join(","));
  const [snapshot, series, lag] = await Promise.all([get("snapshot.json"), get(`series.json?names=${names}&buckets=1000`), get("lag.json")]);
  store.latest.clear();
  takeSnapshot(store, snapshot);
  takeSeries(store, series, wanted);
  takeLag(store, lag);
  store.seen = Math.min(store.snapshotSeq, store.seriesSeq);
  if (store.attempt && !isOver(store.run) && !(store.state?.step > 0)) await loadPhases();
  drawAll();
}

function status(word, detail) {
  const mark = byId("live-mark");
  mark.dataset.link = word;
  mark.textContent = detail || { live: "live", waiting: "connecting" }[word] || word;
}

let triedAt = Date.now();
// Transitions, causes, attempts and heartbeats come from the database.
function askAgain() {
  triedAt = Date.now();
  get("snapshot.json")
    .then((snapshot) => {
      store.run = snapshot.run;
      store.transitions = snapshot.transitions || [];
      if (snapshot.attempt && snapshot.attempt.number !== store.attempt?.number) return restart();
      store.attempt = snapshot.attempt || store.attempt;
      store.attempts = snapshot.attempts || store.attempts;
      heard(store);
      store.spoke = false;
      return inPast(view) ? undefined : drawAll();
    })
    .catch((error) => console.warn("The run's state is not fresh:", error.message));
}

// A run that waits or has gone quiet sends nothing by which the page could learn why.
function watchQuiet() {
  if (document.hidden || !store.run || isOver(store.run)) return;
  const waits = ["queued", "launching"].includes(store.run.state);
  const asked = (Date.now() - triedAt) / 1000;
  if ((waits && asked > 4) || ((quietFor(store) ?? 0) > 10 && asked > 8)) askAgain();
}

let reloading = null;
function restart() {
  reloading ||= load()
    .then(() => link.fill())
    .catch((error) => console.warn("The new attempt could not be loaded yet:", error.message))
    .finally(() => (reloading = null));
}

const link = new Link(base, `/ws/runs/${page.run}/`, {
  seen: () => ({ attempt: store.attempt?.number ?? 0, seq: store.seen }),
  events: onEvents,
  run: (change) => {
    applyRun(store, change);
    askAgain();
    drawHeadSoon();
    tellPanels(["run"]);
  },
  restart,
  status,
});

// "/" searches; where nothing on the shown tab can be searched, it is the series.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.defaultPrevented || event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  if (activeTab() !== "charts") showTab("charts");
  byId("series-search").focus();
});

startTabs(view);
const bar = new ChartBar(view, bands);
startControl(base);
setInterval(drawHeadSoon, 1000);
setInterval(watchQuiet, 2000);
status("waiting");
(async function begin() {
  for (let wait = 1000; ; wait = Math.min(15000, wait * 2)) {
    try {
      await load();
      link.open();
      travel.load();
      bar.offerSeeds();
      return;
    } catch (error) {
      status("lost", "the server does not answer, trying again");
      console.warn("The run could not be loaded:", error.message);
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
})();
