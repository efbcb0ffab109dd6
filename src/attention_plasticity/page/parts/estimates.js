// How sure the numbers are: standard errors, 95 % intervals, and heads with a doubtful model.

const GAP_WORDS = "Gaussian model differs from the count, over a bucket";
const GAP_MARK = "◇";
const fadedWords = (metric) => (metric === ROLE ? "unsure: a 95 % interval contains a threshold" : isDrop(metric) ? "95 % interval contains 0" : "95 % interval wider than the spread between heads");

/** Whether uncertain heads fade: as chosen, else on the maps of the drop and of roles only. */
const isSure = () => state.sure ?? (isDrop(state.metric) || state.metric === ROLE);

const estimatesOf = (run) => run.tables.estimates?.columns ?? {};

/** A column of the table of heads, corrected for bias if the bias is known. */
const columnOf = (run, metric) => run.corrected[metric] ?? run.tables.heads.columns[metric];

/** The standard error of a metric of a head; NaN if it is not known. */
const errorOf = (run, key, metric) => run.tables.heads.columns[`${metric}_se`]?.[run.rowOf.get(key)] ?? NaN;

const hasErrors = (run, metric) => Boolean(metric === ROLE ? run.roles?.has_intervals : estimatesOf(run)[`${metric}_half_width`]);
const anyErrors = (run) => Object.keys(estimatesOf(run)).some((name) => name.endsWith("_half_width"));
/** Half the width of the 95 % interval of a metric of a head; NaN if it is not known. */
const halfWidthOf = (run, key, metric) => estimatesOf(run)[`${metric}_half_width`]?.[run.rowOf.get(key)] ?? NaN;

/** Distance of 0 from the 95 % interval of the drop of a head, negative inside it. If no head has an interval, the drop itself. */
function distanceOfDrop(run, key) {
  const metric = shownKind().drop, drop = metricOf(run, key, metric);
  return hasErrors(run, metric) ? Math.abs(drop) - halfWidthOf(run, key, metric) : drop;
}

const gapIsLarge = (run, key) => Boolean(estimatesOf(run).gap_is_large?.[run.rowOf.get(key)]);

/** `0.687 ± 0.003`, or the value alone if the error is not known. */
const withError = (text, error) => (Number.isFinite(error) ? `${text} ± ${error.toFixed(3)}` : text);

/** A value and its error as text that is not broken into two lines. */
const unbroken = (text) => text.replaceAll(" ", "\u00a0");

function showHeadValue(run, key, metric) {
  if (metric === "sliding_window" && run.rowOf.has(key)) return windowWords(run, key);
  if (metric === ROLE) return roleWords(run, key);
  return withError(showIn(metric, metricOf(run, key, metric)), errorOf(run, key, metric));
}

/** Mean over heads of all layers or of one type, and its standard error; the error is NaN if it is not known. */
function meanOf(run, metric, type = state.layers) {
  const known = type === null || !hasTypes(run) ? run.means : typeNamed(run, type)?.means ?? {};
  const [mean, error] = (type === null || typeNamed(run, type) ? known[metric] : null) ?? [spreadOf(run, metric, type)?.mean ?? NaN, NaN];
  return { mean, error };
}

function showMean(run, metric, type = state.layers) {
  if (!metric) return NONE;
  const { mean, error } = meanOf(run, metric, type);
  return withError(showShare(mean), error);
}

/** Names the runs without a known bias among runs with it, because their values differ a little. */
function uncorrectedWords(shown) {
  const without = shown.filter((run) => !run.corrected[kindOf(run).level]);
  if (!without.length || without.length === shown.length) return "";
  return `; not corrected for bias: ${without.map((run) => run.label).join(", ")}`;
}

/** An element with a value and, in quiet letters, its error. */
function fillEstimate(element, text) {
  const [value, error] = text.split(" ± ");
  element.replaceChildren(value, ...(error ? [make("span", ` ± ${error}`, { class: "error" })] : []));
  return element;
}

/** The interquartile range over heads of a metric. */
function spreadBetweenHeads(run, metric) {
  const spread = spreadOf(run, metric);
  return spread ? spread.q3 - spread.q1 : NaN;
}

/** Whether a role is unsure, the 95 % interval of a drop contains 0, or that of another metric is wider than the spread between heads. */
function isUnsure(run, key, metric) {
  if (metric === ROLE) return isUnsureRole(run, key);
  const half = halfWidthOf(run, key, metric);
  return isDrop(metric) ? Math.abs(metricOf(run, key, metric)) <= half : 2 * half > spreadBetweenHeads(run, metric);
}

/** Heads fade in both maps, but only while the switch can be used. */
const isFaded = (run, key) => isSure() && hasErrors(runShown(), state.metric) && isUnsure(run, key, state.metric);

/** The switch: absent if no run of the page has errors, disabled if this metric has none. */
function showSwitch(run) {
  byId("sure-line").hidden = !runs.some(anyErrors);
  const possible = hasErrors(run, state.metric);
  byId("sure").disabled = !possible;
  byId("sure").checked = isSure() && possible;
  byId("sure-words").textContent = possible ? switchWords(run) : `Not available: ${missingErrors(run)}.`;
}

/** Why a value of a head is missing; undefined if it is known, or if the run did not record it. */
function reasonOf(run, key, name) {
  if (Number.isFinite(metricOf(run, key, name))) return undefined;
  return run.missing.find(({ columns, heads }) => columns.includes(name) && heads.includes(key))?.reason;
}

/** Why no head has a value of a metric; undefined if a head has one, or if the reasons differ. */
function commonReason(run, name) {
  const reasons = new Set([...run.rowOf.keys()].map((key) => reasonOf(run, key, name)));
  return reasons.size === 1 ? [...reasons][0] : undefined;
}

function missingErrors(run) {
  if (!anyErrors(run)) return "the standard errors of this run are not known";
  const reason = commonReason(run, `${state.metric}_se`);
  return `no standard errors for “${wordsOf(state.metric).label}”${reason ? `: ${reason}` : ""}`;
}

function switchWords(run) {
  const unsure = [...run.rowOf.keys()].filter((key) => isUnsure(run, key, state.metric)).length;
  const counted = `${whole(unsure)} of ${plural(run.rowOf.size, "head")}${headsBeside() ? ` of ${run.label}` : ""}`;
  if (state.metric === ROLE) return `Fade heads whose role is unsure, because a 95 % interval contains a threshold: ${counted}.`;
  const spread = showIn(state.metric, spreadBetweenHeads(run, state.metric));
  const rule = isDrop(state.metric) ? "contains 0" : `is wider than the spread between heads (interquartile range of the corrected values, ${spread})`;
  return `Fade heads whose 95 % interval ${rule}: ${counted}.`;
}

/** The line of the legend for marked heads, if there are any. */
function showGapLegend(shown) {
  const count = shown.reduce((sum, run) => sum + [...run.rowOf.keys()].filter((key) => gapIsLarge(run, key)).length, 0);
  byId("gap-legend").hidden = !count;
  byId("gap-legend").textContent = `${GAP_MARK} ${GAP_WORDS} (${plural(count, "head")})`;
}

function gapText(run, key) {
  const gap = withError(showChange(metricOf(run, key, "ap_gaussian_gap")), errorOf(run, key, "ap_gaussian_gap"));
  return `${GAP_WORDS}: ${gap}`;
}
