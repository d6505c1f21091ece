// The form of a race: every change is judged by the server, whose answer stands beside the form. Without script the buttons do the same.
import { duration } from "../format.js";

const form = document.getElementById("race-form");
const box = document.getElementById("race-preview");
const WAIT = 350;
let pending = 0;
let asked = 0;

function mark() {
  for (const item of form.querySelectorAll("[aria-invalid]")) item.removeAttribute("aria-invalid");
  for (const link of box.querySelectorAll("#error-summary a")) {
    const target = document.querySelector(link.hash);
    if (target?.matches(".input")) target.setAttribute("aria-invalid", "true");
  }
  for (const node of box.querySelectorAll("[data-seconds]")) node.textContent = duration(node.dataset.seconds);
  for (const node of box.querySelectorAll("[data-no-script]")) node.hidden = true;
}

async function refresh(extra) {
  const turn = (asked += 1);
  box.classList.add("stale");
  const data = new FormData(form);
  if (extra) data.append(extra.name, extra.value);
  const reply = await fetch("/races/preview/", { method: "POST", body: data, credentials: "same-origin", headers: { Accept: "text/html" } });
  if (turn !== asked) return;
  box.classList.remove("stale");
  if (!reply.ok || reply.redirected) throw new Error(`the server answered ${reply.status}`);
  // Server-rendered and escaped there; parsed without running anything.
  const parsed = new DOMParser().parseFromString(await reply.text(), "text/html");
  const open = new Set([...box.querySelectorAll("details[open] > summary")].map((node) => node.textContent.slice(0, 12)));
  box.replaceChildren(...parsed.body.childNodes);
  for (const node of box.querySelectorAll("details > summary")) if (open.has(node.textContent.slice(0, 12))) node.parentElement.open = true;
  mark();
}

function soon(extra) {
  clearTimeout(pending);
  pending = setTimeout(() => refresh(extra).catch((error) => console.warn("The preview is not fresh:", error.message)), extra ? 0 : WAIT);
}

function stopRule() {
  const kind = document.getElementById("race-stop-kind");
  document.getElementById("stop-unit").textContent = kind.selectedOptions[0].dataset.unit;
  document.getElementById("limit-field").hidden = !["samples", "tokens"].includes(kind.value);
}

const search = document.getElementById("preset-search");
search.parentElement.hidden = false;
search.addEventListener("input", (event) => {
  event.stopPropagation();
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const card of document.querySelectorAll(".preset-card")) {
    const text = card.dataset.words.toLowerCase();
    card.hidden = !words.every((word) => text.includes(word)) && !card.querySelector("input:checked");
    if (!card.hidden) shown += 1;
  }
  document.getElementById("preset-none").hidden = shown > 0;
});

const more = document.getElementById("own-more");
more.hidden = false;
more.addEventListener("click", () => {
  const rows = document.getElementById("own-rows");
  const number = rows.children.length + 1;
  const row = rows.lastElementChild.cloneNode(true);
  for (const input of row.querySelectorAll(".input")) {
    input.id = input.id.replace(/\d+$/, String(number));
    if (!input.matches("select")) input.value = "";
  }
  for (const label of row.querySelectorAll("label")) label.htmlFor = label.htmlFor.replace(/\d+$/, String(number));
  row.querySelector("legend").textContent = `Own variant ${number}`;
  rows.append(row);
  row.querySelector(".input").focus();
  more.hidden = number >= 8;
});

form.addEventListener("input", () => soon());
form.addEventListener("change", (event) => {
  if (event.target.id === "race-stop-kind") stopRule();
  const note = event.target.closest(".field")?.querySelector("[data-chosen]");
  if (note && event.target.matches("select")) note.textContent = event.target.selectedOptions[0]?.dataset.note ?? "";
  soon();
});
form.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button || !(["equal", "release"].includes(button.name) || button.value === "plan")) return;
  event.preventDefault();
  soon(button);
  if (button.value === "plan") button.textContent = "Planning…";
});
// A link of the error summary may point into a closed fold.
box.addEventListener("click", (event) => {
  const link = event.target.closest("#error-summary a");
  const target = link && document.querySelector(link.hash);
  if (!target) return;
  const fold = target.closest("details");
  if (fold) fold.open = true;
  target.focus();
});
stopRule();
mark();
document.getElementById("error-summary")?.focus();
