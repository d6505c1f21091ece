// The new-run form: a preset fills it at once, changed fields are marked, the first error takes the focus.
const choice = document.getElementById("preset-choice");
const form = document.getElementById("run-form");

const read = (input) => (input.type === "checkbox" ? String(input.checked) : input.value);
const first = new Map();
let touched = false;

for (const input of form.querySelectorAll(".field[data-path] input:not([type=hidden]), .field[data-path] select, .field[data-path] textarea")) {
  first.set(input, read(input));
}
form.addEventListener("input", (event) => {
  if (!first.has(event.target)) return;
  const changed = read(event.target) !== first.get(event.target);
  event.target.closest(".field").classList.toggle("changed", changed);
  touched = touched || changed;
});
// The sentence of the kind that is chosen.
form.addEventListener("change", (event) => {
  const note = event.target.closest(".field")?.querySelector("[data-chosen]");
  if (note && event.target.matches("select")) note.textContent = event.target.selectedOptions[0]?.dataset.note ?? "";
});
// A JSON field's example, one click away.
for (const button of document.querySelectorAll("[data-fill]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const input = document.getElementById(button.dataset.fill);
    input.value = button.previousElementSibling.textContent;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.focus();
  });
}
choice.addEventListener("change", () => {
  if (touched && !window.confirm("Filling the form from this preset drops your changes. Go on?")) return;
  choice.form.requestSubmit();
});
// A link in the error summary may point into a closed fold.
document.addEventListener("click", (event) => {
  const link = event.target.closest("#error-summary a");
  if (!link) return;
  const target = document.querySelector(link.hash);
  const fold = target?.closest("details");
  if (fold) fold.open = true;
  target?.focus();
});
document.getElementById("error-summary")?.focus();
