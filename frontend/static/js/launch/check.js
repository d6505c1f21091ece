// While one types, the form goes to the server, which judges it with the code that judges a launch. The answer is shown here.
import { duration, short } from "../format.js";
import { el } from "../run/dom.js";
import { armCopies } from "./copy.js";
import { startForesight } from "./foresight.js";

const DELAY = 350;
const byId = (id) => document.getElementById(id);
const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

export function startCheck(form, reveal) {
  let timer = 0;
  let current = null;
  const foresee = startForesight(form);
  const state = byId("check-state");
  // Why the cloned run failed stands at its field until that field is changed, however sound its value is.
  const blamed = form.elements.namedItem(new URLSearchParams(location.search).get("fix") ?? "");
  const failed = blamed?.value;

  async function check() {
    current?.abort();
    current = new AbortController();
    const { signal } = current;
    try {
      const reply = await fetch("/runs/new/check.json", { method: "POST", body: new FormData(form), credentials: "same-origin", signal });
      if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
      show(await reply.json());
    } catch (error) {
      if (error.name === "AbortError") return;
      state.dataset.verdict = "unknown";
      state.textContent = "Not checked: the server did not answer.";
      console.warn("The form could not be checked:", error.message);
    }
  }

  function show(answer) {
    const { problems, warnings } = answer;
    state.dataset.verdict = problems.length ? "bad" : warnings.length ? "warn" : "good";
    state.textContent = problems.length ? plural(problems.length, "problem") : warnings.length ? plural(warnings.length, "warning") : "Ready to launch";
    atFields(form, problems, warnings, blamed?.value === failed ? blamed : null);
    verdict(problems, warnings);
    changes(answer);
    if (answer.commands.length) commands(answer.commands);
    for (const id of ["forecast-rows", "commands"]) byId(id).classList.toggle("stale", !answer.digest);
    if (answer.forecast) forecast(answer.forecast);
    if (answer.ok) foresee(answer.digest);
    several(answer.sweep);
  }

  function verdict(problems, warnings) {
    const rows = [...problems.map((row) => ["problem", row]), ...warnings.map((row) => ["warning", row])];
    byId("verdict-list").replaceChildren(
      ...rows.map(([kind, row]) => {
        const place = row.id ? el("button", { type: "button", class: "link", "data-reveal": row.id }, row.title || row.path) : el("strong", {}, row.title || "Form");
        return el("li", { "data-kind": kind }, el("span", { class: "unseen" }, `${kind}: `), place, " ", row.text);
      }),
    );
    byId("verdict-none").textContent = rows.length ? "" : "None: this can be launched. Checked by the same code as the command line.";
  }

  byId("verdict-list").addEventListener("click", (event) => {
    const link = event.target.closest("[data-reveal]");
    if (link) reveal(link.dataset.reveal);
  });
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(check, DELAY);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  check();
}

// Sentences beside their inputs. Those that the server rendered are replaced by fresher ones.
function atFields(form, problems, warnings, kept) {
  const told = new Map();
  for (const [kind, rows] of [["errors", problems], ["warnings", warnings]]) for (const row of rows) told.set(`${row.id} ${kind}`, [...(told.get(`${row.id} ${kind}`) ?? []), row.text]);
  for (const list of form.querySelectorAll("ul.errors, ul.warnings")) {
    const key = list.dataset.of ?? `${list.id.replace(/-errors$/, "")} errors`;
    if (!told.has(key) && key !== `${kept?.id} errors`) fillList(list, []);
  }
  for (const input of form.querySelectorAll("[aria-invalid]")) if (input !== kept && !told.has(`${input.id} errors`)) input.removeAttribute("aria-invalid");
  for (const [key, texts] of told) {
    const [id, kind] = key.split(" ");
    const input = byId(id);
    if (!input || !form.contains(input)) continue;
    const field = input.closest(".field");
    const listId = `${id}-${kind}`;
    let list = byId(listId);
    if (!list) {
      list = el("ul", { class: kind, id: listId });
      const help = field.querySelector(":scope > .help:not(.chosen)");
      if (help) help.before(list);
      else field.append(list);
      const described = input.getAttribute("aria-describedby");
      if (described) input.setAttribute("aria-describedby", `${described} ${listId}`);
    }
    list.dataset.of = key;
    fillList(list, texts);
    if (kind === "errors" && !input.matches("fieldset")) input.setAttribute("aria-invalid", "true");
  }
}

