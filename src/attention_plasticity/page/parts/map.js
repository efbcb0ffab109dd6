// The card of the maps of layer × head, one per shown run. A click or an arrow key selects a head.

import { byId, capital, legendEntry, make, plain, plural, show, whole } from "./words.js";
import { keyOf, metricOf } from "./data.js";
import {
  absentWords, hasTypes, headsBeside, inLayers, isDrop, layersWords, mapRuns, redraw, runShown,
  state, typeOf, typeWords,
} from "./state.js";
import {
  anyIntervals, canBeUnsure, commonReason, isFaded, isSure, isUnsure, mapGroups, reasonOf, ROLE,
  roleOf, showHeadValue, showIn, spreadBetweenHeads, windowWords, wordsOf,
} from "./values.js";
import { colourOfType, gradient, scaleOf, stopsOf, theme } from "./colours.js";
import { baseAxis, baseLayout, CELLS, PLOT_CONFIG, sizeOf, sizes, tickStep } from "./charts.js";

const MAP_MARGIN = { l: 36, r: 12, t: 3, b: 36 };

const MAP_ROW = 20,
  MAP_MIN = 130,
  MAP_MAX = 400;

/**
 * The layers on the maps, one row each: those with heads in a shown run. Both maps have the same
 * rows.
 */
const mapLayers = () =>
  [...new Set(mapRuns().flatMap((run) => Object.keys(run.layer_types).map(Number)))].sort(
    (a, b) => a - b,
  );

/** The rows of a map above which layers are left out. */
const breaksOf = (layers) =>
  layers.flatMap((layer, row) => (row && layer > layers[row - 1] + 1 ? [row] : []));

/** The map ends above the lower edge of the first screen if it can. */
const mapHeight = (layers, top) =>
  Math.min(MAP_MAX, Math.max(220, innerHeight - top - 90), Math.max(MAP_MIN, layers * MAP_ROW)) +
  MAP_MARGIN.t +
  MAP_MARGIN.b;

function makeMaps(runs) {
  byId("maps").replaceChildren(
    ...runs.map((run, place) => {
      const plot = make("div", "", {
        class: "map-plot",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "map of heads",
        "data-run": run.label,
      });
      plot.addEventListener("click", (event) => select(headAt(plot, runs[place], event), place));
      plot.addEventListener("keydown", (event) => moveByKey(event, runs[place], place));
      if (runs.length === 1) return make("figure", "", { class: "map" }, [plot]);
      const label = make("span", run.label, { title: run.label });
      return make("figure", "", { class: "map" }, [make("figcaption", "", {}, [label]), plot]);
    }),
  );
}

const mapPlots = () => [...document.querySelectorAll(".map-plot")];

function drawMap(plot, run, metric, scale, rows) {
  const width = plot.clientWidth,
    height = mapHeight(rows, plot.getBoundingClientRect().top + scrollY);
  plot.style.height = `${height}px`;
  sizes.set(plot, { width, height });
  const { traces, layout, names } = mapFigure(run, metric, scale, { width, height });
  Object.assign(plot.dataset, names);
  plot.setAttribute(
    "aria-label",
    `${wordsOf(metric).label} by layer and head, ${run.label}; arrow keys move`,
  );
  return Plotly.react(plot, traces, { ...baseLayout(), width, height, ...layout }, PLOT_CONFIG);
}

function mapFigure(run, metric, scale, size) {
  const heads = run.grid[1],
    layers = mapLayers();
  const cell = Math.min(...Object.values(cellSize(size, run)));
  const trace = {
    ...CELLS,
    ...mapValues(run, metric, scale),
    hoverinfo: "text",
    hoverongaps: true,
    colorscale: scale.stops ?? stopsOf(scale.colours),
    zmin: scale.low,
    zmax: scale.high,
    xgap: cell > 7 ? 1 : 0,
    ygap: cell > 7 ? 1 : 0,
  };
  const axis = { ...baseAxis(), showgrid: false, showline: true, mirror: true, ticks: "" };
  return {
    traces: [trace, ...fadeTraces(run)],
    names: { x: "head", y: "layer" },
    layout: {
      margin: MAP_MARGIN,
      shapes: [...typeShapes(run, layers), ...breakShapes(layers)],
      xaxis: { ...axis, range: [-0.5, heads - 0.5], dtick: tickStep(heads, size.width / 34) },
      yaxis: {
        ...axis,
        range: [layers.length - 0.5, -0.5],
        ...layerTicks(layers, size.height / 26),
      },
    },
  };
}

