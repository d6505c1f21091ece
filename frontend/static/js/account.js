// The account page: copies the new token; where the browser refuses, the token is selected for the reader to copy.
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
