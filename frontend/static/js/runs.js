// The runs table: rows are fetched again every few seconds and after typing; what is chosen, focused or open stays so.
import { refreshTimes } from "./app.js";
import { columnList } from "./table/columns.js";
import { completeQuery } from "./table/query.js";

const box = document.getElementById("runs");
const form = document.getElementById("filters");
const bulk = document.getElementById("bulk");
const said = document.getElementById("table-said");
const PERIOD = 4000;
const chosen = new Set();
let asked = 0;

// Server-rendered and escaped there; parsed without running anything.
const parse = (text) => new DOMParser().parseFromString(text, "text/html").body;
const sameRest = (old, fresh) => {
  const bare = (node) => {
    const copy = node.cloneNode(true);
    copy.querySelectorAll("tbody").forEach((rows) => rows.replaceChildren());
    return copy.innerHTML.trim();
  };
  return bare(old) === bare(fresh);
};

// The markup of each row as it came: a row is replaced only when it changed.
const came = new Map();
function remember(scope) {
  came.clear();
  for (const row of scope.querySelectorAll("tr[data-run]")) came.set(row.dataset.run, row.outerHTML);
}

function place(fresh) {
  const rows = box.querySelector("tbody");
  const focus = document.activeElement?.closest?.("tr[data-run]") ? [document.activeElement.closest("tr").dataset.run, document.activeElement.matches("input") ? "input" : "a"] : null;
  const old = new Map([...rows.querySelectorAll("tr[data-run]")].map((row) => [row.dataset.run, row]));
  const next = [...fresh.querySelectorAll("tbody > tr")].map((row) => {
    const text = row.outerHTML;
    const kept = row.dataset.run && came.get(row.dataset.run) === text && old.get(row.dataset.run);
    if (row.dataset.run) came.set(row.dataset.run, text);
    if (!kept) refreshTimes(row);
    return kept || row;
  });
  const now = [...rows.children];
  if (now.length !== next.length || now.some((row, index) => row !== next[index])) {
    rows.replaceChildren(...next);
    if (focus) rows.querySelector(`tr[data-run="${CSS.escape(focus[0])}"] ${focus[1]}`)?.focus({ preventScroll: true });
  }
}

async function refresh(address = location.href, words = false) {
  const turn = (asked += 1);
  const url = new URL(address, location.href);
  url.searchParams.set("rows", "1");
  const reply = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (!reply.ok || reply.redirected || turn !== asked) return;
  const fresh = parse(await reply.text());
  const shell = box.querySelector("table") && sameRest(box, fresh);
  if (shell) place(fresh);
  else {
    remember(fresh);
    box.replaceChildren(...fresh.childNodes);
    refreshTimes(box);
  }
  choose();
  const count = box.querySelectorAll("tr[data-run]").length;
  if (words) said.textContent = box.querySelector(".query-fault p")?.textContent || `${count} run${count === 1 ? "" : "s"} shown`;
}

// Boxes follow the set of chosen runs, not the other way round: a row may leave the page and come back.
function choose() {
  const boxes = [...box.querySelectorAll("input[name=run]")];
  for (const item of boxes) item.checked = chosen.has(item.value);
  const here = boxes.filter((item) => item.checked).length;
  const all = box.querySelector("[data-pick-all]");
  if (all) {
    all.checked = boxes.length > 0 && here === boxes.length;
    all.indeterminate = here > 0 && here < boxes.length;
  }
  document.getElementById("bulk-count").textContent = `${here} chosen`;
}

function address(changes = {}) {
  const url = new URL(location.pathname, location.href);
  for (const [key, value] of new FormData(form)) if (value) url.searchParams.set(key, value);
  for (const [key, value] of Object.entries(changes)) value ? url.searchParams.set(key, value) : url.searchParams.delete(key);
  return url;
}

// The link, the CSV, the saved view and the way back all follow what is shown.
function go(url) {
  history.replaceState(null, "", url);
  const here = new URLSearchParams(url.search);
  here.delete("page");
  for (const node of document.querySelectorAll("[data-here]")) node.value = here.toString();
  const csv = document.getElementById("csv-link");
  if (csv) csv.href = `/runs/table.csv?${here}`;
  return refresh(url, true).catch((error) => console.warn("The table could not be fetched:", error.message));
}

function bindForm() {
  const search = form.querySelector("[data-search]");
  let pending = 0;
  const typed = () => {
    clearTimeout(pending);
    pending = setTimeout(() => go(address()), 200);
  };
  form.addEventListener("input", (event) => event.target.name && typed());
  form.addEventListener("change", (event) => event.target.name && typed());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(pending);
    go(address());
  });
  completeQuery(search, typed);
  const input = form.querySelector("[data-columns]");
  const field = input.closest("label");
  const show = field.nextElementSibling;
  const keys = (input.value || input.placeholder).split(",");
  field.hidden = true;
  show.hidden = true;
  columnList(field.parentElement, keys, (next) => {
    input.value = next.join(",");
    go(address());
  });
}

function bindTable() {
  box.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick-all]")) {
      for (const item of box.querySelectorAll("input[name=run]")) event.target.checked ? chosen.add(item.value) : chosen.delete(item.value);
    } else if (event.target.matches("input[name=run]")) event.target.checked ? chosen.add(event.target.value) : chosen.delete(event.target.value);
    choose();
  });
  bulk.addEventListener("reset", () => {
    chosen.clear();
    setTimeout(choose);
  });
  box.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-sort]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const url = new URL(link.href);
    let hidden = form.querySelector("input[name=sort]");
    if (!hidden) form.append((hidden = Object.assign(document.createElement("input"), { type: "hidden", name: "sort" })));
    hidden.value = url.searchParams.get("sort") || "";
    const text = link.textContent;
    go(url).then(() => [...box.querySelectorAll("a[data-sort]")].find((other) => other.textContent === text)?.focus());
  });
}

if (box && form) {
  remember(parse(box.innerHTML));
  bindForm();
  bindTable();
  // A page that the browser brings back keeps its ticks.
  for (const item of box.querySelectorAll("input[name=run]:checked")) chosen.add(item.value);
  choose();
  setInterval(() => {
    if (!document.hidden) refresh().catch((error) => console.warn("The table is not fresh:", error.message));
  }, PERIOD);
}
document.addEventListener("click", (event) => {
  for (const fold of document.querySelectorAll("main details.menu[open]")) if (!fold.contains(event.target) && event.target.isConnected) fold.open = false;
});
document.addEventListener("keydown", (event) => {
  const fold = event.key === "Escape" && event.target.closest?.("main details.menu[open]");
  if (!fold) return;
  fold.open = false;
  fold.querySelector("summary").focus();
});