/** Numbers of layers beside their rows: round numbers if no layer is left out. */
function layerTicks(layers, limit) {
  const step = tickStep(layers.length, limit),
    whole = !breaksOf(layers).length;
  const rows = [...layers.keys()].filter((row) => (whole ? layers[row] : row) % step === 0);
  return { tickvals: rows, ticktext: rows.map((row) => String(layers[row])) };
}

/** Dashed lines where layers are left out. */
function breakShapes(layers) {
  const across = { name: "break", type: "line", xref: "paper", x0: 0, x1: 1 };
  const line = (row, style) => ({ ...across, y0: row - 0.5, y1: row - 0.5, line: style });
  return breaksOf(layers).flatMap((row) => [
    line(row, { color: theme.panel, width: 3 }),
    line(row, { color: theme.quiet, width: 1.5, dash: "5px,3px" }),
  ]);
}

/** The left-out layers in words; empty if there is none. */
function breakWords(layers) {
  const breaks = breaksOf(layers);
  if (!breaks.length) return "";
  const ranges = breaks
    .map((row) =>
      [layers[row - 1] + 1, layers[row] - 1]
        .filter((layer, i, both) => !i || layer > both[0])
        .join("-"),
    )
    .join(",");
  const named = ranges.length > 40 ? "some layers" : layersWords(ranges);
  return `dashed line${breaks.length > 1 ? "s" : ""}: ${named} left out`;
}

/** A veil over heads with wide intervals and over heads of other layers than the chosen ones. */
function fadeTraces(run) {
  const z = mapLayers().map((layer) =>
    Array.from({ length: run.grid[1] }, (_, head) =>
      isVeiled(run, keyOf(layer, head)) ? 1 : null,
    ),
  );
  if (!z.some((row) => row.includes(1))) return [];
  const look = {
    colorscale: stopsOf([theme.panel, theme.panel]),
    opacity: state.metric === ROLE ? 0.6 : 0.75,
  };
  return [{ ...CELLS, ...look, name: "faded", z, zmin: 0, zmax: 1, hoverinfo: "skip" }];
}

const isVeiled = (run, key) => run.rowOf.has(key) && (isFaded(run, key) || !inLayers(run, key));

function mapValues(run, metric, scale) {
  const heads = run.grid[1];
  const label = wordsOf(metric).label;
  const z = [],
    text = [];
  for (const layer of mapLayers()) {
    const values = [],
      texts = [];
    for (let head = 0; head < heads; head++) {
      const key = keyOf(layer, head);
      const known = run.rowOf.has(key);
      const value =
        scale.classes && known
          ? scale.classes.indexOf(classOf(run, key, metric))
          : metricOf(run, key, metric);
      values.push(Number.isFinite(value) && !(scale.classes && value < 0) ? value : null);
      const type = known && hasTypes(run) ? ` · ${plain(typeWords(run, typeOf(run, key)))}` : "";
      texts.push(
        `layer ${layer}, head ${head}${type}<br>` +
          (known ? mapText(run, key, metric, label) : absentWords(run, layer)),
      );
    }
    z.push(values);
    text.push(texts);
  }
  return { z, text };
}

/** The class of a head on a map of classes; undefined if it has none. */
const classOf = (run, key, metric) =>
  metric === ROLE ? roleOf(run, key)?.likely : windowWords(run, key);

function mapText(run, key, metric, label) {
  const reason = reasonOf(run, key, metric);
  return (
    `<b>${showHeadValue(run, key, metric)}</b> ${plain(label)}` +
    `${reason ? `<br>missing: ${plain(reason)}` : ""}`
  );
}

/** Size of a cell in pixels. */
function cellSize({ width, height }, run) {
  return {
    cellWidth: (width - MAP_MARGIN.l - MAP_MARGIN.r) / run.grid[1],
    cellHeight: (height - MAP_MARGIN.t - MAP_MARGIN.b) / mapLayers().length,
  };
}

function headAt(plot, run, event) {
  const box = plot.getBoundingClientRect();
  const { cellWidth, cellHeight } = cellSize(sizeOf(plot), run);
  const head = Math.floor((event.clientX - box.left - MAP_MARGIN.l) / cellWidth);
  const row = Math.floor((event.clientY - box.top - MAP_MARGIN.t) / cellHeight);
  return keyOf(mapLayers()[row], head);
}

