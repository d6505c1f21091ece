// The run list: rows are fetched again every few seconds while the page is seen, and after typing.
import { refreshTimes } from "./app.js";

const box = document.getElementById("runs");
const form = document.getElementById("filters");
const PERIOD = 4000;

async function refresh(address) {
  const url = new URL(address || location.href, location.href);
  url.searchParams.set("rows", "1");
  const reply = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (!reply.ok || reply.redirected) return;
  // Server-rendered and escaped there; parsed without running anything.
  const parsed = new DOMParser().parseFromString(await reply.text(), "text/html");
  box.replaceChildren(...parsed.body.childNodes);
  refreshTimes(box);
}

if (box && form) {
  let pending = 0;
  const typed = () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const url = new URL(location.pathname, location.href);
      for (const [key, value] of new FormData(form)) if (value) url.searchParams.set(key, value);
      history.replaceState(null, "", url);
      refresh(url).catch((error) => console.warn("The list could not be filtered:", error.message));
    }, 200);
  };
  form.addEventListener("input", typed);
  form.addEventListener("change", typed);
  setInterval(() => {
    const busy = box.contains(document.activeElement) || document.hidden;
    if (!busy) refresh().catch((error) => console.warn("The list is not fresh:", error.message));
  }, PERIOD);
}
