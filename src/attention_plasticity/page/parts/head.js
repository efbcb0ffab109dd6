// The card of the selected head: its profile over the context, and its cells.

import {
  byId, capital, headName, legendEntry, plain, plural, show, whole, withHalf,
} from "./words.js";
import { contextOf, hasRows, metricOf, rowsOfHead } from "./data.js";
import {
  absentWords, cellsWords, eligibleHeads, headsBeside, kindOf, mainDrop, meanProfile, meanWords,
  page, partWord, shownKind, state,
} from "./state.js";
import { budgetWords } from "./tables.js";
import {
  fadedWords, firstHeads, halfWidthOf, hasIntervals, isFaded, reasonOf, showHeadValue, showIn,
  showShare, windowWords, wordsOf,
} from "./values.js";
import { baselineColour, gradient, roleMark, stopsOf, theme, VIRIDIS } from "./colours.js";
import {
  axisName, baseAxis, CELLS, CHART_MARGIN, draw, intervalTraces, lineOf, lowerAxis, placesOf,
  plasticityAxis, positionAxis, positionName, sizeOf, tickStep,
} from "./charts.js";

/** Why this head is shown before a head is chosen. */
function firstHeadWords(run, key) {
  const metric = mainDrop(run),
    drop = metricOf(run, key, metric),
    half = halfWidthOf(run, key, metric),
    { label } = wordsOf(metric),
    interval = `${showIn(metric, drop - half)} to ${showIn(metric, drop + half)}`;
  if (!Number.isFinite(drop))
    return "Selected at first: the first head, because drops are not known.";
  const head = `the head${firstHeads().length < run.rowOf.size ? " of both runs" : ""}`;
  if (!hasIntervals(run, metric))
    return `Selected at first: ${head} with the largest ${label} (${showIn(metric, drop)}).`;
  return Math.abs(drop) > half
    ? `Selected at first: ${head} whose 95 % interval of the ${label} lies farthest from 0 ` +
        `(${interval}).`
    : `Selected at first: ${head} whose ${label} is nearest to being different from 0; all 95 % ` +
        `intervals contain 0 (here ${interval}).`;
}

/** What is known of a head, as a list of short texts. */
function factsOf(run, key) {
  const value = (name) => metricOf(run, key, name),
    shown = (name) => showHeadValue(run, key, name),
    when = (name, words) => (Number.isFinite(value(name)) ? [words()] : []),
    { level, name } = kindOf(run),
    reason = run.at_one_position && reasonOf(run, key, level),
    pooled = () => `over a bin ${shown("ap_pooled")}, of which ${shown("ap_phase")} is rotary phase`,
    counts = () => `${whole(value("n_q_tokens"))} queries, ${whole(value("n_k_tokens"))} keys`,
    window = shown("sliding_window");
  return [
    ...when(level, () => `${name} ${shown(level)}`),
    ...(run.at_one_position ? when("ap_phase", pooled) : []),
    ...when("ap_attended", () => `attended plasticity ${shown("ap_attended")}`),
    ...when("attn_sink_mass", () => `attention on sinks ${shown("attn_sink_mass")}`),
    ...(reason ? [`RoPE-aligned plasticity is missing: ${reason}`] : []),
    ...when("k_head", () => `key head ${value("k_head")}`),
    ...(run.tables.heads.columns.sliding_window
      ? [Number.isFinite(value("sliding_window")) ? `window of ${window} tokens` : window]
      : []),
    ...when("n_q_tokens", counts),
    ...when("d_model", () => `${value("d_model")} dimensions`),
  ];
}

function showHead(run, key) {
  const { layer, head, metric } = state;
  byId("head-title").textContent = headName(layer, head);
  byId("head-facts").textContent = factsOf(run, key).join(" · ");
  byId("head-budget").textContent = budgetWords(run, key);
  byId("head-reason").textContent = state.chosen ? "" : firstHeadWords(run, key);
  const faded = isFaded(run, key) ? `; ${fadedWords(metric)}` : "";
  const value = `${wordsOf(metric).label} ${showHeadValue(run, key, metric)}`;
  byId("announcement").textContent = `${headName(layer, head)}: ${value}${faded}`;
}

