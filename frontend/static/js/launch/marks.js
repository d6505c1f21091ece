// What differs from the preset or the parent: each field is marked, can be put back, and is counted by section.
import { el } from "../run/dom.js";

const INPUTS = ".field[data-path] input:not([type=hidden]), .field[data-path] select, .field[data-path] textarea";

// The field's value in the form that the server uses for the base: text, a switch, or a list.
export function valueOf(field) {
  const inputs = [...field.querySelectorAll("input:not([type=hidden]), select, textarea")];
  if (field.querySelector("fieldset")) return inputs.filter((input) => input.checked).map((input) => input.value);
  const [input] = inputs;
  return input.type === "checkbox" ? input.checked : input.value.replaceAll("\r\n", "\n");
}

function putBack(field, value) {
  const inputs = [...field.querySelectorAll("input:not([type=hidden]), select, textarea")];
  for (const input of inputs) {
    if (field.querySelector("fieldset")) input.checked = value.includes(input.value);
    else if (input.type === "checkbox") input.checked = value;
    else input.value = value;
  }
  inputs[0].dispatchEvent(new Event("input", { bubbles: true }));
  inputs[0].dispatchEvent(new Event("change", { bubbles: true }));
  inputs[0].focus();
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other) || sameNumber(one, other) || sameJson(one, other);
const sameNumber = (one, other) =>
  typeof one === "string" && typeof other === "string" && one.trim() !== "" && other.trim() !== "" && Number(one) === Number(other);

function sameJson(one, other) {
  if (typeof one !== "string" || typeof other !== "string" || !/^\s*[[{]/.test(one)) return false;
  try {
    return JSON.stringify(JSON.parse(one)) === JSON.stringify(JSON.parse(other));
  } catch {
    return false;
  }
}

export function startMarks(form, data) {
  const counter = document.getElementById("changed-count");
  const fields = [...form.querySelectorAll(".field[data-path]")].filter((field) => field.dataset.path in data.base);

  function mark(field) {
    const base = data.base[field.dataset.path];
    const changed = !same(valueOf(field), base);
    field.classList.toggle("changed", changed);
    let button = field.querySelector(":scope > .put-back");
    if (changed && !button) {
      const title = field.querySelector("label, legend").firstChild.textContent.trim();
      button = el("button", { type: "button", class: "put-back", title: `As in ${data.compared}`, "aria-label": `put back ${title}, as in ${data.compared}` }, "put back");
      button.addEventListener("click", () => putBack(field, data.base[field.dataset.path]));
      field.append(button);
    } else if (!changed && button) button.remove();
  }

  function count() {
    for (const section of form.querySelectorAll("[data-section]")) {
      const chip = section.querySelector("[data-changed]");
      const number = section.querySelectorAll(".field.changed").length;
      chip.hidden = number === 0;
      chip.textContent = `${number} changed`;
    }
    counter.textContent = form.querySelectorAll(".field.changed").length;
  }

  function kinds() {
    for (const chip of form.querySelectorAll("[data-kind-of]")) {
      const value = valueOf(form.querySelector(`[data-path="${chip.dataset.kindOf}"]`));
      chip.textContent = Array.isArray(value) ? value.join(" + ") : value;
    }
  }

  const all = () => {
    fields.forEach(mark);
    count();
    kinds();
  };
  form.addEventListener("input", (event) => {
    const field = event.target.closest(".field[data-path]");
    if (!field || !event.target.matches(INPUTS)) return;
    mark(field);
    count();
    kinds();
  });
  all();
  return { changed: () => form.querySelector(".field.changed") !== null };
}
