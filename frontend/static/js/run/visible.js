// Text from a model or a run, shown so that nothing in it can hide: control and direction characters become their code points.
import { el } from "./dom.js";

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|\u00a0/u;
const PIECES = /( +)|(\n)|(\t)|([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00a0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufe00-\ufe0f\ufeff\ufff9-\ufffb])/u;

const picture = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// Plain text with its hidden characters as code points; line ends and tabs stay.
export function visible(text) {
  const given = String(text ?? "");
  return HIDDEN.test(given) ? [...given].map((character) => (HIDDEN.test(character) ? `<${picture(character)}>` : character)).join("") : given;
}

// The same as nodes, with white space marked: what is copied is still the text itself.
export function visibleNodes(text) {
  const nodes = [];
  for (const piece of String(text ?? "").split(PIECES)) {
    if (!piece) continue;
    if (/^ +$/.test(piece)) nodes.push(el("span", { class: "ws-space" }, piece));
    else if (piece === "\n") nodes.push(el("span", { class: "ws-line" }), "\n");
    else if (piece === "\t") nodes.push(el("span", { class: "ws-tab" }, piece));
    else if (HIDDEN.test(piece)) nodes.push(el("span", { class: "ws-hidden" }, picture(piece)));
    else nodes.push(piece);
  }
  return nodes;
}

// Nodes of the text with each occurrence of `wanted` marked, letters of either case.
export function marked(text, wanted) {
  const given = visible(text);
  const needle = String(wanted || "").toLowerCase();
  if (!needle) return [given];
  const low = given.toLowerCase();
  const nodes = [];
  let from = 0;
  // Lower case may change the length of a few letters; then nothing is marked rather than the wrong place.
  if (low.length !== given.length) return [given];
  for (let at = low.indexOf(needle); at >= 0 && nodes.length < 200; at = low.indexOf(needle, from)) {
    nodes.push(given.slice(from, at), el("mark", {}, given.slice(at, at + needle.length)));
    from = at + needle.length;
  }
  nodes.push(given.slice(from));
  return nodes;
}
