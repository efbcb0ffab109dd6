// The card "Where attention goes": attention by distance of the selected head, and its numbers.

import {
  byId, capital, fillEstimate, fillMenu, legendEntry, make, plain, show, whole,
} from "./words.js";
import { hasRows, rowsOfHead, spreadOf } from "./data.js";
import { headsBeside, inLayers, kindOf, meanWords, redraw, state } from "./state.js";
import { showHeadValue, showShare, wordsOf } from "./values.js";
import { theme } from "./colours.js";
import {
  baseAxis, CHART_MARGIN, draw, errorBars, lowerAxis, sizeOf, uprightLine,
} from "./charts.js";
import { queriesWords } from "./head.js";

const SINKS = -1; // in the place of a smallest distance: the first four tokens of the text

const columnOf = (first) => (first === SINKS ? "sinks" : first);

/** The first four tokens, and the smallest distance of every bin. */
const binsOf = (run) =>
  run.tables.attention.names
    .filter((name) => name.startsWith("mass_"))
    .map((name) => (name === "mass_sinks" ? SINKS : Number(name.slice(5))));

const distanceWords = (first) =>
  first < 2 ? `${first}` : `${whole(first)}–${whole(2 * first - 1)}`;

const binWords = (first) =>
  first === SINKS ? "the first four tokens" : `distance ${distanceWords(first)}`;

/** The place of a bin on the axis; the first four tokens stand apart. */
const placeOf = (bins, first) => (first === SINKS ? -0.3 : bins.indexOf(first));

/**
 * Mean over the heads of the chosen layers of their shares of attention, computed once per query
 * bucket.
 */
function meanMasses(run, bucket) {
  run.meanMasses ??= new Map();
  const place = `${bucket} ${state.layers ?? ""}`;
  if (!run.meanMasses.has(place)) {
    const keys = [...run.ranges.attention.keys()].filter((key) => inLayers(run, key));
    const heads = keys.map((key) => massesOf(run, key, bucket)).filter(Boolean);
    run.meanMasses.set(
      place,
      binsOf(run).map((_, i) => heads.reduce((sum, head) => sum + head.mass[i], 0) / heads.length),
    );
  }
  return run.meanMasses.get(place);
}

/** Whether a bucket of queries, or all queries, means the same in both runs. */
const sameQueries = (run, other, bucket) =>
  bucket === null || queriesWords(run, bucket) === queriesWords(other, bucket);

/**
 * The masses of the same head of the other run, or the mean of its heads if heads do not
 * correspond.
 */
function massesBeside(run, other, key, bucket) {
  if (!other?.tables.attention || !sameQueries(run, other, bucket)) return null;
  if (headsBeside()) return massesOf(other, key, bucket);
  const mass = meanMasses(other, bucket);
  return { bins: binsOf(other), mass, half: mass.map(() => NaN) };
}

function attentionFigure(run, other, key, width) {
  const bucket = state.queries,
    mine = massesOf(run, key, bucket),
    theirs = massesBeside(run, other, key, bucket);
  const bins = [...new Set([...binsOf(run), ...(theirs?.bins ?? [])])].sort((a, b) => a - b);
  const step = Math.ceil((bins.length * 44) / width);
  const places = bins.filter((_, i) => i === 0 || (i - 1) % step === 0);
  const border = bins.indexOf(run.distant_from);
  return {
    traces: [
      ...(mine ? [massTrace(mine, bins, barLook(), theme.ink, " this head")] : []),
      meanTrace(run, bins, bucket),
      ...(theirs ? [massTrace(theirs, bins, pointLook(), theme.two, ` ${plain(other.label)}`)] : []),
    ],
    names: { x: "distance from query to key (tokens)", y: "share of attention" },
    layout: {
      margin: CHART_MARGIN,
      hovermode: "x unified",
      hoverdistance: -1,
      bargap: 0.2,
      shapes: border > 0 ? [uprightLine(border - 0.5)] : [],
      xaxis: {
        ...lowerAxis(),
        range: [-0.9, bins.length - 0.4],
        tickvals: places.map((first) => placeOf(bins, first)),
        ticktext: places.map((first) => (first === SINKS ? "first 4" : whole(first))),
        unifiedhovertitle: { text: "share of attention" },
      },
      yaxis: { ...baseAxis(), rangemode: "tozero", nticks: 6 },
    },
  };
}

