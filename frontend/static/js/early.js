// Runs before the first paint, so that a chosen theme does not flash. No choice: the system's scheme.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("headrace-theme");
  } catch (error) {
    console.info("This browser keeps no choice of theme:", error.message);
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
// A question before what cannot be undone: here, not in a module, so that it is asked however slowly the modules come.
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
