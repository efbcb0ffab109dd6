// The card of the selected head: its profile over the context, and its cells.

import { byId, capital, headName, make, plain, plural, show, whole, withHalf } from "./words.js";
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
  axisName, bandWords, baseAxis, CHART_MARGIN, draw, intervalTexts, intervalTraces, placesOf,
  plasticityAxis, positionAxis, positionName, savedCharts, sizeOf, tickStep,
} from "./charts.js";

/** Why this head is shown before a head is chosen. */
function firstHeadWords(run, key) {
  const metric = mainDrop(run),
    drop = metricOf(run, key, metric),
    { label } = wordsOf(metric);
  if (!Number.isFinite(drop))
    return "Selected at first: the first head, because drops are not known.";
  const shared = firstHeads().length < run.rowOf.size ? " of both runs" : "";
  if (!hasIntervals(run, metric))
    return (
      `Selected at first: the head${shared} with the largest ${label} (` +
      `${showIn(metric, drop)}).`
    );
  const half = halfWidthOf(run, key, metric),
    interval = `${showIn(metric, drop - half)} to ${showIn(metric, drop + half)}`;
  if (Math.abs(drop) > half)
    return (
      `Selected at first: the head${shared} whose 95 % interval of the ${label} lies ` +
      `farthest from 0 (${interval}).`
    );
  return (
    `Selected at first: the head${shared} whose ${label} is nearest to being different from ` +
    `0; all 95 % intervals contain 0 (here ${interval}).`
  );
}

function showHead(run, key) {
  const { layer, head } = state;
  byId("head-title").textContent = headName(layer, head);
  const facts = [];
  const value = (name) => metricOf(run, key, name);
  const kind = kindOf(run);
  if (Number.isFinite(value(kind.level)))
    facts.push(`${kind.name} ${showHeadValue(run, key, kind.level)}`);
  if (run.at_one_position && Number.isFinite(value("ap_phase")))
    facts.push(
      `over a bin ${showHeadValue(run, key, "ap_pooled")}, of which ` +
        `${showHeadValue(run, key, "ap_phase")} is rotary phase`,
    );
  if (Number.isFinite(value("ap_attended")))
    facts.push(`attended plasticity ${showHeadValue(run, key, "ap_attended")}`);
  if (Number.isFinite(value("attn_sink_mass")))
    facts.push(`attention on sinks ${showHeadValue(run, key, "attn_sink_mass")}`);
  const reason = run.at_one_position && reasonOf(run, key, kind.level);
  if (reason) facts.push(`RoPE-aligned plasticity is missing: ${reason}`);
  if (Number.isFinite(value("k_head"))) facts.push(`key head ${value("k_head")}`);
  if (run.tables.heads.columns.sliding_window) {
    facts.push(
      Number.isFinite(value("sliding_window"))
        ? `window of ${whole(value("sliding_window"))} tokens`
        : windowWords(run, key),
    );
  }
  if (Number.isFinite(value("n_q_tokens")))
    facts.push(`${whole(value("n_q_tokens"))} queries, ${whole(value("n_k_tokens"))} keys`);
  if (Number.isFinite(value("d_model"))) facts.push(`${value("d_model")} dimensions`);
  byId("head-facts").textContent = facts.join(" · ");
  byId("head-budget").textContent = budgetWords(run, key);
  byId("head-reason").textContent = state.chosen ? "" : firstHeadWords(run, key);
  const metric = wordsOf(state.metric).label;
  const faded = isFaded(run, key) ? `; ${fadedWords(state.metric)}` : "";
  byId("announcement").textContent =
    `${headName(layer, head)}: ${metric} ${showHeadValue(run, key, state.metric)}${faded}`;
}

function drawProfile(run, other, key) {
  byId("profile").setAttribute("aria-label", profileWords(run, key));
  return draw("profile", profileFigure(run, other, key, sizeOf(byId("profile")).width));
}

/**
 * The selected head, the mean of heads, and the same head of the other run, or its mean if heads do
 * not correspond.
 */
