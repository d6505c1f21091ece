// The comparison page: wires its parts to the address. Without runs in it, only the query field is helped.
import { refreshTimes } from "../app.js";
import { byId, el, throttled } from "../run/dom.js";
import { columnList } from "../table/columns.js";
import { asSuggestion, combo, matching } from "../table/combo.js";
import { completeQuery } from "../table/query.js";

const asking = document.querySelector("[data-query]");
if (asking) completeQuery(asking, () => undefined);
if (byId("compare")) start(await Promise.all([import("./state.js"), import("./curves.js"), import("./parallel.js"), import("./scatter.js"), import("../run/view.js")]));
for (const kind of ["click", "keydown"]) document.addEventListener(kind, (event) => {
  for (const fold of document.querySelectorAll("main details.menu[open]")) {
    const away = kind === "click" ? !fold.contains(event.target) && event.target.isConnected : event.key === "Escape" && fold.contains(event.target);
    if (!away) continue;
    fold.open = false;
    if (kind === "keydown") fold.querySelector("summary").focus();
  }
});

function start([store, curves, { Parallel }, { drawScatter }, views]) {
  const { field, ids, isShown, keep, page, state } = store;
  const { view, change } = views;
  const parallel = new Parallel(byId("parallel"));
  const drawCurves = throttled(curves.draw, 60);
  const fields = page.fields;

  function goWith(next) {
    const url = new URL(location);
    for (const name of ["q", "group", "run"]) url.searchParams.delete(name);
    if (next.length) url.searchParams.set("runs", next.join(","));
    else url.searchParams.delete("runs");
    location.assign(url);
  }

  function drawLegend() {
    const shown = page.runs.filter(isShown).length;
    byId("shown-note").textContent = shown === page.runs.length ? "" : `${shown} shown`;
    for (const run of page.runs) {
      const item = byId("legend").querySelector(`[data-run="${run.id}"]`);
      item.querySelector(".legend-run").setAttribute("aria-pressed", String(!state.hide.has(run.id)));
      item.classList.toggle("brushed-out", !store.inBrush(run));
      byId("results").querySelector(`tr[data-run="${run.id}"]`)?.classList.toggle("out", !isShown(run));
    }
    byId("clear-brush").hidden = state.brush.size === 0;
  }

  function drawControls() {
    for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === view.axis));
    byId("smooth").value = view.smooth.kind === "ema" ? view.smooth.amount : 0;
    byId("smooth-now").textContent = view.smooth.kind === "mean" ? `${view.smooth.amount} points` : view.smooth.kind === "ema" && view.smooth.amount > 0 ? view.smooth.amount.toFixed(2) : "off";
    byId("log").checked = view.log;
    byId("reset-zoom").hidden = !view.zoom;
    byId("by").value = state.by;
    byId("band").value = state.band;
    byId("each").checked = state.each;
    byId("band-tool").hidden = byId("each-tool").hidden = !state.by;
    for (const [id, key] of [["scatter-x", state.sx], ["scatter-y", state.sy]]) byId(id).value = field(key).title;
    byId("scatter-color").value = state.sc ? field(state.sc).title : "run";
    byId("scatter-names").checked = state.names;
  }

  function drawSeries() {
    const names = state.charts.filter((name) => name !== "-");
    byId("series-chips").replaceChildren(...names.map((name) => {
      const out = el("button", { class: "button quiet small", type: "button", "aria-label": `Leave out ${name}`, title: "Leave out" }, "×");
      out.addEventListener("click", () => {
        const rest = names.filter((other) => other !== name);
        keep({ charts: rest.length ? rest : ["-"] });
        byId("add-series").focus();
      });
      return el("li", {}, name, out);
    }));
  }

  function drawGroups() {
    const box = byId("group-legend");
    box.hidden = !state.by;
    box.replaceChildren(...curves.groupsNow().map((group, index) => el("li", {}, el("span", { class: `run-mark run-c${index % 32}`, "aria-hidden": "true" }), `${group.label} (${group.runs.length} run${group.runs.length === 1 ? "" : "s"})`)));
  }

  let timer = 0;
  async function load() {
    clearTimeout(timer);
    let active = true;
    const began = performance.now();
    try {
      active = await curves.load();
      drawGroups();
    } catch (error) {
      byId("charts").setAttribute("aria-busy", "false");
      byId("shown-note").textContent = `The curves could not be fetched: ${error.message}`;
    }
    // Many long runs take the server a while: it is asked the less often, and by one clock.
    clearTimeout(timer);
    if (active) timer = setTimeout(again, Math.max(6000, 8 * (performance.now() - began)));
  }

  // While a run goes on its curves, values and results are asked for again.
  async function again() {
    if (document.hidden) {
      timer = setTimeout(again, 6000);
      return;
    }
    try {
      const reply = await fetch(`/compare/data.json?runs=${ids.join(",")}`, { credentials: "same-origin" });
      const fresh = new Map((await reply.json()).runs.map((run) => [run.id, run]));
      for (const run of page.runs) Object.assign(run, fresh.get(run.id));
      await results();
      parallel.draw();
      drawScatter(byId("scatter"));
    } catch (error) {
      console.warn("The comparison is not fresh:", error.message);
    }
    load();
  }

  async function results() {
    const url = new URL(location);
    url.searchParams.set("part", "results");
    const reply = await fetch(url, { credentials: "same-origin" });
    if (!reply.ok || reply.redirected) return;
    const parsed = new DOMParser().parseFromString(await reply.text(), "text/html");
    byId("results").replaceChildren(...parsed.body.childNodes);
    refreshTimes(byId("results"));
    drawLegend();
  }

  function bindRuns() {
    byId("legend").addEventListener("click", (event) => {
      const id = event.target.closest("[data-run]")?.dataset.run;
      if (event.target.closest("[data-remove]")) goWith(ids.filter((other) => other !== id));
      if (!event.target.closest(".legend-run")) return;
      const hide = new Set(state.hide);
      if (!hide.delete(id)) hide.add(id);
      keep({ hide });
    });
    const search = async (text) => {
      const reply = await fetch(`/compare/search.json?q=${encodeURIComponent(text)}`, { credentials: "same-origin" });
      const body = await reply.json();
      return body.runs.filter((run) => !ids.includes(run.id)).map((run) => ({ label: run.name, note: [run.state, run.preset, run.group].filter(Boolean).join(", "), value: run.id }));
    };
    combo(byId("add-run"), search, (item) => goWith([...ids, item.value]), { open: "focus" });
    byId("diff-link").addEventListener("click", (event) => {
      event.preventDefault();
      const url = new URL(location);
      if (url.searchParams.get("diff")) url.searchParams.delete("diff");
      else url.searchParams.set("diff", "all");
      url.hash = "diff";
      location.assign(url);
    });
    byId("copy-link").addEventListener("click", async (event) => {
      const button = event.currentTarget;
      try {
        await navigator.clipboard.writeText(location.href);
        button.textContent = "Copied";
      } catch (error) {
        console.info("The link is in the address bar:", error.message);
        button.textContent = "Copy it from the address bar";
      }
      setTimeout(() => (button.textContent = "Copy link"), 2000);
    });
  }

  function bindCurves() {
    for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => change({ axis: button.dataset.axis }));
    byId("smooth").addEventListener("input", (event) => {
      const amount = Number(event.target.value);
      change({ smooth: amount > 0 ? { kind: "ema", amount } : { kind: "none", amount: 0 } });
    });
    byId("log").addEventListener("change", (event) => change({ log: event.target.checked }));
    byId("reset-zoom").addEventListener("click", () => change({ zoom: null }));
    const offered = fields.filter((item) => ["preset", "group", "state", "by", "tag", "experiment"].includes(item.key) || (item.source === "config" && (item.varies || item.key === state.by) && item.key !== "config.preset"));
    byId("by").append(...offered.map((item) => el("option", { value: item.key }, item.title)));
    if (state.by && !offered.some((item) => item.key === state.by)) byId("by").append(el("option", { value: state.by }, field(state.by).title));
    byId("by").addEventListener("change", (event) => keep({ by: event.target.value }));
    byId("band").addEventListener("change", (event) => keep({ band: event.target.value }));
    byId("each").addEventListener("change", (event) => keep({ each: event.target.checked }));
    const titles = new Map(fields.map((item) => [item.key, item.title]));
    const series = page.series.map((name) => ({ key: name, title: titles.get(name) || name }));
    combo(byId("add-series"), async (text) => matching(series.filter((item) => !state.charts.includes(item.key)), text).map(asSuggestion), (item) => {
      byId("add-series").value = "";
      keep({ charts: [...state.charts.filter((name) => name !== "-"), item.value].slice(-store.MOST_SERIES) });
    }, { open: "focus" });
  }

  function bindFields() {
    const picker = (id, name, extra = []) => {
      const input = byId(id);
      input.addEventListener("focus", () => input.select());
      input.addEventListener("blur", drawControls);
      combo(input, async (text) => {
        const fresh = text === (state[name] ? field(state[name]).title : "run") ? "" : text;
        return [...(fresh ? [] : extra), ...matching(fields, fresh).map(asSuggestion)];
      }, (item) => keep({ [name]: item.value }), { open: "focus" });
    };
    picker("scatter-x", "sx");
    picker("scatter-y", "sy");
    picker("scatter-color", "sc", [{ label: "run", note: "a colour a run", value: "" }]);
    byId("scatter-names").addEventListener("change", (event) => keep({ names: event.target.checked }));
    byId("clear-brush").addEventListener("click", () => {
      keep({ brush: new Map() });
      byId("parallel").querySelector(".axis-hit")?.focus();
    });
    columnList(byId("parallel-fields").querySelector(".menu-box"), state.par, (par) => keep({ par }), store.MOST_AXES, fields);
    columnList(byId("result-columns").querySelector(".menu-box"), byId("result-columns").dataset.keys.split(",").filter(Boolean), (cols) => keep({ cols: cols.join(",") }), 20, fields);
  }

  document.addEventListener("headrace:compare", ({ detail: { changed } }) => {
    const any = (...names) => names.some((name) => changed.has(name));
    drawLegend();
    drawControls();
    if (any("charts")) drawSeries();
    if (any("charts", "by", "band")) load();
    else if (any("hide", "brush", "each")) drawCurves();
    if (any("hide", "brush", "par")) parallel.draw();
    if (any("hide", "brush", "sx", "sy", "sc", "names")) drawScatter(byId("scatter"));
    if (any("cols")) results().catch((error) => console.warn("The results could not be fetched:", error.message));
  });
  document.addEventListener("headrace:view", ({ detail: { changed } }) => {
    store.follow();
    drawControls();
    if (changed.has("axis") || changed.has("all")) load();
    else drawCurves();
  });
  document.addEventListener("themechange", () => drawScatter(byId("scatter")));

  bindRuns();
  bindCurves();
  bindFields();
  curves.startCurves(byId("charts"));
  store.follow();
  drawSeries();
  drawControls();
  drawLegend();
  load();
  drawScatter(byId("scatter"));
}
