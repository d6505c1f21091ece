// The queue and a sweep's table: fetched again every few seconds while the page is seen; a priority is set by choosing it.
import { refreshTimes } from "../app.js";

const box = document.getElementById("queue-rows");
const PERIOD = 4000;

function arm() {
  for (const form of box.querySelectorAll(".priority-form")) form.classList.add("quick");
}

async function refresh() {
  const url = new URL(location.href);
  url.searchParams.set("rows", "1");
  const reply = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (!reply.ok || reply.redirected) return;
  // Server-rendered and escaped there; parsed without running anything.
  const parsed = new DOMParser().parseFromString(await reply.text(), "text/html");
  if (box.contains(document.activeElement)) return;
  box.replaceChildren(...parsed.body.childNodes);
  refreshTimes(box);
  arm();
}

if (box) {
  arm();
  box.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });
  setInterval(() => {
    if (!box.contains(document.activeElement) && !document.hidden) refresh().catch((error) => console.warn("The queue is not fresh:", error.message));
  }, PERIOD);
}
