// Values of heads as text: metrics, their intervals, means, and roles.

import { NONE, showTo, whole, withHalf } from "./words.js";
import { hasRows, isDerived, metricOf, spreadOf } from "./data.js";
import {
  groupOf, headsBeside, isDrop, mainDrop, page, runShown, shownKind, state, typeOf, typeWords,
} from "./state.js";

// in the place of a metric: in the menu "Colour", in the table and in links
export const ROLE = "role";
export const UNSURE = "unsure";
const IDS = new Set(["layer", "q_head", "k_head", "layer_type"]);

/** The words of a column of a table; those of the table of heads and of the role by default. */
export const wordsOf = (metric, table = metric === ROLE ? "roles" : "heads") =>
  page.words[table][metric] ?? {
    label: metric,
    meaning: "a column of head_metrics.csv",
    signed: false,
    share: false,
    decimals: null,
  };

const isMetric = (name) => !IDS.has(name) && !isDerived(name);

/**
 * Metrics of a run by group, without standard errors. Unknown columns are last. Optional metrics
 * without a value are left out.
 */
export function metricGroups(run) {
  const shown = (name) =>
    isMetric(name) && !wordsOf(name).error_of && (!wordsOf(name).optional || spreadOf(run, name));
  const remaining = new Set(run.tables.heads.names.filter(shown));
  const groups = page.groups.map(([title, names]) => [
    title,
    names.filter((name) => remaining.delete(name)),
  ]);
  groups.push(["Other columns", [...remaining]]);
  return groups.filter(([, names]) => names.length);
}

/** What maps can show, by group: the role, and all metrics. */
export const mapGroups = (run) => [
  ...(run.tables.roles ? [["What heads do", [ROLE]]] : []),
  ...metricGroups(run),
];

/** Whether a run can show something on its map. */
export const canShow = (run, metric) =>
  metric === ROLE
    ? Boolean(run.tables.roles)
    : isMetric(metric) && run.tables.heads.names.includes(metric);

/** A value of a metric. Shares have three decimals and errors four, for alignment. */
export const showIn = (metric, value) => showTo(wordsOf(metric).decimals, value);

export const showShare = (value) => showTo(3, value);

export const hasIntervals = (run, metric) =>
  Boolean(run.tables.heads.columns[`${metric}_half_width`]);

export const anyIntervals = (run) =>
  run.tables.heads.names.some((name) => name.endsWith("_half_width"));

/** Whether the sample can leave a metric open: it has intervals, or it is the role. */
export const canBeUnsure = (run, metric) =>
  metric === ROLE ? Boolean(run.tables.roles) : hasIntervals(run, metric);

/** Half of the 95 % interval of a metric of a head; NaN if it is not known. */
export const halfWidthOf = (run, key, metric) =>
  run.tables.heads.columns[`${metric}_half_width`]?.[run.rowOf.get(key)] ?? NaN;

/** Groups of texts behind a metric of a head; 0 if they are not known. */
export const groupsOf = (run, key, metric) =>
  run.tables.heads.columns[`${metric}_groups`]?.[run.rowOf.get(key)] ?? 0;

/**
 * Distance of 0 from the 95 % interval of the drop of a head, negative inside it. If no head has an
 * interval, the drop itself.
 */
function distanceOfDrop(run, key) {
  const metric = mainDrop(run),
    drop = metricOf(run, key, metric);
  return hasIntervals(run, metric) ? Math.abs(drop) - halfWidthOf(run, key, metric) : drop;
}

export function showHeadValue(run, key, metric) {
  if (metric === "sliding_window" && run.rowOf.has(key)) return windowWords(run, key);
  if (metric === ROLE) return roleWords(run, key);
  const value = metricOf(run, key, metric),
    half = halfWidthOf(run, key, metric);
  return withHalf(showIn(metric, value), value, half);
}

/**
 * Mean over heads of all layers or of one type, and half of its 95 % interval; the half is NaN if
 * it is not known.
 */
function meanOf(run, metric, type = state.layers) {
  const [mean, half] = groupOf(run, type)?.means[metric] ?? [
    spreadOf(run, metric, type)?.mean ?? NaN,
  ];
  return { mean, half: half ?? NaN };
}

