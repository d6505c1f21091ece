// The new-run form: a preset fills it at once, changes are marked, found and checked while one types.
import { startCheck } from "./launch/check.js";
import { startFind } from "./launch/find.js";
import { startMarks } from "./launch/marks.js";

const choice = document.getElementById("preset-choice");
const form = document.getElementById("run-form");
const data = JSON.parse(document.getElementById("page-data").textContent);

const marks = startMarks(form, data);
const reveal = startFind(form);
startCheck(form, reveal);

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
  if (marks.changed() && !window.confirm("Filling the form from this preset drops your changes. Go on?")) return;
  choice.form.requestSubmit();
});
// Seeds that follow the one of the form.
document.querySelector(".seed-buttons").hidden = false;
for (const button of document.querySelectorAll("[data-seeds]")) {
  button.addEventListener("click", () => {
    const count = Number(button.dataset.seeds);
    const first = Number(document.getElementById("field-seed").value) || 0;
    const input = document.getElementById("sweep-seeds");
    input.value = count ? Array.from({ length: count }, (_, index) => first + index).join(", ") : "";
    input.dispatchEvent(new Event("input", { bubbles: true }));
  });
}
// A link in the error summary may point into a closed fold.
document.addEventListener("click", (event) => {
  const link = event.target.closest("#error-summary a");
  if (!link) return;
  event.preventDefault();
  reveal(link.hash.slice(1));
});
document.getElementById("error-summary")?.focus();