function profileFigure(run, other, key, width) {
  const shown = [run, other].filter(Boolean),
    rows = rowsOfHead(run, "profiles", key),
    mean = meanProfile(run);
  const traces = [...(mean ? meanTraces(run, mean, shown) : []), ...baselineTraces(run, shown)];
  if (rows)
    traces.push(...intervalTraces("interval of the head", placesOf(run, rows), rows, theme.one));
  if (rows?.pooled) traces.push(...pooledTraces(run, rows, shown));
  if (rows?.near) traces.push(...nearTraces(run, rows, shown));
  if (other && !headsBeside()) traces.push(...otherMeanTraces(other, shown));
  else if (other)
    traces.push(
      headTrace(
        other,
        key,
        shown,
        theme.two,
        "dash",
        plain(other.label),
        `the same head, ${plain(other.label)}`,
      ),
    );
  traces.push(
    headTrace(
      run,
      key,
      shown,
      theme.one,
      "solid",
      "this head",
      headName(...key.split("."))
        .toLowerCase()
        .replace(" ·", ",") + bandWords(rows ?? {}),
    ),
  );
  const texts = rows ? textsTraces(run, rows, shown, width) : [];
  const xaxis = positionAxis(shown, width);
  return {
    traces: [...texts, ...traces],
    names: { x: positionName(shown), y: axisName(shown) },
    layout: {
      margin: CHART_MARGIN,
      hovermode: "x unified",
      hoverdistance: -1,
      xaxis: texts.length ? { ...xaxis, anchor: "y2" } : xaxis,
      yaxis: { ...plasticityAxis(), ...(texts.length ? { domain: [0.17, 1] } : {}) },
      ...(texts.length
        ? {
            yaxis2: {
              ...baseAxis(),
              domain: [0, 0.11],
              range: [0, 1],
              tickvals: [0.5],
              ticktext: ["texts"],
              showgrid: false,
            },
          }
        : {}),
    },
  };
}

/** Plasticity over a bin of the selected head, for the same pairs and queries as captured. */
function pooledTraces(run, rows, shown) {
  const x = placesOf(run, rows),
    pooled = { plasticity: rows.pooled, half_width: rows.pooled_half_width };
  return [
    ...intervalTraces("interval over a bin", x, pooled, theme.one, "18"),
    {
      x,
      y: rows.pooled,
      mode: "lines",
      connectgaps: false,
      line: { color: theme.one, width: 1.5, dash: "dot" },
      name: `over a bin, with rotary phase${bandWords(pooled)}`,
      text: intervalTexts(pooled),
      hovertemplate: "%{y:.3f} over a bin, with rotary phase%{text}<extra></extra>",
    },
  ];
}

/** The selected head with keys at equal distances at all positions. */
function nearTraces(run, rows, shown) {
  const near = { plasticity: rows.near, half_width: rows.near_half_width };
  return [
    {
      x: placesOf(run, rows),
      y: rows.near,
      mode: "lines",
      connectgaps: false,
      line: { color: theme.one, width: 2, dash: "dash" },
      name: "keys at equal distances",
      text: intervalTexts(near),
      hovertemplate: "%{y:.3f} keys at equal distances%{text}<extra></extra>",
    },
  ];
}

function meanTraces(run, mean, shown) {
  const x = placesOf(run, mean);
  const hidden = { hoverinfo: "skip", mode: "lines", line: { width: 0 }, showlegend: false };
  return [
    { ...hidden, x, y: Array.from(mean.low) },
    {
      ...hidden,
      x,
      y: Array.from(mean.high),
      fill: "tonexty",
      fillcolor: theme.band,
      name: "middle 50 % of heads",
      showlegend: true,
    },
    ...intervalTraces("interval of the mean", x, mean, theme.mean),
    {
      x,
      y: Array.from(mean.plasticity),
      mode: "lines",
      line: { color: theme.mean, width: 2 },
      name: meanWords(run) + bandWords(mean),
      customdata: Array.from(mean.low, (low, i) => [low, mean.high[i]]),
      text: intervalTexts(mean),
      hovertemplate:
        "%{y:.3f} mean of heads; middle 50 %: " +
        "%{customdata[0]:.3f}–%{customdata[1]:.3f}%{text}<extra></extra>",
    },
  ];
}

function otherMeanTraces(other, shown) {
  const mean = meanProfile(other);
  if (!mean) return [];
  const x = placesOf(other, mean),
    name = `${meanWords(other)}, ${plain(other.label)}`;
  return [
    ...intervalTraces("interval of the other mean", x, mean, theme.two),
    {
      x,
      y: Array.from(mean.plasticity),
      mode: "lines",
      line: { color: theme.two, width: 2, dash: "dash" },
      name,
      text: intervalTexts(mean),
      hovertemplate: `%{y:.3f} ${name}%{text}<extra></extra>`,
    },
  ];
}