export function showMean(run, metric, type = state.layers) {
  if (!metric) return NONE;
  const { mean, half } = meanOf(run, metric, type);
  return withHalf(showShare(mean), mean, half);
}

export const fadedWords = (metric) =>
  metric === ROLE
    ? "unsure role"
    : isDrop(metric)
      ? "the drop does not differ from 0"
      : "95 % interval wider than the spread between heads";

/** Whether uncertain heads fade: as chosen, else on the maps of the drop and of roles only. */
export const isSure = () => state.sure ?? (isDrop(state.metric) || state.metric === ROLE);

/** The interquartile range over heads of a metric. */
export function spreadBetweenHeads(run, metric) {
  const spread = spreadOf(run, metric);
  return spread ? spread.q3 - spread.q1 : NaN;
}

/**
 * Whether a role is unsure, a drop does not differ from 0 (tested for all heads at once), or the 95
 * % interval of another metric is wider than the spread between heads.
 */
export function isUnsure(run, key, metric) {
  if (metric === ROLE) return isUnsureRole(run, key);
  const half = halfWidthOf(run, key, metric);
  if (isDrop(metric))
    return (
      Number.isFinite(half) && !run.tables.heads.columns[`${metric}_differs`][run.rowOf.get(key)]
    );
  return 2 * half > spreadBetweenHeads(run, metric);
}

/** Heads fade in both maps, but only while the switch can be used. */
export const isFaded = (run, key) =>
  isSure() && canBeUnsure(runShown(), state.metric) && isUnsure(run, key, state.metric);

/** Why a value of a head is missing; undefined if it is known, or if the run did not record it. */
export function reasonOf(run, key, name) {
  if (Number.isFinite(metricOf(run, key, name))) return undefined;
  return run.missing.find(({ columns, heads }) => columns.includes(name) && heads.includes(key))
    ?.reason;
}

/** Why no head has a value of a metric; undefined if a head has one, or if the reasons differ. */
export function commonReason(run, name) {
  const reasons = new Set([...run.rowOf.keys()].map((key) => reasonOf(run, key, name)));
  return reasons.size === 1 ? [...reasons][0] : undefined;
}

/** The role and the likely role of a head, and why it is unsure; null if they are not known. */
export function roleOf(run, key) {
  if (!hasRows(run, "roles", key)) return null;
  const { role, likely_role: likely, why_unsure: why } = run.tables.roles.columns,
    [row] = run.ranges.roles.get(key);
  return { role: role[row], likely: likely[row], why: why[row] };
}

/** `induction`, or why it is unsure: `unsure: repeated tokens decide, likely far`. */
export function roleWords(run, key) {
  const found = roleOf(run, key);
  if (!found) return NONE;
  return found.role === UNSURE ? `${found.why}, likely ${found.likely}` : found.role;
}

const isUnsureRole = (run, key) => roleOf(run, key)?.role === UNSURE;

/** The window of a head as text: `512`, or the type of its layer if it has no window. */
export function windowWords(run, key) {
  const window = metricOf(run, key, "sliding_window");
  return Number.isFinite(window) ? whole(window) : typeWords(run, typeOf(run, key));
}

/**
 * The heads that can be selected at the start: those of both runs if heads are compared, else all.
 */
export function firstHeads() {
  const keys = [...runShown().rowOf.keys()],
    other = headsBeside(),
    shared = other ? keys.filter((key) => other.rowOf.has(key)) : [];
  return shared.length ? shared : keys;
}

/**
 * The head selected at the start: the interval of its drop from position lies farthest from 0.
 * Without intervals it has the largest drop, without drops it is the first head.
 */
export function firstHead() {
  const distance = (key) => distanceOfDrop(runShown(), key);
  const best = firstHeads().reduce((a, b) =>
    distance(b) > distance(a) || (Number.isNaN(distance(a)) && !Number.isNaN(distance(b))) ? b : a,
  );
  const [layer, head] = best.split(".").map(Number);
  return { layer, head };
}
