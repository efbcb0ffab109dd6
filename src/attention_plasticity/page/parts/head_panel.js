// Texts and metrics of the selected head.

/** Why this head is shown before a head is chosen. */
function firstHeadWords(run, key) {
  const metric = shownKind().drop, drop = metricOf(run, key, metric), { label } = wordsOf(metric);
  if (!Number.isFinite(drop)) return "Selected at first: the first head, because drops are not known.";
  const shared = firstHeads().length < run.rowOf.size ? " of both runs" : "";
  if (!hasIntervals(run, metric)) return `Selected at first: the head${shared} with the largest ${label} (${showIn(metric, drop)}).`;
  const half = halfWidthOf(run, key, metric), interval = `${showIn(metric, drop - half)} to ${showIn(metric, drop + half)}`;
  if (Math.abs(drop) > half) return `Selected at first: the head${shared} whose 95 % interval of the ${label} lies farthest from 0 (${interval}).`;
  return `Selected at first: the head${shared} whose ${label} is nearest to being different from 0; all 95 % intervals contain 0 (here ${interval}).`;
}

function showHead(run, other, { layer, head }) {
  const key = keyOf(layer, head);
  byId("head-title").textContent = headName(layer, head);
  const facts = [];
  const value = (name) => metricOf(run, key, name);
  const kind = kindOf(run);
  if (Number.isFinite(value(kind.level))) facts.push(`plasticity ${kind.words} ${showHeadValue(run, key, kind.level)}`);
  if (run.at_one_position && Number.isFinite(value("ap_phase"))) facts.push(`over a bin ${showHeadValue(run, key, "ap_pooled")}, of which ${showHeadValue(run, key, "ap_phase")} is rotary phase`);
  const reason = run.at_one_position && reasonOf(run, key, kind.level);
  if (reason) facts.push(`plasticity at one position is missing: ${reason}`);
  if (Number.isFinite(value("k_head"))) facts.push(`key head ${value("k_head")}`);
  if (run.tables.heads.columns.sliding_window) {
    facts.push(Number.isFinite(value("sliding_window")) ? `window of ${whole(value("sliding_window"))} tokens` : windowWords(run, key));
  }
  if (Number.isFinite(value("n_q_tokens"))) facts.push(`${whole(value("n_q_tokens"))} queries, ${whole(value("n_k_tokens"))} keys`);
  if (Number.isFinite(value("d_model"))) facts.push(`${value("d_model")} dimensions`);
  byId("head-facts").textContent = facts.join(" · ");
  byId("head-reason").textContent = state.chosen ? "" : firstHeadWords(run, key);
  const metric = wordsOf(state.metric).label;
  const faded = isFaded(run, key) ? `; ${fadedWords(state.metric)}` : "";
  byId("announcement").textContent = `${headName(layer, head)}: ${metric} ${showHeadValue(run, key, state.metric)}${faded}`;
  showMetrics(run, other, key);
}

/** The metrics that are shown at once; the others are behind "more columns". */
const FIRST_METRICS = new Set([
  "ap_aligned", "ap_aligned_drop", "ap_phase", "ap_pooled", "ap_overall", "ap_attended",
  "q_R2_total", "q_R2_unrotated", "q_mean_share", "attn_sink_mass", "attn_far_mass", "attn_entropy", "n_text_groups", "n_q_tokens", "n_k_tokens",
]);

/** The table of metrics. It is rebuilt for other runs and filled for another head. */
const metricsTable = { run: null, other: null, rows: [] };

