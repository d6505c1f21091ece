// On every page: theme toggle, shortcuts, times in the reader's zone.
import { ago, ahead, when } from "./format.js";

const root = document.documentElement;

function currentTheme() {
  return root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function toggleTheme() {
  const next = currentTheme() === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  try {
    localStorage.setItem("headrace-theme", next);
  } catch (error) {
    console.info("The theme holds for this page only:", error.message);
  }
  document.dispatchEvent(new CustomEvent("themechange"));
}

export function refreshTimes(scope = document) {
  for (const node of scope.querySelectorAll("time[datetime]")) {
    const date = new Date(node.dateTime);
    node.title = when(date);
    node.textContent = node.dataset.full !== undefined ? when(date) : node.dataset.ahead !== undefined ? ahead(date) : ago(date);
  }
}

const drawer = document.getElementById("shortcuts");
function openDrawer() {
  if (drawer && !drawer.open) drawer.showModal();
}

const jumps = { r: "/runs/", n: "/runs/new/", q: "/queue/", c: "/compare/", p: "/races/", l: "/alerts/", m: "/team/", a: "/help/axes/" };
let prefix = 0;

async function openPalette() {
  const palette = await import("./palette.js");
  palette.open();
}

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && ["k", "K", "/"].includes(event.key) && drawer && document.getElementById("palette")) {
    event.preventDefault();
    return event.key === "/" ? openDrawer() : openPalette();
  }
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing) return typing.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") return openDrawer();
  if (event.key === "t") return toggleTheme();
  if (event.key === "/") {
    const search = [...document.querySelectorAll("[data-search]")].find((input) => input.offsetParent);
    if (search) {
      event.preventDefault();
      search.focus();
    }
    return;
  }
  if (event.key === "g") {
    prefix = Date.now();
    return;
  }
  if (Date.now() - prefix < 1200 && jumps[event.key]) location.href = jumps[event.key];
  prefix = 0;
}

// Strips of links that scroll sideways on a narrow screen: the current one is in sight, and an edge with more behind it fades.
function settle(strip) {
  const here = strip.querySelector('[aria-current="page"], [aria-selected="true"]');
  if (here && strip.scrollWidth > strip.clientWidth) {
    strip.scrollLeft += here.getBoundingClientRect().left - strip.getBoundingClientRect().left - (strip.clientWidth - here.offsetWidth) / 2;
  }
  fade(strip);
}

function fade(strip) {
  const behind = strip.scrollWidth - strip.clientWidth - strip.scrollLeft;
  strip.dataset.more = [strip.scrollLeft > 2 && "start", behind > 2 && "end"].filter(Boolean).join(" ");
}

const strips = document.querySelectorAll(".nav, .run-tabs");
for (const strip of strips) {
  settle(strip);
  strip.addEventListener("scroll", () => fade(strip), { passive: true });
}
addEventListener("resize", () => strips.forEach(settle));
document.addEventListener("headrace:tab", () => strips.forEach(settle));

const menu = document.getElementById("user-menu");
document.addEventListener("keydown", onKey);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !menu?.open) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-theme-toggle]")) toggleTheme();
  if (event.target.closest("[data-shortcuts]")) openDrawer();
  if (event.target.closest("[data-palette]")) openPalette();
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
  if (event.target === drawer) drawer.close();
  if (menu?.open && !menu.contains(event.target)) menu.open = false;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("themechange")));

refreshTimes();
setInterval(refreshTimes, 20000);
