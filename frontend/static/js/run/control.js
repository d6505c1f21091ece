// The run's controls: presses go out by fetch, what was asked is followed until it is done, a refusal is said in words.
import { clock, duration } from "../format.js";
import { byId, el, setText } from "./dom.js";

const POLL_MS = 1500;
const KEYS = { P: ["go_on", "pause"], C: ["checkpoint"], S: ["stop"] };

export function startControl(base) {
  const box = byId("controls");
  if (!box) return;
  let data = JSON.parse(byId("control-data").textContent);
  let timer = 0;

  const dialog = byId("control-ask");
  const forms = [...box.querySelectorAll("form[data-press]")];
  const formOf = (name) => forms.find((form) => form.dataset.press === name);
  // From here on the page's own dialog asks.
  const questions = new Map();
  for (const form of forms.filter((one) => one.dataset.confirm)) {
    questions.set(form, form.dataset.confirm);
    delete form.dataset.confirm;
  }

  function problem(words, place = byId("control-problem")) {
    place.hidden = !words;
    setText(place, words || "");
  }

  function show(next) {
    data = next;
    for (const node of box.querySelectorAll("[data-control]")) {
      const state = data[node.dataset.control];
      node.hidden = !state.shown;
      const press = node.matches("form") ? node.querySelector("button") : node.matches("a") ? node : node.querySelector("summary");
      if (state.why) press.setAttribute("aria-disabled", "true");
      else press.removeAttribute("aria-disabled");
      if (press.dataset.help || state.why) press.title = state.why ? `Not now: ${state.why}` : press.dataset.help;
      if (node.matches("a")) node.classList.toggle("primary", state.enabled);
    }
    showBudget();
    const lines = data.said.map((line) => {
      const asked = `asked at ${clock(Date.parse(line.at) / 1000)}`;
      return el("li", { class: line.done ? "done" : null, title: `by ${line.by}` }, el("strong", {}, line.words), ` · ${asked}`);
    });
    const key = JSON.stringify(data.said);
    const list = byId("control-said");
    if (list.dataset.shown !== key) {
      list.dataset.shown = key;
      list.replaceChildren(...lines);
    }
    follow();
  }

  function showBudget() {
    const menu = byId("budget-menu");
    if (!menu) return;
    const { budget } = data;
    const wall = budget.done_wall_s ? `, ${duration(budget.done_wall_s)} gone` : "";
    setText(menu.querySelector("[data-budget-done]"), `${budget.done_steps} of ${budget.steps} steps done${wall}`);
    if (menu.open) return;
    byId("budget-steps").value = budget.steps;
    byId("budget-wall").value = budget.wall_s ?? "";
  }

  // Something asked and not done yet is asked after until it is.
  function follow() {
    clearTimeout(timer);
    if (data.said.some((line) => !line.done)) timer = setTimeout(refresh, POLL_MS);
  }

  async function refresh() {
    try {
      const reply = await fetch(`${base}control.json`, { credentials: "same-origin" });
      if (reply.ok) show(await reply.json());
      else follow();
    } catch (error) {
      console.warn("The run's controls are not fresh:", error.message);
      follow();
    }
  }

  async function send(form) {
    const name = form.dataset.press;
    const place = form.querySelector("[data-problem]") || byId("control-problem");
    problem("", place);
    const button = form.querySelector("button[type=submit]");
    button.setAttribute("aria-busy", "true");
    try {
      const reply = await fetch(form.action, { method: "POST", body: new FormData(form), headers: { Accept: "application/json" }, credentials: "same-origin" });
      const body = await reply.json();
      if (reply.status === 401) location.assign(`/login/?next=${encodeURIComponent(location.pathname)}`);
      else if (!reply.ok) problem(`${body.field ? `${body.field}: ` : ""}${body.message}${body.cure ? `. To do: ${body.cure}.` : ""}`, place);
      else {
        if (name === "extend") byId("budget-menu").open = false;
        show(body);
      }
    } catch (error) {
      problem(`The server could not be asked: ${error.message}`, place);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  function press(form) {
    const state = data[form.dataset.press];
    if (!state.enabled) return problem(`Not now: ${state.why}.`);
    if (!questions.has(form)) return send(form);
    setText(byId("control-ask-words"), questions.get(form));
    dialog.dataset.press = form.dataset.press;
    return dialog.showModal();
  }

  box.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-press]");
    if (!form) return;
    event.preventDefault();
    press(form);
  });
  box.querySelector("a[data-control]")?.addEventListener("click", (event) => {
    const state = data[event.currentTarget.dataset.control];
    if (state.enabled) return;
    event.preventDefault();
    problem(`Not now: ${state.why}.`);
  });
  dialog.querySelector("[data-yes]").addEventListener("click", () => {
    dialog.close();
    send(formOf(dialog.dataset.press));
  });
  document.addEventListener("keydown", (event) => {
    if (!event.shiftKey || box.inert || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    if (event.key === "B" && byId("budget-menu") && data.extend.shown) {
      event.preventDefault();
      byId("budget-menu").open = true;
      byId("budget-steps").select();
      return;
    }
    const name = (KEYS[event.key] || []).find((one) => data[one].shown);
    if (name) press(formOf(name));
  });
  const menu = byId("budget-menu");
  menu?.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  document.addEventListener("click", (event) => {
    if (menu?.open && !menu.contains(event.target)) menu.open = false;
  });
  // The chip says every move of the run, whoever made it.
  new MutationObserver(refresh).observe(byId("state-chip"), { attributes: true, attributeFilter: ["data-state"] });
  show(data);
}
