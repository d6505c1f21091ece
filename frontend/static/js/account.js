// Pages of the account and the team: copies a new secret; where the browser refuses, it is selected for the reader to copy.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const input = document.getElementById(button.dataset.copy);
  input.select();
  try {
    await navigator.clipboard.writeText(input.value);
    button.textContent = "Copied";
  } catch (error) {
    button.textContent = "Press Ctrl+C";
    console.info("The browser does not let this page copy:", error.message);
  }
});
document.getElementById("secret")?.focus();

// The look of this browser: the same choice that the toggle in the page's head makes, with the system's scheme as a third one.
const looks = document.querySelectorAll("input[name=theme]");
const showLook = () => {
  const chosen = document.documentElement.dataset.theme || "";
  for (const input of looks) input.checked = input.value === chosen;
};
for (const input of looks) {
  input.addEventListener("change", () => {
    if (input.value) document.documentElement.dataset.theme = input.value;
    else delete document.documentElement.dataset.theme;
    try {
      if (input.value) localStorage.setItem("headrace-theme", input.value);
      else localStorage.removeItem("headrace-theme");
    } catch (error) {
      console.info("The look holds for this page only:", error.message);
    }
    document.dispatchEvent(new CustomEvent("themechange"));
  });
}
document.addEventListener("themechange", showLook);
showLook();