function drawProfile(run, other, key) {
  byId("profile").setAttribute("aria-label", profileWords(run, key));
  return draw("profile", profileFigure(run, other, key, sizeOf(byId("profile")).width));
}

/** The mean of heads, baselines, the other run, the selected head, and its numbers of texts. */
function profileFigure(run, other, key, width) {
  const shown = [run, other].filter(Boolean),
    rows = rowsOfHead(run, "profiles", key),
    mean = meanProfile(run),
    texts = rows ? textsTraces(run, rows, width) : [],
    xaxis = positionAxis(shown, width);
  const below = { domain: [0, 0.11], range: [0, 1], tickvals: [0.5], ticktext: ["texts"] };
  return {
    traces: [
      ...texts,
      ...(mean ? meanTraces(run, mean) : []),
      ...drawnBaselines(run).flatMap((baseline) => baselineTraces(run, baseline)),
      ...(rows ? headLines(run, rows) : []),
      ...(other ? otherTraces(other, key) : []),
      headTrace(run, key, { color: theme.one }, "this head"),
    ],
    names: { x: positionName(shown), y: axisName(shown) },
    layout: {
      margin: CHART_MARGIN,
      hovermode: "x unified",
      hoverdistance: -1,
      xaxis: texts.length ? { ...xaxis, anchor: "y2" } : xaxis,
      yaxis: { ...plasticityAxis(), ...(texts.length ? { domain: [0.17, 1] } : {}) },
      ...(texts.length ? { yaxis2: { ...baseAxis(), ...below, showgrid: false } } : {}),
    },
  };
}

/** The selected head: its interval, plasticity over a bin, and keys at equal distances. */
function headLines(run, rows) {
  const own = { color: theme.one },
    of = (name) => ({ ...rows, plasticity: rows[name], half_width: rows[`${name}_half_width`] }),
    traces = intervalTraces("interval of the head", run, rows, theme.one);
  if (rows.pooled) {
    const name = "over a bin, with rotary phase",
      pooled = of("pooled");
    traces.push(
      ...intervalTraces("interval over a bin", run, pooled, theme.one, "18"),
      lineOf(run, pooled, { ...own, width: 1.5, dash: "dot", name, words: name }),
    );
  }
  if (rows.near) {
    const name = "keys at equal distances";
    traces.push(lineOf(run, of("near"), { ...own, width: 2, dash: "dash", name, words: name }));
  }
  return traces;
}

function meanTraces(run, mean) {
  const hidden = { x: placesOf(run, mean), hoverinfo: "skip", mode: "lines", line: { width: 0 } };
  const look = { color: theme.mean, width: 2, name: meanWords(run) };
  const words = "mean of heads; middle 50 %: %{customdata[0]:.3f}–%{customdata[1]:.3f}";
  return [
    { ...hidden, y: Array.from(mean.low) },
    { ...hidden, y: Array.from(mean.high), fill: "tonexty", fillcolor: theme.band },
    ...intervalTraces("interval of the mean", run, mean, theme.mean),
    lineOf(
      run,
      mean,
      { ...look, words },
      { customdata: Array.from(mean.low, (low, i) => [low, mean.high[i]]) },
    ),
  ];
}

/** The same head of the other run, or its mean if heads do not correspond. */
function otherTraces(other, key) {
  const look = { color: theme.two, dash: "dash" };
  if (headsBeside()) return [headTrace(other, key, look, plain(other.label))];
  const mean = meanProfile(other),
    name = `${meanWords(other)}, ${plain(other.label)}`;
  if (!mean) return [];
  return [
    ...intervalTraces("interval of the other mean", other, mean, theme.two),
    lineOf(other, mean, { ...look, width: 2, name, words: name }),
  ];
}