function markHead(plot, run, layer, head) {
  let mark = plot.querySelector(":scope > .map-mark");
  if (!mark) plot.append((mark = make("div", "", { class: "map-mark" })));
  mark.hidden = !run.rowOf.has(keyOf(layer, head));
  const { cellWidth, cellHeight } = cellSize(sizeOf(plot), run);
  const border = 2;
  mark.style.left = `${MAP_MARGIN.l + head * cellWidth - border}px`;
  mark.style.top = `${MAP_MARGIN.t + mapLayers().indexOf(layer) * cellHeight - border}px`;
  mark.style.width = `${cellWidth + 2 * border}px`;
  mark.style.height = `${cellHeight + 2 * border}px`;
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Select the next captured head in the direction of the arrow key. */
function moveByKey(event, run, place) {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const layers = mapLayers();
  let row = layers.indexOf(state.layer),
    { head } = state;
  do {
    row += step[0];
    head += step[1];
    if (row < 0 || head < 0 || row >= layers.length || head >= run.grid[1]) return;
  } while (!run.rowOf.has(keyOf(layers[row], head)));
  select(keyOf(layers[row], head), place);
}

/** Whether a cell of a map has no colour. */
const hasBlanks = (shown) =>
  shown.some((run) =>
    mapLayers().some((layer) =>
      Array.from({ length: run.grid[1] }, (_, head) => keyOf(layer, head)).some(
        (key) => !run.rowOf.has(key) || !hasValue(run, key),
      ),
    ),
  );

/** Whether a head has a value of the metric of the map. */
function hasValue(run, key) {
  if (state.metric === ROLE) return roleOf(run, key) !== null;
  return state.metric === "sliding_window" || Number.isFinite(metricOf(run, key, state.metric));
}

/** The legend of the colours: a bar with its ends, one value, or a list of classes. */
function showLegend(scale, shown) {
  const { classes, legend, single, low, high, colours, unsure = [] } = scale;
  const entry = (text, colour, kind = "swatch") => {
    const made = legendEntry(colour, text, kind);
    made.className = "class";
    return made;
  };
  const bar = () => make("i", "", { class: "bar", style: `background: ${gradient(colours)}` });
  let parts = [show(low), bar(), show(high)];
  if (single) parts = [entry(show(low), colours[0])];
  if (classes)
    parts = [
      ...legend.map((text, i) => entry(text, colours[i])),
      ...unsure.map((text) => entry(text, theme.quiet, "swatch unsure")),
    ];
  byId("legend-colours").replaceChildren(...parts);
  const reasons = [
    ...(shown.some((run) => run.selected) ? ["not selected"] : []),
    "not captured",
    ...(state.metric === ROLE ? ["no role"] : scale.classes ? [] : ["no value"]),
  ];
  const blank = hasBlanks(shown)
    ? `blank: ${reasons.slice(0, -1).join(", ")}${reasons.length > 1 ? ", or " : ""}` +
      `${reasons.at(-1)}`
    : "";
  byId("legend-note").textContent = [breakWords(mapLayers()), blank].filter(Boolean).join("; ");
}

/** Bars beside the map at the layers without full attention. */
function typeShapes(run, layers) {
  const shapes = [];
  const place = { type: "rect", xref: "paper", yref: "y", xsizemode: "pixel", xanchor: 1 };
  for (const [row, layer] of layers.entries()) {
    const name = run.layer_types[layer],
      last = shapes.at(-1);
    if (!name || name === "full_attention") continue;
    if (last?.name === name && last.y1 === row - 0.5) last.y1 = row + 0.5;
    else {
      const look = { fillcolor: colourOfType(name), line: { color: theme.panel, width: 1 } };
      shapes.push({ ...place, ...look, name, x0: 4, x1: 9, y0: row - 0.5, y1: row + 0.5 });
    }
  }
  return shapes;
}

function showTypeLegend(shown) {
  const same =
    new Set(
      shown.map(({ types }) => JSON.stringify(types.map(({ name, layers }) => [name, layers]))),
    ).size === 1;
  const named = same ? shown.slice(0, 1) : shown;
  const marked = named.flatMap((run) =>
    run.types.filter(({ name }) => name !== "full_attention").map((type) => [run, type]),
  );
  byId("type-legend").hidden = !marked.length;
  byId("type-legend").replaceChildren(
    ...marked.map(([run, { name, words, layers }]) => {
      const owner = named.length > 1 ? `${run.label}: ` : "";
      return legendEntry(colourOfType(name), `${owner}${words}, ${layersWords(layers)}`);
    }),
  );
}

/**
 * The switch: absent if no run of the page has intervals or roles, disabled if this metric has
 * none.
 */
function showSwitch(run) {
  byId("sure-line").hidden = !state.runs.some((one) => anyIntervals(one) || one.tables.roles);
  const possible = canBeUnsure(run, state.metric);
  byId("sure").disabled = !possible;
  byId("sure").checked = isSure() && possible;
  byId("sure-words").textContent = possible
    ? switchWords(run)
    : `Not available: ${noIntervals(run)}.`;
}

function noIntervals(run) {
  const reason = commonReason(run, `${state.metric}_se`),
    because = reason ? `: ${reason}` : "";
  return anyIntervals(run)
    ? `“${wordsOf(state.metric).label}” has no interval${because}`
    : `the values of this run have no intervals${because}`;
}

function switchWords(run) {
  const unsure = [...run.rowOf.keys()].filter((key) => isUnsure(run, key, state.metric)).length;
  const counted =
    `${whole(unsure)} of ${plural(run.rowOf.size, "head")}` +
    `${headsBeside() ? ` of ${run.label}` : ""}`;
  if (state.metric === ROLE)
    return (
      "Fade heads whose role is unsure: a 95 % interval contains a threshold or is not " +
      `known, or repeated tokens decide: ${counted}.`
    );
  if (isDrop(state.metric))
    return (
      "Fade heads whose drop does not differ from 0, with a correction for the number of " +
      `heads (false discovery rate 5 %): ${counted}.`
    );
  const spread = showIn(state.metric, spreadBetweenHeads(run, state.metric));
  return (
    "Fade heads that these texts do not tell from the others: their 95 % interval is wider " +
    `than the spread between heads (interquartile range, ${spread}): ${counted}.`
  );
}

const ALL_COLUMNS = "…"; // the last option of the menu of colours

/**
 * The menu of colours: the usual metrics and the chosen one, or all columns without those of
 * errors.
 */
function fillMetrics() {
  const groups = mapGroups(runShown());
  const usual = (name) =>
    state.allColumns ||
    name === ROLE ||
    name === state.metric ||
    name === "sliding_window" ||
    wordsOf(name).first;
  const shown = groups
    .map(([title, names]) => [title, names.filter(usual)])
    .filter(([, names]) => names.length);
  const more =
    groups.flatMap(([, names]) => names).length - shown.flatMap(([, names]) => names).length;
  const option = (name) => make("option", wordsOf(name).label, { value: name });
  byId("metric").replaceChildren(
    ...shown.map(([label, names]) => make("optgroup", "", { label }, names.map(option))),
    ...(more ? [make("option", `${plural(more, "more column")} …`, { value: ALL_COLUMNS })] : []),
  );
  byId("metric").value = state.metric;
}

/** Select a head. `place` is the number of the map: 1 is the map of the other run. */
export function select(key, place = 0) {
  if (!mapRuns()[place].rowOf.has(key) || !runShown().rowOf.has(key)) return;
  [state.layer, state.head] = key.split(".").map(Number);
  state.chosen = true;
  redraw.head();
}

export const mapCard = {
  id: "map",
  title: "Heads by layer",
  place: "left",
  controls:
    '<label for="metric" class="grow-right">Colour <select id="metric"></select></label>',
  body: `
    <div class="maps" id="maps"></div>
    <div class="legend" id="legend" aria-hidden="true"><span class="legend-colours"
      id="legend-colours"></span><span class="legend-note" id="legend-note"></span></div>
    <p class="quiet type-legend" id="type-legend" hidden></p>
    <div class="sure" id="sure-line" hidden>
      <label for="sure"><input type="checkbox" id="sure" aria-describedby="sure-words"> How
        sure</label>
      <span class="quiet" id="sure-words"></span>
    </div>`,
  listen() {
    byId("metric").addEventListener("change", ({ target }) => {
      if (target.value === ALL_COLUMNS) {
        state.allColumns = true;
        fillMetrics();
      } else {
        state.metric = target.value;
        redraw.all();
      }
    });
    byId("sure").addEventListener("change", ({ target }) => {
      state.sure = target.checked;
      redraw.all();
    });
  },
  fill({ run }) {
    const shown = mapRuns();
    fillMetrics();
    byId("map-note").textContent = capital(wordsOf(state.metric).meaning);
    showTypeLegend(shown);
    showSwitch(run);
    showLegend(scaleOf(state.metric, shown), shown);
    if (
      mapPlots().length !== shown.length ||
      shown.some((one, place) => one.label !== mapPlots()[place].dataset.run)
    )
      makeMaps(shown);
  },
  drawRun() {
    const shown = mapRuns(),
      scale = scaleOf(state.metric, shown),
      rows = mapLayers().length;
    const charts = mapPlots().map((plot, place) =>
      drawMap(plot, shown[place], state.metric, scale, rows),
    );
    this.drawHead(); // by the new sizes
    return charts;
  },
  drawHead: () =>
    mapPlots().forEach((plot, place) => markHead(plot, mapRuns()[place], state.layer, state.head)),
};
