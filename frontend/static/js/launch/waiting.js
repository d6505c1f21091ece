// On the page of a queued run: its place, what it waits for, and when it is likely to start.
import { clock } from "../format.js";

const PERIOD = 4000;
const box = document.getElementById("queue-place");
const chip = document.getElementById("state-chip");
const words = document.getElementById("queue-place-words");

async function look() {
  const reply = await fetch(`/runs/${box.dataset.run}/queue.json`, { credentials: "same-origin" });
  if (!reply.ok) return;
  const place = await reply.json();
  box.hidden = !place.waits;
  if (!place.waits) return;
  const starts = place.expected ? ` It should start at about ${clock(Date.parse(place.expected) / 1000)}, at the present speed of what runs.` : "";
  const text = `Number ${place.position} of ${place.of} of the team: ${place.why}.${starts}`;
  if (words.textContent !== text) words.textContent = text;
}

const quietly = () => look().catch((error) => console.warn("The place in the queue is not known:", error.message));

if (chip?.dataset.state === "queued") quietly();
setInterval(() => {
  const queued = chip?.dataset.state === "queued";
  if (!queued) box.hidden = true;
  else if (!document.hidden) quietly();
}, PERIOD);