function showMetrics(run, other, key) {
  if (metricsTable.run !== run || metricsTable.other !== other) makeMetrics(run, other);
  byId("metrics-title").textContent = `Metrics of ${headName(...key.split(".")).toLowerCase()}`;
  for (const { name, mine, theirs, meaning, dot, otherDot } of metricsTable.rows) {
    const value = metricOf(run, key, name), reason = reasonOf(run, key, name);
    meaning.textContent = reason ? `missing: ${reason}` : wordsOf(name).meaning;
    fillEstimate(mine, showHeadValue(run, key, name));
    mine.title = `${name}: ${run.tables.heads.columns[name][run.rowOf.get(key)]}`;
    placeDot(dot, spreadOf(run, name), value);
    if (!other) continue;
    const otherValue = metricOf(other, key, name);
    fillEstimate(theirs, showHeadValue(other, key, name));
    theirs.title = [other.label, reasonOf(other, key, name)].filter(Boolean).join(": ");
    placeDot(otherDot, spreadOf(run, name), otherValue);
  }
  fillSureTable(run, key);
}

function makeMetrics(run, other) {
  const rows = [];
  const bars = make("span", `bar: range over heads of all layers; shaded: middle 50 %; line: mean; dot: this head${other ? "; " : ""}`, { class: "where" });
  byId("metrics-key").replaceChildren(bars, other ? `orange: ${other.label}` : "");
  byId("metrics").replaceChildren(...metricGroups(run).map(([title, names]) => {
    const made = names.filter((name) => !wordsOf(name).error_of).map((name) => metricRow(run, other, name));
    rows.push(...made);
    const table = (kept) => make("table", "", {}, [make("tbody", "", {}, kept.map(({ row }) => row))]);
    const first = made.filter(({ name }) => FIRST_METRICS.has(name)), more = made.filter(({ name }) => !FIRST_METRICS.has(name));
    const folded = more.length ? [fold(plural(more.length, first.length ? "more column" : "column"), table(more))] : [];
    if (names.some((name) => wordsOf(name).error_of)) folded.push(sureTable(run));
    return make("section", "", { class: "metric-group" }, [make("h3", title), ...(first.length ? [table(first)] : []), ...folded]);
  }));
  showAllMetrics();
  Object.assign(metricsTable, { run, other, rows });
}

const fold = (words, content) => make("details", "", { class: "more" }, [make("summary", words), content]);

/** Open or close what is behind "more columns". */
function showAllMetrics() {
  for (const part of document.querySelectorAll("#metrics details.more")) part.open = byId("all-metrics").checked;
}

function metricRow(run, other, name) {
  const { label, meaning } = wordsOf(name);
  const dot = make("i", "", { class: "dot" }), otherDot = make("i", "", { class: "dot other" });
  const mine = make("td", "", { class: "value", "data-metric": name });
  const theirs = make("td", "", { class: "value other", title: other?.label ?? "" });
  const explained = make("span", meaning, { class: "meaning" });
  const words = make("td", "", { title: name }, [capital(label), explained]);
  const where = make("td", "", { class: "where" }, [strip(spreadOf(run, name), (value) => showIn(name, value), other ? [otherDot, dot] : [dot])]);
  return { name, mine, theirs, meaning: explained, dot, otherDot, row: make("tr", "", {}, [words, where, mine, ...(other ? [theirs] : [])]) };
}

/** A bar with the range, middle 50 % and mean over heads, and a dot for the selected head. */
function strip(spread, text, dots) {
  if (!spread || spread.high === spread.low) return "";
  const middle = make("i", "", { class: "middle" }), mean = make("i", "", { class: "mean" });
  middle.style.left = `${percentOf(spread, spread.q1)}%`;
  middle.style.right = `${100 - percentOf(spread, spread.q3)}%`;
  mean.style.left = `${percentOf(spread, spread.mean)}%`;
  const words = `heads: ${text(spread.low)} to ${text(spread.high)}, mean ${text(spread.mean)}`;
  return make("span", "", { class: "strip", role: "img", "aria-label": words, title: words }, [middle, mean, ...dots]);
}

const percentOf = ({ low, high }, value) => Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)));

function placeDot(dot, spread, value) {
  dot.hidden = !spread || !Number.isFinite(value);
  if (!dot.hidden) dot.style.left = `${percentOf(spread, value)}%`;
}
