// The run page's tabs. A panel is opened the first time its tab is shown and the run is loaded; while it is shown it is told of changes.
//   registerPanel(name, { open(store), update(store, touched) })   touched: Set of event kinds and "load"; several panels may share a tab
//   lazyPanel(name, load)                                           the module is fetched with the tab and calls registerPanel itself
// Other modules move the reader by showTab(name); "headrace:tab" is dispatched on the document with {name} after every change.
import { byId } from "./dom.js";
import { param, setParams } from "./url.js";

const PERIOD = 250;
const FIRST = "overview";
const panels = new Map();
const loaders = new Map();
let store = null;
let current = FIRST;
let waiting = 0;
let told = new Set();

const tabs = () => [...byId("run-tabs").querySelectorAll("[role=tab]")];
export const activeTab = () => current;

export function registerPanel(name, panel) {
  const entry = { panel, opened: false };
  panels.set(name, [...(panels.get(name) || []), entry]);
  if (name === current) bring(new Set(["load"]));
}

export function lazyPanel(name, load) {
  loaders.set(name, [...(loaders.get(name) || []), load]);
  if (store && name === current) fetchPanels();
}

function fetchPanels() {
  for (const load of loaders.get(current) || []) load().catch((error) => console.warn(`A part of the tab ${current} could not be loaded:`, error.message));
  loaders.delete(current);
}

function bring(touched) {
  if (!store?.run) return;
  for (const entry of panels.get(current) || []) {
    if (entry.opened) entry.panel.update?.(store, touched);
    else {
      entry.opened = true;
      entry.panel.open?.(store);
    }
  }
}

// Called with every change of the store; the shown panels hear of it a few times a second, and never while the page is hidden.
export function tellPanels(touched) {
  for (const kind of touched) told.add(kind);
  if (waiting || document.hidden) return;
  waiting = setTimeout(() => {
    waiting = 0;
    const now = told;
    told = new Set();
    requestAnimationFrame(() => bring(now));
  }, PERIOD);
}

export function showTab(name, { push = true, focus = false } = {}) {
  const all = tabs();
  const chosen = all.find((tab) => tab.dataset.tab === name) || all.find((tab) => tab.dataset.tab === FIRST);
  current = chosen.dataset.tab;
  for (const tab of all) {
    const shown = tab === chosen;
    tab.setAttribute("aria-selected", String(shown));
    tab.tabIndex = shown ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !shown;
  }
  if (push) setParams({ tab: current === FIRST ? null : current }, { push: true });
  if (focus) chosen.focus();
  const list = byId("run-tabs");
  const over = Math.max(chosen.offsetLeft + chosen.offsetWidth - list.clientWidth - list.scrollLeft, 0) || Math.min(chosen.offsetLeft - list.scrollLeft, 0);
  if (over) list.scrollLeft += over;
  fetchPanels();
  bring(new Set(["load"]));
  document.dispatchEvent(new CustomEvent("headrace:tab", { detail: { name: current } }));
}

export function startTabs(given) {
  store = given;
  const list = byId("run-tabs");
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[data-tab]");
    if (!tab || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    showTab(tab.dataset.tab, { push: tab.dataset.tab !== current });
  });
  list.addEventListener("keydown", (event) => {
    const all = tabs();
    const place = all.findIndex((tab) => tab.dataset.tab === current);
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    showTab(all[(to + all.length) % all.length].dataset.tab, { focus: true });
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-tab-link]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    showTab(link.dataset.tabLink, { focus: true });
  });
  addEventListener("popstate", () => showTab(param("tab") || FIRST, { push: false }));
  document.addEventListener("visibilitychange", () => !document.hidden && tellPanels(["load"]));
  showTab(param("tab") || FIRST, { push: false });
}
