// What the planner says of the config: asked when its digest has changed, one question at a time, the numbers before it greyed meanwhile.
import { el } from "../run/dom.js";

const DELAY = 600;
const byId = (id) => document.getElementById(id);

// Returns what is called with the digest of every sound config.
export function startForesight(form) {
  let timer = 0;
  let known = null;
  let busy = false;
  let again = false;

  async function ask() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const asked = known;
    working();
    try {
      const reply = await fetch("/runs/new/forecast.json", { method: "POST", body: new FormData(form), credentials: "same-origin" });
      if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
      const answer = await reply.json();
      if (!again) show(answer);
    } catch (error) {
      if (known === asked) known = null;
      byId("foresight-state").textContent = "No forecast: the server did not answer.";
      console.info("No forecast:", error.message);
    }
    busy = false;
    if (again) {
      again = false;
      ask();
    }
  }

  return (digest) => {
    if (!digest || digest === known) return;
    known = digest;
    clearTimeout(timer);
    timer = setTimeout(ask, DELAY);
  };
}

function working() {
  byId("foresight-state").textContent = "Working…";
  byId("foresight-rows").classList.add("greyed");
}

function show({ source, why, predicted }) {
  const rows = byId("foresight-rows");
  byId("foresight-state").textContent = predicted ? "The real flow on a simulated clock." : why;
  rows.classList.remove("greyed");
  rows.hidden = !predicted;
  rows.replaceChildren(...(predicted?.rows ?? []).flatMap((row) => [el("dt", {}, row.label), el("dd", {}, row.value)]));
  byId("foresight-source").replaceChildren(...(predicted && source ? measured(source, predicted.unlike) : []));
}

function measured(source, unlike) {
  const lines = [el("p", {}, "Costs were measured in the run ", el("a", { href: `/runs/${source.id}/` }, source.name), ".")];
  if (unlike.length) lines.push(el("p", {}, `It differs in what decides costs, so expect more error: ${unlike.join("; ")}.`));
  return lines;
}
