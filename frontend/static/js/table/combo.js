// A text field with suggestions under it: arrows, Enter, Tab, Escape and the mouse; told to screen readers as a combobox.
import { el } from "../run/dom.js";

let count = 0;

// suggest(text, caret) gives [{ label, note, value }] (or a promise of it); pick(item) says what a choice does.
export function combo(input, suggest, pick, { open = "typing" } = {}) {
  const id = `suggestions-${(count += 1)}`;
  const list = el("ul", { class: "suggestions", role: "listbox", id, "aria-label": "Suggestions", hidden: true });
  let items = [];
  let at = -1;
  let asked = 0;
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", id], ["autocomplete", "off"]]) input.setAttribute(name, value);
  input.after(list);

  const close = () => {
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = (next) => {
    at = next;
    [...list.children].forEach((node, index) => node.setAttribute("aria-selected", String(index === at)));
    if (at < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `${id}-${at}`);
    list.children[at].scrollIntoView({ block: "nearest" });
  };
  const choose = (item) => {
    close();
    pick(item);
  };
  const show = async () => {
    const turn = (asked += 1);
    const found = await suggest(input.value, input.selectionStart ?? input.value.length);
    if (turn !== asked || document.activeElement !== input) return;
    items = found.slice(0, 40);
    list.replaceChildren(...items.map((item, index) => {
      const node = el("li", { role: "option", id: `${id}-${index}`, "aria-selected": "false" }, el("code", {}, item.label), el("span", {}, item.note || ""));
      node.addEventListener("mousedown", (event) => {
        event.preventDefault();
        choose(item);
      });
      return node;
    }));
    list.hidden = items.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  };
  input.addEventListener("input", show);
  input.addEventListener("click", () => open === "focus" && show());
  input.addEventListener("focus", () => open === "focus" && show());
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && list.hidden) {
      event.preventDefault();
      return show();
    }
    if (list.hidden) return undefined;
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (moves[event.key]) {
      event.preventDefault();
      mark((at + moves[event.key] + items.length + (at < 0 && moves[event.key] < 0 ? 1 : 0)) % items.length);
    } else if ((event.key === "Enter" || event.key === "Tab") && at >= 0) {
      event.preventDefault();
      choose(items[at]);
    } else if (event.key === "Enter" && open === "focus") {
      event.preventDefault();
      if (items.length) choose(items[0]);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    return undefined;
  });
  return { close, show };
}

// Those whose name or title holds every typed word; names that begin with the text come first.
export function matching(fields, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = fields.filter((field) => words.every((word) => `${field.key} ${field.title}`.toLowerCase().includes(word)));
  const rank = (field) => (field.key.toLowerCase().startsWith(words[0] || "") ? 0 : field.key.toLowerCase().includes(words[0] || "") ? 1 : 2);
  return fits.map((field, index) => [rank(field), index, field]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , field]) => field);
}

let known = null;
// Every field of a run, fetched once a page.
export function allFields() {
  known ||= fetch("/runs/fields.json", { credentials: "same-origin" })
    .then((reply) => (reply.ok ? reply.json() : { fields: [] }))
    .then((body) => body.fields)
    .catch((error) => {
      console.warn("There are no suggestions:", error.message);
      known = null;
      return [];
    });
  return known;
}

export const asSuggestion = (field) => ({ label: field.key, note: field.title === field.key ? "" : field.title, value: field.key });
