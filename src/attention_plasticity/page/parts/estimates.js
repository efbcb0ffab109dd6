// How sure the numbers are: 95 % intervals, and the groups of texts behind them.

const fadedWords = (metric) => (metric === ROLE ? "unsure role" : isDrop(metric) ? "the drop does not differ from 0" : "95 % interval wider than the spread between heads");

/** Whether uncertain heads fade: as chosen, else on the maps of the drop and of roles only. */
const isSure = () => state.sure ?? (isDrop(state.metric) || state.metric === ROLE);

const estimatesOf = (run) => run.tables.estimates?.columns ?? {};

const hasIntervals = (run, metric) => Boolean(estimatesOf(run)[`${metric}_half_width`]);
const anyIntervals = (run) => Object.keys(estimatesOf(run)).length > 0;

/** Whether the sample can leave a metric open: it has intervals, or it is the role. */
const canBeUnsure = (run, metric) => (metric === ROLE ? Boolean(run.roles) : hasIntervals(run, metric));

/** Half of the 95 % interval of a metric of a head; NaN if it is not known. */
const halfWidthOf = (run, key, metric) => estimatesOf(run)[`${metric}_half_width`]?.[run.rowOf.get(key)] ?? NaN;

/** Groups of texts behind a metric of a head; 0 if they are not known. */
const groupsOf = (run, key, metric) => estimatesOf(run)[`${metric}_groups`]?.[run.rowOf.get(key)] ?? 0;

/** Distance of 0 from the 95 % interval of the drop of a head, negative inside it. If no head has an interval, the drop itself. */
function distanceOfDrop(run, key) {
  const metric = shownKind().drop, drop = metricOf(run, key, metric);
  return hasIntervals(run, metric) ? Math.abs(drop) - halfWidthOf(run, key, metric) : drop;
}

/** Half of an interval: three decimals, or one digit if it is smaller. */
const showHalf = (half) => (half > 0 && half < 0.0005 ? half.toPrecision(1) : half.toFixed(3));

/** `0.687 ± 0.003`, or the value alone if its interval is not known. */
const withHalf = (text, half) => (Number.isFinite(half) ? `${text} ± ${showHalf(half)}` : text);

/** A value and its interval as text that is not broken into two lines. */
const unbroken = (text) => text.replaceAll(" ", "\u00a0");

function showHeadValue(run, key, metric) {
  if (metric === "sliding_window" && run.rowOf.has(key)) return windowWords(run, key);
  if (metric === ROLE) return roleWords(run, key);
  const half = halfWidthOf(run, key, metric);
  return withHalf(showIn(metric, metricOf(run, key, metric), half), half);
}

/** Mean over heads of all layers or of one type, and half of its 95 % interval; the half is NaN if it is not known. */
function meanOf(run, metric, type = state.layers) {
  const known = type === null || !hasTypes(run) ? run.means : typeNamed(run, type)?.means ?? {};
  const [mean, half] = (type === null || typeNamed(run, type) ? known[metric] : null) ?? [spreadOf(run, metric, type)?.mean ?? NaN, NaN];
  return { mean, half };
}

function showMean(run, metric, type = state.layers) {
  if (!metric) return NONE;
  const { mean, half } = meanOf(run, metric, type);
  return withHalf(showShare(mean), half);
}

/** An element with a value and, in quiet letters, half of its interval. */
function fillEstimate(element, text) {
  const [value, half] = text.split(" ± ");
  element.replaceChildren(value, ...(half ? [make("span", ` ± ${half}`, { class: "error" })] : []));
  return element;
}

/** The interquartile range over heads of a metric. */
function spreadBetweenHeads(run, metric) {
  const spread = spreadOf(run, metric);
  return spread ? spread.q3 - spread.q1 : NaN;
}

/** Whether a role is unsure, a drop does not differ from 0 (tested for all heads at once), or the 95 % interval of another metric is wider than the spread between heads. */
function isUnsure(run, key, metric) {
  if (metric === ROLE) return isUnsureRole(run, key);
  const half = halfWidthOf(run, key, metric);
  if (isDrop(metric)) return Number.isFinite(half) && !estimatesOf(run)[`${metric}_differs`][run.rowOf.get(key)];
  return 2 * half > spreadBetweenHeads(run, metric);
}

/** Heads fade in both maps, but only while the switch can be used. */
const isFaded = (run, key) => isSure() && canBeUnsure(runShown(), state.metric) && isUnsure(run, key, state.metric);

/** The switch: absent if no run of the page has intervals or roles, disabled if this metric has none. */
function showSwitch(run) {
  byId("sure-line").hidden = !runs.some((one) => anyIntervals(one) || one.roles);
  const possible = canBeUnsure(run, state.metric);
  byId("sure").disabled = !possible;
  byId("sure").checked = isSure() && possible;
  byId("sure-words").textContent = possible ? switchWords(run) : `Not available: ${noIntervals(run)}.`;
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

function noIntervals(run) {
  const reason = commonReason(run, `${state.metric}_se`), because = reason ? `: ${reason}` : "";
  return anyIntervals(run) ? `“${wordsOf(state.metric).label}” has no interval${because}` : `the values of this run have no intervals${because}`;
}

function switchWords(run) {
  const unsure = [...run.rowOf.keys()].filter((key) => isUnsure(run, key, state.metric)).length;
  const counted = `${whole(unsure)} of ${plural(run.rowOf.size, "head")}${headsBeside() ? ` of ${run.label}` : ""}`;
  if (state.metric === ROLE) return `Fade heads whose role is unsure: a 95 % interval contains a threshold, or repeated tokens are not known: ${counted}.`;
  if (isDrop(state.metric)) return `Fade heads whose drop does not differ from 0, with a correction for the number of heads (false discovery rate 5 %): ${counted}.`;
  const spread = showIn(state.metric, spreadBetweenHeads(run, state.metric));
  return `Fade heads that these texts do not tell from the others: their 95 % interval is wider than the spread between heads (interquartile range, ${spread}): ${counted}.`;
}

/** The table "How sure", behind a fold: a row per value with an interval. `fillSureTable` fills it for a head. */
function sureTable(run) {
  const names = page.groups.flatMap(([, metrics]) => metrics).filter((name) => hasIntervals(run, name));
  const head = ["", "value", "± half of the 95 % interval", "groups of texts"].map((text) => make("th", text, { scope: "col" }));
  const rows = names.map((name) => make("tr", "", { "data-sure": name }, [make("th", capital(wordsOf(name).label), { scope: "row" }), make("td"), make("td"), make("td")]));
  return fold(`${plural(names.length, "value")} with an interval`, make("table", "", { class: "scores" }, [make("thead", "", {}, [make("tr", "", {}, head)]), make("tbody", "", {}, rows)]));
}

function fillSureTable(run, key) {
  for (const row of document.querySelectorAll("[data-sure]")) {
    const name = row.dataset.sure, half = halfWidthOf(run, key, name);
    const texts = [showIn(name, metricOf(run, key, name), half), Number.isFinite(half) ? showHalf(half) : NONE, groupsOf(run, key, name) ? whole(groupsOf(run, key, name)) : NONE];
    texts.forEach((text, place) => { row.cells[place + 1].textContent = text; });
  }
}
