// A race's page: what changes is fetched again while it goes on; the drawings become Plotly charts that can be read and zoomed.
import { refreshTimes } from "../app.js";
import { inert } from "../format.js";

const data = JSON.parse(document.getElementById("race-data").textContent);
const PERIOD = 3000;
const COLORS = 6;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CONFIG = { displaylogo: false, displayModeBar: "hover", responsive: true, scrollZoom: false, doubleClick: "reset",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"], toImageButtonOptions: { format: "png", scale: 2 } };
const TITLES = { wall_s: "seconds since the start", samples: "samples trained" };
const axes = new Map();
let results = null;
let seen = JSON.stringify(data.live);

const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);
function color(token) {
  probe.style.color = `var(--${token})`;
  return getComputedStyle(probe).color;
}
const soft = (rgb, alpha) => `rgba(${(rgb.match(/[\d.]+/g) || [0, 0, 0]).slice(0, 3).join(",")},${alpha})`;

function traces(series) {
  const found = [];
  series.forEach((one, index) => {
    if (!one.x.length) return;
    const shade = color(`chart-${(index % COLORS) + 1}`);
    if (one.lo.some((value) => value !== null)) {
      const edge = { x: one.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: one.label };
      found.push({ ...edge, y: one.lo }, { ...edge, y: one.hi, fill: "tonexty", fillcolor: soft(shade, 0.14) });
    }
    found.push({ x: one.x, y: one.mean, name: inert(one.label), legendgroup: one.label, mode: one.x.length > 1 ? "lines" : "markers",
      line: { color: shade, width: 2.2, dash: DASHES[Math.floor(index / COLORS) % DASHES.length] }, marker: { color: shade, size: 7 }, hovertemplate: "%{y:.4f}" });
  });
  return found;
}

function draw(key) {
  const plot = document.querySelector(`[data-plot="${CSS.escape(key)}"]`);
  const axis = axes.get(key) || "wall_s";
  for (const node of plot.querySelectorAll("[data-drawn]")) node.hidden = node.dataset.drawn !== axis;
  const series = results?.curves[key][axis];
  if (!window.Plotly || !series?.some((one) => one.x.length)) return;
  const [text, muted, line, surface] = ["text", "muted", "line", "surface"].map(color);
  const ticks = { gridcolor: line, linecolor: line, tickfont: { color: muted, size: 11 }, automargin: true, zeroline: false, nticks: 6 };
  const layout = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 16, t: 6, b: 8, pad: 4 }, hovermode: "x unified",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: text }, uirevision: axis, dragmode: "zoom",
    xaxis: { ...ticks, title: { text: TITLES[axis], standoff: 6, font: { size: 11, color: muted } } },
    yaxis: { ...ticks, rangemode: "tozero", title: { text: "mean reward", standoff: 8, font: { size: 11, color: muted } } },
    legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 11, color: muted } },
    hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: text, size: 12 } }, modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: text } };
  if (!plot.dataset.live) {
    const label = plot.querySelector("[data-drawn]:not([hidden]) svg")?.getAttribute("aria-label");
    plot.replaceChildren();
    plot.dataset.live = "1";
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", label || key);
  }
  Plotly.react(plot, traces(series), layout, CONFIG);
}

const drawAll = () => document.querySelectorAll("[data-plot]").forEach((plot) => draw(plot.dataset.plot));

async function fetchResults() {
  const reply = await fetch(`/races/${data.race}/results.json`, { credentials: "same-origin" });
  if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
  results = await reply.json();
  drawAll();
}

function swap(parsed, id) {
  const here = document.getElementById(id);
  const fresh = parsed.getElementById(id);
  if (!here || !fresh || here.contains(document.activeElement)) return;
  const open = new Set([...here.querySelectorAll("details[open] > summary")].map((node) => node.textContent.split(":")[0]));
  here.replaceWith(fresh);
  for (const node of fresh.querySelectorAll("details > summary")) node.parentElement.open = open.has(node.textContent.split(":")[0]);
}

async function refresh() {
  const reply = await fetch(`/races/${data.race}/live.json`, { credentials: "same-origin" });
  if (!reply.ok) return;
  const live = await reply.json();
  const now = JSON.stringify(live);
  if (now === seen) return;
  seen = now;
  const ended = Boolean(live.closed) !== data.over;
  data.over = Boolean(live.closed);
  const page = await fetch(`/races/${data.race}/?parts=1`, { credentials: "same-origin" });
  if (!page.ok || page.redirected) return;
  // Server-rendered and escaped there; parsed without running anything.
  const parsed = new DOMParser().parseFromString(await page.text(), "text/html");
  for (const id of ["race-state", "race-top", "race-results"]) swap(parsed, id);
  refreshTimes();
  if (live.finished !== results?.finished) await fetchResults();
  if (ended) location.reload(); // the buttons of a race that has ended are others
}

// One axis for both charts; it is part of the address, so that a link shows the same.
function choose(axis) {
  for (const group of document.querySelectorAll("[data-axis-of]")) {
    axes.set(group.dataset.axisOf, axis);
    for (const one of group.querySelectorAll("[data-axis]")) one.setAttribute("aria-pressed", String(one.dataset.axis === axis));
    draw(group.dataset.axisOf);
  }
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-axis-of] [data-axis]");
  if (!button) return;
  const url = new URL(location.href);
  if (button.dataset.axis === "samples") url.searchParams.set("x", "samples");
  else url.searchParams.delete("x");
  history.replaceState(null, "", url);
  choose(button.dataset.axis);
});
if (new URLSearchParams(location.search).get("x") === "samples") choose("samples");
document.addEventListener("themechange", drawAll);
window.addEventListener("load", () => fetchResults().catch((error) => console.warn("The results could not be read:", error.message)));
setInterval(() => {
  if (document.hidden || data.over) return;
  refresh().catch((error) => console.warn("The page is not fresh:", error.message));
}, PERIOD);
