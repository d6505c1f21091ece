// What a token can be shaded by. Each shade gives every token a bin (or none), and a legend with what the bins mean and how many there are.
// Bins are told by colour and by a bar of their own height or side, so that neither the theme nor the eye matters.
import { fixed, percent } from "../format.js";

const SURPRISE = [0.02, 0.1, 0.5, 1, 2, 4];
const APART = [0.005, 0.02, 0.1, 0.5];
const number = (value) => typeof value === "number" && Number.isFinite(value);

export const SHADES = [
  ["version", "policy version"], ["logprob", "log-prob, engine"], ["trainer", "log-prob, trainer"],
  ["mismatch", "trainer against engine"], ["mask", "mask and bounds"], ["none", "nothing"],
];

export const apart = (tokens, index) => {
  const [engine, trainer] = [tokens.logprobs?.[index], tokens.trainer_logprobs?.[index]];
  return number(engine) && number(trainer) ? trainer - engine : null;
};

function tally(bins, labels, kind, words) {
  const counts = new Array(labels.length).fill(0);
  let without = 0;
  for (const bin of bins) {
    if (bin === null) without += 1;
    else counts[bin] += 1;
  }
  return { kind, bins, words, without, legend: labels.map((label, bin) => ({ bin, label, count: counts[bin] })), marks: new Map() };
}

function surprise(values, length, name) {
  const given = (values || []).filter(number);
  if (!given.length) return { ...tally(new Array(length).fill(null), [], "surprise", `No ${name} log-probs were kept.`), empty: true };
  const bins = Array.from({ length }, (_, index) => (number(values[index]) ? SURPRISE.filter((bound) => -values[index] > bound).length : null));
  const edges = [0, ...SURPRISE];
  const labels = edges.map((edge, index) => {
    const next = edges[index + 1];
    const share = next === undefined ? `under ${percent(Math.exp(-edge), 1)}` : `${percent(Math.exp(-next), next > 1 ? 1 : 0)} or more`;
    return next === undefined ? `below ${fixed(-edge, 0)} (${share})` : `to ${fixed(-next, next < 0.1 ? 2 : 1)} (${share})`;
  });
  const mean = given.reduce((sum, value) => sum + value, 0) / given.length;
  return tally(bins, labels, "surprise", `Mean ${fixed(mean, 3)}, least likely ${fixed(Math.min(...given), 2)}, sum ${fixed(mean * given.length, 2)}.`);
}

function versions(tokens, length, context) {
  const own = (tokens.versions || []).map((value) => (number(value) ? value : null));
  const distinct = [...new Set(own.filter((value) => value !== null))].sort((a, b) => b - a);
  if (!distinct.length) return { ...tally(new Array(length).fill(null), [], "version", "No versions were kept."), empty: true };
  const trained = number(context.trained) ? context.trained : distinct[0];
  const shownBin = (version) => Math.min(5, Math.max(0, trained - version));
  const bins = Array.from({ length }, (_, index) => (own[index] === null || own[index] === undefined ? null : shownBin(own[index])));
  const result = tally(bins, [], "version", "");
  result.legend = distinct.slice(0, 12).map((version) => ({
    bin: shownBin(version), count: own.filter((value) => value === version).length,
    label: number(context.trained) ? `v${version}, lag ${context.trained - version}` : `v${version}`,
  }));
  result.words = distinct.length > 1 ? `${distinct.length} versions wrote it; each change is marked.` : `All by version ${distinct[0]}.`;
  if (distinct.length > 1) own.forEach((version, index) => version !== null && version !== own[index - 1] && result.marks.set(index, `v${version}`));
  return result;
}

function mismatch(tokens, length) {
  const values = Array.from({ length }, (_, index) => apart(tokens, index));
  const given = values.filter((value) => value !== null);
  if (!given.length) return { ...tally(values, [], "apart", "The trainer's log-probs exist for trained samples only."), empty: true };
  const middle = APART.length;
  const bins = values.map((value) => (value === null ? null : middle + Math.sign(value) * APART.filter((bound) => Math.abs(value) > bound).length));
  const labels = [];
  for (let bin = -middle; bin <= middle; bin += 1) {
    const [inner, outer] = [APART[Math.abs(bin) - 1], APART[Math.abs(bin)]];
    const sign = bin < 0 ? "−" : "+";
    labels.push(bin === 0 ? `within ±${APART[0]}` : outer === undefined ? `beyond ${sign}${inner}` : `${sign}${inner} to ${sign}${outer}`);
  }
  const mean = given.reduce((sum, value) => sum + value, 0) / given.length;
  const most = given.reduce((best, value) => (Math.abs(value) > Math.abs(best) ? value : best), 0);
  return tally(bins, labels, "apart", `Trainer minus engine: mean ${fixed(mean, 4)}, largest ${fixed(most, 4)} at token ${values.indexOf(most) + 1}.`);
}

const MASKS = [
  "trained on", "not trained on", "ratio under the lower bound", "ratio over the upper bound", "cut by the clip", "taken out by a correction",
];
const FATES = { 2: 4, 3: 5 }; // the trainer's own word, where it was kept

export function maskOf(tokens, index, context) {
  const column = tokens.mask || tokens.loss_mask;
  const kept = column?.[index];
  if (context.outcome !== "trained" || kept === 0 || kept === false) return 1;
  if (number(kept)) return FATES[kept] ?? 0;
  const difference = apart(tokens, index);
  if (difference === null) return 0;
  const ratio = Math.exp(difference);
  if (number(context.bounds?.low) && ratio < context.bounds.low) return 2;
  return number(context.bounds?.high) && ratio > context.bounds.high ? 3 : 0;
}

function masks(tokens, length, context) {
  const bins = Array.from({ length }, (_, index) => maskOf(tokens, index, context));
  const { low, high, of } = context.bounds || {};
  const range = of ? `Bounds of ${of}: ${number(low) ? fixed(low, 2) : "none"} to ${number(high) ? fixed(high, 2) : "none"}, trainer over engine.` : "This loss bounds no ratio.";
  return tally(bins, MASKS, "mask", context.outcome === "trained" ? range : "The trainer never saw this sample.");
}

export function shade(name, tokens, length, context) {
  if (name === "version") return versions(tokens, length, context);
  if (name === "logprob") return surprise(tokens.logprobs, length, context.names?.engine || "engine");
  if (name === "trainer") return surprise(tokens.trainer_logprobs, length, context.names?.trainer || "trainer");
  if (name === "mismatch") return mismatch(tokens, length);
  if (name === "mask") return masks(tokens, length, context);
  return tally(new Array(length).fill(null), [], "none", "");
}
