// Completes the query: names of fields, then their values, where the caret stands.
import { allFields, asSuggestion, combo, matching } from "./combo.js";

// The term at the caret: where it starts, the field typed so far, and the value if an operator stands between.
export function termAt(text, caret) {
  const before = text.slice(0, caret);
  const start = Math.max(before.lastIndexOf(" "), before.lastIndexOf("(")) + 1;
  const found = /^([A-Za-z][\w./-]*)(:|!=|<=|>=|=|<|>|~|!~)(.*)$/.exec(before.slice(start));
  if (!found) return { start, field: before.slice(start), operator: "", value: "", from: start };
  const last = found[3].lastIndexOf(",") + 1;
  return { start, field: found[1], operator: found[2], value: found[3].slice(last), from: start + found[1].length + found[2].length + last };
}

const quoted = (value) => (/^[^\s()",*\\]+$/.test(value) ? value : `"${value.replace(/[\\"]/g, "\\$&")}"`);

async function suggest(text, caret) {
  if ((text.slice(0, caret).match(/"/g) || []).length % 2) return [];
  const fields = await allFields();
  const term = termAt(text, caret);
  if (!term.operator) return term.field ? matching(fields, term.field).slice(0, 30).map(asSuggestion) : [];
  if (term.field === "sort") {
    const sign = term.value.startsWith("-") ? "-" : "";
    return matching(fields, term.value.replace(/^-/, "")).slice(0, 30).map((field) => ({ ...asSuggestion(field), label: `${sign}${field.key}`, value: `${sign}${field.key}`, whole: true }));
  }
  const field = fields.find((item) => item.key === term.field || item.key === `config.${term.field}`);
  const wanted = term.value.toLowerCase();
  return (field?.values || []).filter((value) => value.toLowerCase().includes(wanted) && value !== term.value).map((value) => ({ label: value, note: "", value: quoted(value), whole: true }));
}

// `changed` is called after a completion, as after typing.
export function completeQuery(input, changed) {
  combo(input, suggest, (item) => {
    const caret = input.selectionStart;
    const term = termAt(input.value, caret);
    const operator = item.whole ? "" : ":";
    const rest = input.value.slice(caret).replace(/^[^\s()"]*/, "");
    const head = `${input.value.slice(0, item.whole ? term.from : term.start)}${item.value}${operator}`;
    input.value = head + rest;
    input.setSelectionRange(head.length, head.length);
    input.focus();
    if (item.whole) changed();
    // A field wants its value next.
    else input.dispatchEvent(new Event("input", { bubbles: true }));
  });
}
