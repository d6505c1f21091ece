// The command palette (Ctrl or Cmd K): pages, this page's buttons, and whatever the server finds. Loaded when it is first opened.
import { byId, el } from "./run/dom.js";

const WAIT = 120;
const box = byId("palette");
const input = byId("palette-input");
const list = byId("palette-list");
const said = byId("palette-said");
let entries = [];
let chosen = 0;
let timer = 0;
let asked = 0;

const words = (text) => text.trim().replace(/\s+/g, " ");

function pages() {
  const links = document.querySelectorAll(".nav a, #user-menu a");
  return [...links].map((link) => ({ kind: "Page", title: words(link.textContent), note: "", url: link.getAttribute("href") }));
}

// What can be pressed on this page now, by the words on its buttons.
function acts() {
  const buttons = document.querySelectorAll("main .actions button, main .actions a.button, main [data-command]");
  return [...buttons]
    .filter((node) => node.offsetParent && !node.disabled && node.getAttribute("aria-disabled") !== "true")
    .map((node) => ({ kind: "Do", title: words(node.dataset.command || node.textContent), note: "on this page", node }));
}

function themes() {
  return [{ kind: "Do", title: "Switch between light and dark", note: "t", node: document.querySelector("[data-theme-toggle]") }];
}

function fits(entry, text) {
  const whole = `${entry.kind} ${entry.title} ${entry.note}`.toLowerCase();
  return text.split(/\s+/).every((word) => whole.includes(word));
}

function mark(next) {
  chosen = entries.length ? (next + entries.length) % entries.length : 0;
  [...list.children].forEach((node, index) => node.setAttribute("aria-selected", String(index === chosen)));
  const node = list.children[chosen];
  if (node) {
    input.setAttribute("aria-activedescendant", node.id);
    node.scrollIntoView({ block: "nearest" });
  } else input.removeAttribute("aria-activedescendant");
}

function draw(searching = false) {
  list.replaceChildren(...entries.map((entry, index) =>
    el("li", { id: `palette-${index}`, role: "option", "aria-selected": "false", "data-index": index },
      el("span", { class: "palette-kind" }, entry.kind), el("span", { class: "palette-title" }, entry.title), el("span", { class: "note" }, entry.note))));
  said.textContent = searching ? "Searching…" : entries.length ? `${entries.length} found` : "Nothing found. Try a run's name, a preset, a page or a setting.";
  mark(0);
}

function go(entry) {
  if (!entry) return;
  box.close();
  if (entry.url) location.href = entry.url;
  else entry.node.click();
}

async function ask(text) {
  const own = ++asked;
  const near = [...acts(), ...pages(), ...themes()].filter((entry) => fits(entry, text.toLowerCase()));
  entries = near;
  draw(true);
  try {
    const answer = await fetch(`/search.json?q=${encodeURIComponent(text)}`, { headers: { Accept: "application/json" } });
    if (own !== asked) return;
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    entries = text ? [...near, ...(await answer.json()).entries] : [...(await answer.json()).entries, ...near];
    draw();
  } catch (error) {
    if (own === asked) said.textContent = `Only this page is searched: ${error.message}.`;
  }
}

input.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => ask(words(input.value)), WAIT);
});
input.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (steps) mark(chosen + steps);
  else if (event.key === "Enter") go(entries[chosen]);
  else return;
  event.preventDefault();
});
list.addEventListener("click", (event) => go(entries[event.target.closest("li")?.dataset.index]));
box.addEventListener("click", (event) => {
  if (event.target === box) box.close();
});

export function open() {
  if (box.open) return box.close();
  box.showModal();
  input.value = "";
  ask("");
  input.focus();
}