const barLook = () => ({ type: "bar", marker: { color: theme.one }, width: 0.8 });

const pointLook = () => ({
  mode: "markers",
  marker: { color: theme.two, size: 8, symbol: "diamond", line: { color: theme.panel, width: 1 } },
});

/** The mean of heads. No line joins the first four tokens and the distances. */
function meanTrace(run, bins, bucket) {
  const withGap = ([sinks, ...rest]) => [sinks, null, ...rest];
  return {
    x: withGap(binsOf(run).map((first) => placeOf(bins, first))),
    y: withGap(meanMasses(run, bucket)),
    mode: "lines+markers",
    line: { color: theme.mean, width: 1.5, dash: "dot" },
    marker: { color: theme.mean, size: 6, line: { color: theme.panel, width: 1 } },
    hovertemplate: "%{y:.3f} mean of heads<extra></extra>",
  };
}

function massTrace({ bins, mass, half }, all, look, color, name) {
  const interval = (value, i) =>
    Number.isFinite(half[i])
      ? `<br>95 % interval: ${showShare(Math.max(0, value - half[i]))} to ` +
        `${showShare(value + half[i])}`
      : "";
  const bars = errorBars(half, { symmetric: false, color, thickness: 1.3, width: 3 });
  return {
    ...look,
    x: bins.map((first) => placeOf(all, first)),
    y: mass,
    text: mass.map(interval),
    textposition: "none",
    customdata: bins.map(binWords),
    // a share is not negative
    error_y: { ...bars, arrayminus: bars.array.map((value, i) => Math.min(value, mass[i])) },
    hovertemplate: `<b>%{y:.3f}</b>${name}, %{customdata}%{text}<extra></extra>`,
  };
}

function showAttentionKeys(run, other, mine, theirs) {
  const bound = state.queries === null ? " (upper bound)" : "";
  const interval = mine?.half.some(Number.isFinite) ? `, 95 % interval${bound}` : "";
  const entries = [legendEntry(theme.one, `this head${interval}`, "band")];
  if (other) {
    const words = headsBeside() ? "same head" : meanWords(other);
    const text = theirs ? `${words}, ${other.label}` : `${other.label}: not known`;
    entries.push(legendEntry(theme.two, text, "dot"));
  }
  entries.push(legendEntry(theme.mean, meanWords(run), "dot"));
  if (binsOf(run).includes(run.distant_from)) {
    const text = `${wordsOf("attn_far_mass").label}: from ${whole(run.distant_from)} tokens`;
    entries.push(legendEntry(theme.quiet, text, "upright"));
  }
  byId("attention-keys").replaceChildren(...entries);
  const which = state.queries === null ? "all queries" : "the chosen queries; numbers: all queries";
  byId("attention-note").textContent =
    `share of attention by distance, mean over ${which}; the first four tokens of the text ` +
    "stand apart, whatever their distance";
}

/** The pairs of keys of a run, by its pair_sampling. */
const PAIRS = {
  bucket: "pairs of keys of one text and one range of positions, drawn uniformly",
  local: "pairs of nearby keys",
  context: "pairs of earlier keys of a text, drawn uniformly",
};