function headTrace(run, key, look, words) {
  const rows = rowsOfHead(run, "profiles", key);
  if (!rows) return { x: [], y: [], hoverinfo: "skip" };
  const texts = Array.from(rows.plasticity, (_, i) =>
    Number.isFinite(rows.n_texts?.[i]) ? `<br>${plural(rows.n_texts[i], "text")}` : "",
  );
  return lineOf(
    run,
    rows,
    { ...look, width: 2.5 },
    {
      mode: "lines+markers",
      marker: { color: look.color, size: 5.5 },
      customdata: texts,
      hovertemplate: `<b>%{y:.3f}</b> ${words}%{text}%{customdata}<extra></extra>`,
    },
  );
}

/** Borders of the buckets of some rows as drawn. */
function bucketSpans(run, rows) {
  const { bucket, start, end } = run.tables.places.columns,
    last = contextOf(run);
  return rows.q_bucket.map((number) => {
    const place = bucket.indexOf(number),
      stop = end[place] + 1;
    const least = Math.max(start[place], run.log ? 1 : 0);
    return [least, last > start[place] ? Math.min(stop, last) : stop];
  });
}

/**
 * The strip below the profile: the number of texts with queries of this head in each bucket with
 * known borders. Numbers without room are left out.
 */
function textsTraces(run, rows, width) {
  const known = rows.n_texts?.some(Number.isFinite) && run.tables.places.columns.end;
  if (!known || rows.n_texts.length < 2) return [];
  const spans = bucketSpans(run, rows),
    most = Math.max(...rows.n_texts.filter(Number.isFinite));
  const step = Math.ceil(
    (spans.length * (7 * whole(most).length + 2)) / (width - CHART_MARGIN.l - CHART_MARGIN.r),
  );
  const edges = [spans[0][0]],
    cells = []; // number of texts, text in the cell, and text under the pointer
  spans.forEach(([first, stop], i) => {
    if (first > edges.at(-1) * 1.0001) {
      edges.push(first);
      cells.push([null, "", ""]);
    }
    edges.push(stop);
    const texts = rows.n_texts[i];
    if (!Number.isFinite(texts)) return cells.push([null, "", ""]);
    const queries = queriesWords(run, rows.q_bucket[i], rows.q_position?.[i], run.tables.places);
    cells.push([
      texts,
      (spans.length - 1 - i) % step === 0 ? whole(texts) : "",
      `<b>${plural(texts, "text")}</b> with queries of this head at ${queries}`,
    ]);
  });
  const [z, text, customdata] = [0, 1, 2].map((place) => [cells.map((cell) => cell[place])]);
  return [
    {
      ...CELLS,
      name: "texts",
      x: edges,
      y: [0, 1],
      z,
      text,
      customdata,
      yaxis: "y2",
      xgap: 1,
      zmin: 0,
      zmax: most,
      colorscale: stopsOf([theme.panel, theme.texts]),
      texttemplate: "%{text}",
      textfont: { size: 10, color: theme.ink },
      hovertemplate: "%{customdata}<extra></extra>",
    },
  ];
}

function showProfileKeys(run, other, key) {
  const rows = rowsOfHead(run, "profiles", key),
    known = (table) => table?.half_width?.some(Number.isFinite) ?? false,
    mean = meanProfile(run);
  const withBand = (colour, text, table) =>
    legendEntry(colour, text + (known(table) ? ", 95 % interval" : ""), known(table) ? "wide" : "");
  const notes = profileNotes(run, rows, known(rows) || known(mean), known(mean));
  byId("profile-note").textContent = notes.join("; ");
  const entries = [
    withBand(theme.one, `this head${run.at_one_position ? ", RoPE-aligned" : ""}`, rows),
  ];
  if (rows?.pooled)
    entries.push(legendEntry(theme.one, "this head, over a bin (with rotary phase)", "dotted"));
  if (rows?.near)
    entries.push(legendEntry(theme.one, "this head, keys at equal distances", "dashed"));
  if (other) entries.push(legendEntry(theme.two, otherWords(other, key), "dashed"));
  if (mean)
    entries.push(
      withBand(theme.mean, meanWords(run), mean),
      legendEntry(theme.band, "middle 50 % of heads", "band"),
    );
  for (const baseline of drawnBaselines(run)) {
    const words = `${baseline.words}, mean of heads`;
    entries.push(legendEntry(baselineColour(baseline), words, ["dashed", "dotted"][baseline.look]));
  }
  byId("profile-keys").replaceChildren(...entries);
}

