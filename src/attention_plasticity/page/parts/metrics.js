// The card of all metrics of the selected head. A bar shows the place of a number among all heads.

import { byId, capital, fillEstimate, headName, make, plural } from "./words.js";
import { metricOf, spreadOf } from "./data.js";
import {
  groupsOf, halfWidthOf, metricGroups, reasonOf, showHeadValue, showIn, wordsOf,
} from "./values.js";

/** The table of metrics. It is rebuilt for other runs and filled for another head. */
const metricsTable = { run: null, other: null, rows: [] };

function makeMetrics(run, other) {
  const rows = [];
  const bars = make(
    "span",
    "bar: range over heads of all layers; shaded: middle 50 %; line: mean; dot: this head" +
      `${other ? "; " : ""}`,
    { class: "where" },
  );
  byId("metrics-note").replaceChildren(bars, other ? `orange: ${other.label}` : "");
  byId("metrics").replaceChildren(
    ...metricGroups(run).map(([title, names]) => {
      const made = names.map((name) => metricRow(run, other, name));
      rows.push(...made);
      const table = (kept) => make("table", "", {}, [make("tbody", "", {}, kept.map(rowIn))]);
      const first = made.filter(({ name }) => wordsOf(name).first),
        more = made.filter(({ name }) => !wordsOf(name).first);
      const folded = more.length
        ? [fold(plural(more.length, first.length ? "more column" : "column"), table(more))]
        : [];
      return make("section", "", { class: "metric-group" }, [
        make("h3", title),
        ...(first.length ? [table(first)] : []),
        ...folded,
      ]);
    }),
  );
  showAllMetrics();
  Object.assign(metricsTable, { run, other, rows });
}

const rowIn = ({ row }) => row;

const fold = (words, content) =>
  make("details", "", { class: "more" }, [make("summary", words), content]);

/** Open or close what is behind "more columns". */
function showAllMetrics() {
  for (const part of document.querySelectorAll("#metrics details.more"))
    part.open = byId("all-metrics").checked;
}

function metricRow(run, other, name) {
  const { label, meaning } = wordsOf(name);
  const dot = make("i", "", { class: "dot" }),
    otherDot = make("i", "", { class: "dot other" });
  const mine = make("td", "", { class: "value", "data-metric": name });
  const theirs = make("td", "", { class: "value other", title: other?.label ?? "" });
  const explained = make("span", meaning, { class: "meaning" });
  const words = make("td", "", { title: name }, [capital(label), explained]);
  const where = make("td", "", { class: "where" }, [
    rangeStrip(
      spreadOf(run, name),
      (value) => showIn(name, value),
      other ? [otherDot, dot] : [dot],
    ),
  ]);
  return {
    name,
    mine,
    theirs,
    meaning: explained,
    dot,
    otherDot,
    row: make("tr", "", {}, [words, where, mine, ...(other ? [theirs] : [])]),
  };
}

function showMetrics(run, other, key) {
  if (metricsTable.run !== run || metricsTable.other !== other) makeMetrics(run, other);
  byId("metrics-title").textContent = `Metrics of ${headName(...key.split(".")).toLowerCase()}`;
  for (const { name, mine, theirs, meaning, dot, otherDot } of metricsTable.rows) {
    const value = metricOf(run, key, name),
      reason = reasonOf(run, key, name);
    meaning.textContent = reason ? `missing: ${reason}` : wordsOf(name).meaning;
    fillEstimate(mine, showHeadValue(run, key, name));
    const groups = Number.isFinite(halfWidthOf(run, key, name))
      ? `; interval from ${plural(groupsOf(run, key, name), "group")} of texts`
      : "";
    mine.title = `${name}: ${run.tables.heads.columns[name][run.rowOf.get(key)]}${groups}`;
    placeDot(dot, spreadOf(run, name), value);
    if (!other) continue;
    const otherValue = metricOf(other, key, name);
    fillEstimate(theirs, showHeadValue(other, key, name));
    theirs.title = [other.label, reasonOf(other, key, name)].filter(Boolean).join(": ");
    placeDot(otherDot, spreadOf(run, name), otherValue);
  }
}

/** A bar with the range, middle 50 % and mean over heads, and a dot for the selected head. */
function rangeStrip(spread, text, dots) {
  if (!spread || spread.high === spread.low) return "";
  const middle = make("i", "", { class: "middle" }),
    mean = make("i", "", { class: "mean" });
  middle.style.left = `${percentOf(spread, spread.q1)}%`;
  middle.style.right = `${100 - percentOf(spread, spread.q3)}%`;
  mean.style.left = `${percentOf(spread, spread.mean)}%`;
  const words = `heads: ${text(spread.low)} to ${text(spread.high)}, mean ${text(spread.mean)}`;
  return make("span", "", { class: "strip", role: "img", "aria-label": words, title: words }, [
    middle,
    mean,
    ...dots,
  ]);
}

const percentOf = ({ low, high }, value) =>
  Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)));

function placeDot(dot, spread, value) {
  dot.hidden = !spread || !Number.isFinite(value);
  if (!dot.hidden) dot.style.left = `${percentOf(spread, value)}%`;
}

export const metricsCard = {
  id: "metrics",
  title: "Metrics of this head",
  place: "below",
  controls:
    `<label for="all-metrics" class="grow-right"><input type="checkbox" id="all-metrics"> ` +
    "all columns</label>",
  body: `<div class="metric-groups below" id="metrics"></div>`,
  listen: () => byId("all-metrics").addEventListener("change", showAllMetrics),
  drawHead: ({ run, beside, key }) => showMetrics(run, beside, key),
};