function headTrace(run, key, shown, color, dash, words, name) {
  const rows = rowsOfHead(run, "profiles", key);
  if (!rows) return { x: [], y: [], hoverinfo: "skip", showlegend: false };
  const intervals = intervalTexts(rows);
  const texts = Array.from(rows.plasticity, (_, i) =>
    Number.isFinite(rows.n_texts?.[i]) ? `<br>${plural(rows.n_texts[i], "text")}` : "",
  );
  return {
    x: placesOf(run, rows),
    y: rows.plasticity,
    mode: "lines+markers",
    connectgaps: false,
    name,
    line: { color, width: 2.5, dash },
    marker: { color, size: 5.5 },
    text: intervals,
    customdata: texts,
    hovertemplate: `<b>%{y:.3f}</b> ${words}%{text}%{customdata}<extra></extra>`,
  };
}

/**
 * Borders of the buckets of some rows as drawn. Without known borders they are midway between
 * positions.
 */
function bucketSpans(run, rows, shown) {
  const { bucket, start, end } = run.tables.places.columns;
  const last = contextOf(run);
  if (end)
    return rows.q_bucket.map((number) => {
      const place = bucket.indexOf(number),
        stop = end[place] + 1;
      return [
        Math.max(start[place], run.log ? 1 : 0),
        last > start[place] ? Math.min(stop, last) : stop,
      ];
    });
  const x = placesOf(run, rows);
  const middle = (i) => (x[i] + x[i + 1]) / 2;
  return x.map((place, i) => [
    i ? middle(i - 1) : Math.max(0, 2 * place - middle(0)),
    i < x.length - 1 ? middle(i) : 2 * place - middle(i - 1),
  ]);
}

/**
 * The strip below the profile: the number of texts with queries of this head in each bucket.
 * Numbers without room are left out.
 */
function textsTraces(run, rows, shown, width) {
  if (!rows.n_texts?.some(Number.isFinite) || rows.n_texts.length < 2) return [];
  const spans = bucketSpans(run, rows, shown),
    most = Math.max(...rows.n_texts.filter(Number.isFinite));
  const step = Math.ceil(
    (spans.length * (7 * whole(most).length + 2)) / (width - CHART_MARGIN.l - CHART_MARGIN.r),
  );
  const edges = [spans[0][0]],
    z = [],
    text = [],
    hover = [];
  spans.forEach(([first, stop], i) => {
    if (first > edges.at(-1) * 1.0001) {
      edges.push(first);
      z.push(null);
      text.push("");
      hover.push("");
    }
    const known = Number.isFinite(rows.n_texts[i]);
    edges.push(stop);
    z.push(known ? rows.n_texts[i] : null);
    text.push(known && (spans.length - 1 - i) % step === 0 ? whole(rows.n_texts[i]) : "");
    hover.push(
      known
        ? `<b>${plural(rows.n_texts[i], "text")}</b> with queries of this head at ` +
            `${queriesWords(run, rows.q_bucket[i], rows.q_position?.[i], run.tables.places)}`
        : "",
    );
  });
  return [
    {
      type: "heatmap",
      name: "texts",
      x: edges,
      y: [0, 1],
      z: [z],
      text: [text],
      customdata: [hover],
      xaxis: "x",
      yaxis: "y2",
      xgap: 1,
      showscale: false,
      showlegend: false,
      zmin: 0,
      zmax: most,
      colorscale: [
        [0, theme.panel],
        [1, theme.texts],
      ],
      texttemplate: "%{text}",
      textfont: { size: 10, color: theme.ink },
      hovertemplate: "%{customdata}<extra></extra>",
      hoverongaps: false,
    },
  ];
}