/** What is said about intervals, and about bins without a value. */
function profileNotes(run, rows, intervals, ofMean) {
  const notes = intervals
    ? [
        "intervals over texts" +
          `${ofMean && eligibleHeads(run) !== null ? ", that of the mean also over heads" : ""}`,
      ]
    : [];
  if (run.at_one_position && rows?.plasticity.some(Number.isNaN))
    notes.push(
      `bins with fewer than ${page.fewest_texts} texts, or too few pairs of keys, are not drawn`,
    );
  return notes;
}

function otherWords(other, key) {
  if (!headsBeside())
    return meanProfile(other)
      ? `${meanWords(other)}, ${other.label}`
      : `${other.label}: no such layers`;
  return other.ranges.profiles.has(key)
    ? `same head, ${other.label}`
    : `${other.label}: ${absentWords(other, key.split(".")[0])}`;
}

function profileWords(run, key) {
  const rows = rowsOfHead(run, "profiles", key),
    known = (rows?.plasticity ?? []).filter(Number.isFinite);
  if (!known.length) return "Profile of this head: no values";
  const texts = (rows.n_texts ?? []).filter(Number.isFinite);
  const counts = texts.length
    ? `; ${plural(texts[0], "text")} in the first ${partWord(run)}, ${whole(texts.at(-1))} ` +
      "in the last"
    : "";
  return (
    `Profile of this head: ${cellsWords(run)} from ${show(known[0])} at the start to ` +
    `${show(known.at(-1))} at the end of the context${counts}`
  );
}

/** The positions of a query bucket; its mean position or its number if they are not known. */
export function queriesWords(run, number, position, table = run.tables.buckets) {
  const { bucket, start, end } = table.columns,
    place = bucket.indexOf(number);
  if (end && place >= 0) return `${whole(start[place])}–${whole(end[place])}`;
  return Number.isFinite(position) ? `around ${whole(position)}` : `bucket ${number}`;
}

/** The baselines with a mean profile of the chosen layers. */
const drawnBaselines = (run) => run.baselines.filter((baseline) => meanProfile(baseline));

/** A thin line with a band in the profile of a head. */
function baselineTraces(run, baseline) {
  const mean = meanProfile(baseline),
    { words: name, look } = baseline,
    color = baselineColour(baseline),
    dash = ["dash", "dot"][look];
  return [
    ...intervalTraces(`interval, ${name}`, run, mean, color, "26"),
    lineOf(run, mean, { color, width: 1.5, dash, name, words: `mean of heads, ${name}` }),
  ];
}

function drawCells(run, key) {
  const part = partWord(run);
  byId("cells").setAttribute(
    "aria-label",
    `${capital(cellsWords(run))} of this head by query ${part} and key ${part}`,
  );
  const unknown = run.at_one_position
    ? `no key pairs, or fewer than ${page.fewest_texts} texts`
    : "or no key pairs";
  byId("cells-note").textContent =
    `${cellsWords(run)} per query ${part} and key ${part}; blank: keys after the query or ` +
    `outside the window, ${unknown}` +
    `${firstIsEmpty(run) ? `; the first ${part} has no earlier ${part} of keys` : ""}`;
  return draw("cells", cellsFigure(run, key));
}

/** Whether the first bin or bucket of queries has no cell: its queries have no earlier keys. */
function firstIsEmpty(run) {
  const { q_bucket: queries, k_bucket: keys } = run.tables.cells.columns;
  const least = (numbers) => numbers.reduce((one, other) => Math.min(one, other), Infinity);
  run.firstIsEmpty ??= least(queries) > least(keys);
  return run.firstIsEmpty;
}

