// Copy buttons: data-copy names the element whose text goes to the clipboard.
export function armCopies(scope = document) {
  for (const button of scope.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
}

async function copy(button) {
  const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch (error) {
    // No permission, or no secure context: the text is marked, so that Ctrl-C takes it.
    console.info("The clipboard is closed:", error.message);
    const range = document.createRange();
    range.selectNodeContents(document.getElementById(button.dataset.copy));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Marked: press Ctrl-C";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
armCopies();
