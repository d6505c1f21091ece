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