function cellsFigure(run, key) {
  const { bucket, start, end } = run.tables.places.columns;
  const place = new Map(Array.from(bucket, (number, i) => [number, i]));
  const size = bucket.length;
  const z = Array.from({ length: size }, () => new Array(size).fill(null));
  const text = Array.from({ length: size }, () => new Array(size).fill(""));
  const rows = rowsOfHead(run, "cells", key);
  const span = (i) =>
    end
      ? `${whole(start[i])}–${whole(end[i])}`
      : `${run.unit === "tokens" ? "around " : "bucket "}${whole(start[i])}`;
  for (let i = 0; i < (rows?.plasticity.length ?? 0); i++) {
    const q = place.get(rows.q_bucket[i]),
      k = place.get(rows.k_bucket[i]);
    const value = rows.plasticity[i],
      half = rows.half_width?.[i] ?? NaN;
    z[k][q] = Number.isFinite(value) ? value : null;
    const pairs = rows.n_pairs ? `<br>${plural(rows.n_pairs[i], "pair")} of keys` : "";
    const pooled = Number.isFinite(rows.pooled?.[i])
      ? `<br>over a bin: ${showShare(rows.pooled[i])}`
      : "";
    text[k][q] =
      `<b>${withHalf(showShare(value), value, half)}</b> ${cellsWords(run)}` +
      `${pooled}<br>queries ${span(q)}<br>keys ${span(k)}${pairs}`;
  }
  const look = { colorscale: stopsOf(VIRIDIS), zmin: 0, zmax: 1, xgap: 1, ygap: 1 };
  const unit = run.unit === "tokens" ? "position (tokens)" : "bucket";
  return {
    traces: [{ ...CELLS, ...look, z, text, hoverinfo: "text" }],
    names: { x: `query ${unit}`, y: `key ${unit}` },
    layout: {
      margin: { l: 70, r: 24, t: 9, b: 42 },
      xaxis: bucketAxis("query", run, start),
      yaxis: bucketAxis("key", run, start),
    },
  };
}

/** Ticks at the starts of buckets and the end of the last one if known, else at their middles. */
function bucketAxis(kind, run, start) {
  const { end } = run.tables.places.columns,
    exact = Boolean(end);
  const step = tickStep(start.length, kind === "query" ? 4 : 6);
  const places = Array.from(start.keys()).filter(
    (i) => i % step === 0 && !(exact && i && start.length - i < 0.6 * step),
  );
  const last = exact ? [{ place: start.length - 0.5, text: whole(end.at(-1) + 1) }] : [];
  const ticks = [
    ...places.map((i) => ({ place: exact ? i - 0.5 : i, text: whole(start[i]) })),
    ...last,
  ];
  return {
    ...lowerAxis(),
    range: [-0.5, start.length - 0.5],
    mirror: true,
    ticks: exact ? "outside" : "",
    tickvals: ticks.map(({ place }) => place),
    ticktext: ticks.map(({ text }) => text),
  };
}

export const headCard = {
  id: "head",
  title: "",
  place: "right",
  controls:
    `<span id="head-role"></span><p class="quiet" id="head-reason"></p><p class="quiet" ` +
    `id="head-facts"></p><p id="head-budget"></p>`,
  body: `
    <figure>
      <figcaption><h3>Profile over the context</h3> <span class="quiet"
        id="profile-note"></span>
        <span class="keys" id="profile-keys"></span></figcaption>
      <div class="chart profile" id="profile" role="img"></div>
    </figure>
    <div class="fill">
      <figure>
        <figcaption><h3>Query and key position <span class="small-legend" aria-hidden="true">0<i
          id="cells-bar"></i>1</span></h3></figcaption>
        <div class="chart square" id="cells" role="img"></div>
        <p class="quiet" id="cells-note"></p>
      </figure>
    </div>`,
  fill() {
    byId("cells-bar").style.background = gradient(VIRIDIS);
  },
  drawHead({ run, other, key }) {
    byId("head-role").replaceChildren(...(hasRows(run, "roles", key) ? [roleMark(run, key)] : []));
    showHead(run, key);
    showProfileKeys(run, other, key);
  },
  drawCharts: ({ run, other, key }) => [drawProfile(run, other, key), drawCells(run, key)],
};