function fillList(list, texts) {
  if ([...list.children].map((item) => item.textContent).join("\n") === texts.join("\n")) return;
  list.replaceChildren(...texts.map((text) => el("li", {}, text)));
}

function changes(answer) {
  byId("changes-from").textContent = `from ${answer.compared}`;
  byId("changes-none").hidden = answer.changes.length > 0;
  byId("changes-none").textContent = answer.digest ? "Nothing: it is the same config." : "Listed again once the problems are mended.";
  const rows = answer.changes.map((row) => el("tr", {}, el("th", { scope: "row" }, row.title, " ", el("code", {}, row.path)), el("td", {}, row.before), el("td", {}, el("strong", {}, row.after))));
  const head = el("thead", {}, el("tr", {}, ...["Setting", "There", "Here"].map((text) => el("th", { scope: "col" }, text))));
  byId("changes-table").replaceChildren(...(rows.length ? [el("table", { class: "changes" }, head, el("tbody", {}, ...rows))] : []));
}

function commands(rows) {
  const box = byId("commands");
  if (!box.querySelector(".command")) {
    box.replaceChildren(
      ...rows.map((row) =>
        el(
          "div",
          { class: "command" },
          el("h3", {}, row.title, " ", el("span", { class: "note" }, row.help)),
          el("pre", { id: `command-${row.key}`, tabindex: "0", role: "region", "aria-label": row.title }),
          el("button", { type: "button", class: "button small", "data-copy": `command-${row.key}`, "aria-label": `Copy: ${row.title}` }, "Copy"),
        ),
      ),
    );
    armCopies(box);
  }
  for (const row of rows) byId(`command-${row.key}`).textContent = row.text;
}

function forecast(found) {
  byId("forecast-rows").replaceChildren(...found.rows.flatMap((row) => [el("dt", {}, row.label), el("dd", {}, row.value)]));
  const lines = [];
  const { last, queue } = found;
  if (last) {
    const link = el("a", { href: `/runs/${last.id}/` }, last.name);
    lines.push(el("p", {}, "The last finished run of this preset and model, ", link, `, took ${short(last.seconds_a_step)} s a step: `, el("strong", {}, `about ${duration(last.seconds)}`), ` for these steps${last.money ? `, ${last.money}` : ""}.`));
    if (!last.same_batch) lines.push(el("p", { class: "note" }, `Its steps had ${last.samples_a_step} samples, so this is off by about as much.`));
  } else lines.push(el("p", { class: "note" }, "No run of this preset and model has finished in this team, so nothing is known of its time."));
  if (queue.larger) lines.push(el("p", { class: "note" }, queue.larger));
  const ahead = queue.before ? ` ${plural(queue.before, "run")} of the team before it.` : "";
  lines.push(el("p", { class: "note" }, queue.at_once ? "If launched now, it starts at once." : `If launched now, it is queued: ${queue.why}.${ahead}`));
  byId("forecast-words").replaceChildren(...lines);
}

function several(sweep) {
  const chip = byId("several-count");
  const box = byId("several-preview");
  chip.hidden = !sweep;
  if (!sweep) return box.replaceChildren();
  chip.textContent = plural(sweep.count, "run");
  if (!sweep.runs.length) return box.replaceChildren();
  const items = sweep.runs.map((text) => el("li", {}, text));
  if (sweep.more) items.push(el("li", { class: "note" }, `and ${sweep.more} more`));
  box.replaceChildren(el("h4", {}, `${plural(sweep.count, "run")} of at most ${sweep.most}`), el("ol", { class: "variant-list" }, ...items));
}
