// What charts share: layout, axes, lines of plasticity and bands of intervals.

import { byId } from "./words.js";
import { contextOf } from "./data.js";
import { cellsWords } from "./state.js";
import { showShare } from "./values.js";
import { theme } from "./colours.js";

export const PLOT_CONFIG = {
  displayModeBar: false,
  responsive: false,
  showTips: false,
  doubleClick: false,
};

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

export const CHART_MARGIN = { l: 54, r: 14, t: 8, b: 42 };

/** What maps of cells share. */
export const CELLS = { type: "heatmap", hoverongaps: false, showscale: false };

export function baseLayout() {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    dragmode: false,
    autosize: false,
    font: { family: FONT, size: 11.5, color: theme.quiet },
    hoverlabel: {
      bgcolor: theme.panel,
      bordercolor: theme.line,
      align: "left",
      font: { family: FONT, size: 12.5, color: theme.ink },
    },
  };
}

export function baseAxis() {
  return {
    fixedrange: true,
    zeroline: false,
    gridcolor: theme.faint,
    linecolor: theme.line,
    tickcolor: theme.line,
    automargin: false,
    tickangle: 0,
    separatethousands: true,
    ticklabeloverflow: "allow",
  };
}

/** An axis with a line and ticks below it, and without a grid. */
export const lowerAxis = () => ({
  ...baseAxis(),
  showgrid: false,
  showline: true,
  ticks: "outside",
  ticklen: 4,
});

/** A dashed line from the lower to the upper edge of a chart. */
export const uprightLine = (x) => ({
  type: "line",
  xref: "x",
  yref: "paper",
  x0: x,
  x1: x,
  y0: 0,
  y1: 1,
  line: { color: theme.quiet, width: 1, dash: "dash" },
});

/** Error bars where half of the interval is known. */
export const errorBars = (half, look) => ({
  type: "data",
  array: half.map((value) => (Number.isFinite(value) ? value : 0)),
  visible: half.some(Number.isFinite),
  ...look,
});

/** Sizes of chart elements. They are measured once per page layout, because measuring is slow. */
export const sizes = new Map();

export function sizeOf(element) {
  if (!sizes.has(element))
    sizes.set(element, { width: element.clientWidth, height: element.clientHeight });
  return sizes.get(element);
}

/** Draw a figure. CSS shows the axis titles, because Plotly would measure every label for them. */
export function draw(id, { traces, layout, names }) {
  const element = byId(id);
  Object.assign(element.dataset, names);
  return Plotly.react(
    element,
    traces,
    { ...baseLayout(), ...sizeOf(element), ...layout },
    PLOT_CONFIG,
  );
}

/** A round step that gives at most `limit` ticks. */
export function tickStep(count, limit) {
  return [1, 2, 4, 5, 8, 10, 20, 25, 50, 100].find((step) => count / step <= limit) ?? 200;
}

/** The x positions of buckets: mean positions, else starts or numbers. */
export function placesOf(run, rows) {
  if (rows.q_position) return Array.from(rows.q_position);
  const { bucket, start } = run.tables.places.columns;
  return Array.from(rows.q_bucket, (number) => start[bucket.indexOf(number)]);
}

/** One axis for all shown runs: from the start to the end of the longest context. */
export function positionAxis(shown, width) {
  const inTokens = shown.every((run) => run.unit === "tokens");
  const nticks = Math.min(8, Math.ceil(width / 85));
  const axis = { ...lowerAxis(), nticks, tickformat: ",d" };
  if (shown.some((run) => run.log)) {
    return { ...axis, type: "log", dtick: Math.log10(shown[0].tables.places.rows > 9 ? 4 : 2) };
  }
  const end = inTokens ? Math.max(...shown.map(contextOf)) : NaN;
  return {
    ...axis,
    ...(Number.isFinite(end) ? { range: [0, 1.01 * end] } : { rangemode: "tozero" }),
  };
}

export function positionName(shown) {
  return shown.every((run) => run.unit === "tokens") ? "query position (tokens)" : "query bucket";
}

export const plasticityAxis = () => ({
  ...baseAxis(),
  range: [-0.02, 1.04],
  tickvals: [0, 0.25, 0.5, 0.75, 1],
});

/** The name of the axis of plasticity; runs of both kinds have no common words. */
export const axisName = (shown) =>
  new Set(shown.map((run) => run.at_one_position)).size > 1 ? "plasticity" : cellsWords(shown[0]);

/** A line of text per interval; empty where it is not known. */
export const intervalTexts = ({ plasticity, half_width: half }) =>
  Array.from(plasticity, (value, i) =>
    Number.isFinite(half?.[i])
      ? `<br>95 % interval: ${showShare(value - half[i])} to ${showShare(value + half[i])}`
      : "",
  );

/**
 * A line of the plasticity of some rows. `words` are behind the number under the pointer, and
 * `more` are other settings of the trace.
 */
export const lineOf = (run, rows, { color, width, dash, name, words }, more = {}) => ({
  x: placesOf(run, rows),
  y: Array.from(rows.plasticity),
  mode: "lines",
  connectgaps: false,
  line: { color, width, dash },
  name,
  text: intervalTexts(rows),
  hovertemplate: `%{y:.3f} ${words}%{text}<extra></extra>`,
  ...more,
});

/** The band of 95 % intervals, one shape per unbroken series of known intervals. */
export function intervalTraces(name, run, rows, color, alpha = "44") {
  const { plasticity, half_width: half } = rows,
    x = placesOf(run, rows),
    shape = { x: [], y: [] };
  let start = 0;
  for (let i = 0; i <= x.length; i++) {
    if (Number.isFinite(half?.[i]) && i < x.length) continue;
    const there = Array.from({ length: i - start }, (_, step) => start + step),
      back = [...there].reverse();
    if (there.length) {
      shape.x.push(...[...there, ...back, start].map((j) => x[j]), null);
      shape.y.push(
        ...there.map((j) => plasticity[j] + half[j]),
        ...back.map((j) => plasticity[j] - half[j]),
        plasticity[start] + half[start],
        null,
      );
    }
    start = i + 1;
  }
  if (!shape.x.length) return [];
  const faint = color + alpha;
  const look = { mode: "lines", fill: "toself", fillcolor: faint, line: { color: faint, width: 1 } };
  return [{ ...shape, name, hoverinfo: "skip", ...look }];
}
