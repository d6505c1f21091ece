// The chosen columns as a list: up, down, dragging, leaving out, adding by name. The text field under it stays the truth.
import { el } from "../run/dom.js";
import { allFields, asSuggestion, combo, matching } from "./combo.js";

const ARROW = { up: "M12 19V5M6 11l6-6 6 6", down: "M12 5v14M6 13l6 6 6-6", out: "M6 6l12 12M18 6L6 18" };

function button(kind, label, press, disabled) {
  const node = el("button", { class: "button quiet small", type: "button", "aria-label": label, title: label, disabled });
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["viewBox", "0 0 24 24"], ["fill", "none"], ["stroke", "currentColor"], ["stroke-width", "2"], ["aria-hidden", "true"]]) icon.setAttribute(name, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ARROW[kind]);
  icon.append(path);
  node.append(icon);
  node.addEventListener("click", press);
  return node;
}

// `changed(keys)` is called with the new order; `most` bounds it; `known` are the fields to choose from, else every one of a run.
export function columnList(box, keys, changed, most = 20, known = null) {
  const list = el("ol", { class: "column-list", "aria-label": "Chosen columns" });
  const input = el("input", { class: "input", type: "text", placeholder: "Add a column", "aria-label": "Add a column" });
  const holder = el("div", { class: "combo" }, input);
  const said = el("p", { class: "unseen", role: "status" });
  let chosen = [...keys];
  let dragged = -1;

  const set = (next, words, focus) => {
    chosen = next;
    draw();
    said.textContent = words;
    if (focus) (list.children[focus[0]]?.querySelector(`[aria-label^="${focus[1]}"]:not([disabled])`) || input).focus();
    changed(chosen);
  };
  const move = (from, to, word) => {
    const next = [...chosen];
    next.splice(to, 0, ...next.splice(from, 1));
    set(next, `${chosen[from]} is now number ${to + 1}`, word && [to, word]);
  };
  const draw = () => {
    list.replaceChildren(...chosen.map((key, index) => {
      const item = el("li", { draggable: "true", "data-key": key }, el("span", { title: key }, key),
        button("up", `Move ${key} up`, () => move(index, index - 1, "Move"), index === 0),
        button("down", `Move ${key} down`, () => move(index, index + 1, "Move"), index === chosen.length - 1),
        button("out", `Leave out ${key}`, () => set(chosen.filter((other) => other !== key), `${key} is left out`, [Math.min(index, chosen.length - 2), "Leave"])));
      item.addEventListener("dragstart", (event) => {
        dragged = index;
        event.dataTransfer.effectAllowed = "move";
        event.dataTransfer.setData("text/plain", key);
        item.classList.add("dragged");
      });
      item.addEventListener("dragend", () => item.classList.remove("dragged"));
      item.addEventListener("dragover", (event) => {
        event.preventDefault();
        item.classList.add("over");
      });
      item.addEventListener("dragleave", () => item.classList.remove("over"));
      item.addEventListener("drop", (event) => {
        event.preventDefault();
        item.classList.remove("over");
        if (dragged >= 0 && dragged !== index) move(dragged, index);
        dragged = -1;
      });
      return item;
    }));
  };
  combo(input, async (text) => matching((known || (await allFields())).filter((field) => !chosen.includes(field.key) && field.key !== "name"), text).map(asSuggestion), (item) => {
    input.value = "";
    if (chosen.length < most) set([...chosen, item.value], `${item.value} is added`);
    else said.textContent = `At most ${most} columns`;
  }, { open: "focus" });
  draw();
  box.append(list, holder, said);
  return { set: (next) => { chosen = [...next]; draw(); } };
}