/** The numbers beside the chart. Metrics that no head has are left out. */
function showFacts(run, other, key) {
  const meanings = {
    attn_sink_mass: "on the first four tokens of the text",
    attn_far_mass:
      "on keys at least " +
      `${run.distant_from === null ? "distant_from" : whole(run.distant_from)} tokens before ` +
      "the query, without the first four tokens of the text",
    attn_entropy: "nats; 0: all attention on one key",
    attn_max_logit: "mean over queries",
    [kindOf(run).level]: PAIRS[run.pair_sampling] ?? wordsOf(kindOf(run).level).meaning,
    ap_attended: "pairs of keys in proportion to the attention that they receive",
  };
  const facts = Object.entries(meanings)
    .filter(([name]) => spreadOf(run, name))
    .map(([name, meaning]) => {
      const number = fillEstimate(
        make("dd", "", { class: "number", "data-fact": name }),
        showHeadValue(run, key, name),
      );
      const comparable = name !== "attn_far_mass" || other?.distant_from === run.distant_from;
      if (other && comparable)
        number.append(
          make("span", showHeadValue(other, key, name), { class: "other", title: other.label }),
        );
      return make("div", "", {}, [
        make("dt", capital(wordsOf(name).label)),
        number,
        make("dd", meaning, { class: "meaning" }),
      ]);
    });
  byId("attention-facts").replaceChildren(...facts);
}

/**
 * Shares of attention of a head by distance, and half widths of their intervals, for one query
 * bucket or for all queries (`bucket` is null). The half width of all queries is the weighted mean
 * over buckets, an upper bound. Null if the head has no rows.
 */
function massesOf(run, key, bucket) {
  if (!hasRows(run, "attention", key)) return null;
  const range = run.ranges.attention.get(key),
    { columns } = run.tables.attention,
    rows = [];
  for (let row = range[0]; row < range[1]; row++) {
    if (
      (bucket === null || columns.q_bucket[row] === bucket) &&
      Number.isFinite(columns.mass_0[row]) &&
      columns.n_queries[row] > 0
    )
      rows.push(row);
  }
  if (!rows.length) return null;
  const weight = columns.n_tokens,
    bins = binsOf(run);
  const total = rows.reduce((sum, row) => sum + weight[row], 0);
  const mean = (name) =>
    rows.reduce((sum, row) => sum + weight[row] * columns[name][row], 0) / total;
  return {
    bins,
    mass: bins.map((first) => mean(`mass_${columnOf(first)}`)),
    half: bins.map((first) => mean(`half_${columnOf(first)}`)),
  };
}

/** The menu of query buckets. A bucket that this head does not have is replaced by all queries. */
function fillQueries(run, key) {
  const { q_bucket: buckets, q_position: position } = rowsOfHead(run, "attention", key);
  if (!buckets.includes(state.queries)) state.queries = null;
  fillMenu(
    byId("attention-queries"),
    [
      ["", "all"],
      ...buckets.map((number, i) => [number, queriesWords(run, number, position?.[i])]),
    ],
    state.queries ?? "",
  );
}

export const attentionCard = {
  id: "attention",
  title: "Where attention goes",
  place: "below",
  needs: ["attention"],
  controls:
    `<label for="attention-queries" class="grow-right">Queries <select ` +
    `id="attention-queries"></select></label>`,
  body: `
    <div class="attention">
      <figure><figcaption><span class="keys" id="attention-keys"></span></figcaption><div
        class="chart profile" id="attention" role="img"></div></figure>
      <dl class="facts" id="attention-facts"></dl>
    </div>`,
  listen: () =>
    byId("attention-queries").addEventListener("change", ({ target }) => {
      state.queries = target.value === "" ? null : Number(target.value);
      redraw.head();
    }),
  drawHead({ run, other, beside, key }) {
    fillQueries(run, key);
    showFacts(run, beside, key);
    const mine = massesOf(run, key, state.queries);
    showAttentionKeys(run, other, mine, massesBeside(run, other, key, state.queries));
    const most = mine ? mine.bins[mine.mass.indexOf(Math.max(...mine.mass))] : null;
    byId("attention").setAttribute(
      "aria-label",
      mine
        ? `Attention by distance; the largest share, ${show(Math.max(...mine.mass))}, is at ` +
            `${binWords(most)}`
        : "No attention is known for these queries",
    );
  },
  drawCharts: ({ run, other, key }) => [
    draw("attention", attentionFigure(run, other, key, sizeOf(byId("attention")).width)),
  ],
};