function showProfileKeys(run, other, key) {
  const entry = (colour, text, kind = "") => {
    const line = make("i", "", kind ? { class: kind } : {});
    line.style[kind === "band" ? "background" : "borderColor"] = colour;
    return make("span", "", {}, [line, text]);
  };
  const rows = rowsOfHead(run, "profiles", key),
    mine = rows?.half_width?.some(Number.isFinite),
    mean = meanProfile(run);
  const ofMean = mean?.half_width?.some(Number.isFinite);
  const withBand = (colour, text, known) => {
    const made = entry(colour, text + (known ? ", 95 % interval" : ""));
    if (known) made.firstChild.style.boxShadow = `0 -4px ${colour}44, 0 4px ${colour}44`;
    return made;
  };
  byId("profile-note").textContent = profileNotes(run, rows, mine || ofMean, ofMean).join("; ");
  const entries = [
    withBand(theme.one, `this head${run.at_one_position ? ", RoPE-aligned" : ""}`, mine),
  ];
  if (rows?.pooled)
    entries.push(entry(theme.one, "this head, over a bin (with rotary phase)", "dotted"));
  if (rows?.near) entries.push(entry(theme.one, "this head, keys at equal distances", "dashed"));
  if (other) entries.push(entry(theme.two, otherWords(other, key), "dashed"));
  if (mean)
    entries.push(
      withBand(theme.mean, meanWords(run), ofMean),
      entry(theme.band, "middle 50 % of heads", "band"),
    );
  for (const baseline of drawnBaselines(run))
    entries.push(
      entry(
        baselineColour(baseline),
        `${baseline.words}, mean of heads`,
        ["dashed", "dotted"][baseline.look],
      ),
    );
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

const BASELINE_DASHES = ["dash", "dot"];

/** The baselines with a mean profile of the chosen layers. */
const drawnBaselines = (run) => run.baselines.filter((baseline) => meanProfile(baseline));

/** Thin lines with bands in the profile of a head. */
function baselineTraces(run, shown) {
  return drawnBaselines(run).flatMap((baseline) => {
    const mean = meanProfile(baseline),
      x = placesOf(run, mean),
      color = baselineColour(baseline);
    return [
      ...intervalTraces(`interval, ${baseline.words}`, x, mean, color, "26"),
      {
        x,
        y: Array.from(mean.plasticity),
        mode: "lines",
        line: { color, width: 1.5, dash: BASELINE_DASHES[baseline.look] },
        name: `${baseline.words}${bandWords(mean)}`,
        text: intervalTexts(mean),
        hovertemplate: `%{y:.3f} mean of heads, ${baseline.words}%{text}<extra></extra>`,
      },
    ];
  });
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
  const trace = {
    type: "heatmap",
    z,
    text,
    hoverinfo: "text",
    hoverongaps: false,
    colorscale: stopsOf(VIRIDIS),
    zmin: 0,
    zmax: 1,
    xgap: 1,
    ygap: 1,
    showscale: false,
  };
  const unit = run.unit === "tokens" ? "position (tokens)" : "bucket";
  return {
    traces: [trace],
    bar: { label: cellsWords(run) },
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
    ...baseAxis(),
    showgrid: false,
    range: [-0.5, start.length - 0.5],
    showline: true,
    mirror: true,
    ticks: exact ? "outside" : "",
    ticklen: 4,
    tickvals: ticks.map(({ place }) => place),
    ticktext: ticks.map(({ text }) => text),
  };
}

const ofHead = (run, key, chart, size, figure) => () => ({
  run,
  name: `${chart}-l${key.replace(".", "h")}`,
  size,
  figure,
});

export const headCard = {
  id: "head",
  title: "",
  place: "right",
  controls:
    `<span id="head-role"></span><p class="quiet" id="head-reason"></p><p class="quiet" ` +
    `id="head-facts"></p><p id="head-budget"></p>`,
  body: `
    <figure>
      <figcaption><h3>Profile over the context</h3> <span data-images="profile"
        data-what="profile"></span> <span class="quiet" id="profile-note"></span>
        <span class="keys" id="profile-keys"></span></figcaption>
      <div class="chart profile" id="profile" role="img"></div>
    </figure>
    <div class="fill">
      <figure>
        <figcaption><h3>Query and key position <span class="small-legend" aria-hidden="true">0<i
          id="cells-bar"></i>1</span></h3> <span data-images="cells"
          data-what="cells"></span></figcaption>
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
    savedCharts.profile = ofHead(run, key, "profile", { width: 760, height: 430 }, () =>
      profileFigure(run, other, key, 760),
    );
    savedCharts.cells = ofHead(run, key, "cells", { width: 600, height: 520 }, () =>
      cellsFigure(run, key),
    );
  },
  drawCharts: ({ run, other, key }) => [drawProfile(run, other, key), drawCells(run, key)],
};
