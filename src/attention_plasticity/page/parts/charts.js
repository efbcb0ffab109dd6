// What charts share: layout, axes, profiles and bands of intervals; and charts as SVG and PNG.

import { byId, make, plain } from "./words.js";
import { contextOf } from "./data.js";
import { cellsWords } from "./state.js";
import { showShare } from "./values.js";
import { theme, withTheme } from "./colours.js";

export const PLOT_CONFIG = {
  displayModeBar: false,
  responsive: false,
  showTips: false,
  doubleClick: false,
};

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

export const CHART_MARGIN = { l: 54, r: 14, t: 8, b: 42 };

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
  const axis = {
    ...baseAxis(),
    nticks: Math.min(8, Math.ceil(width / 85)),
    showgrid: false,
    showline: true,
    ticks: "outside",
    ticklen: 4,
    tickformat: ",d",
  };
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

export const bandWords = ({ half_width: half }) =>
  half?.some(Number.isFinite) ? ", 95 % interval" : "";

/** A line of text per interval; empty where it is not known. */
export const intervalTexts = ({ plasticity, half_width: half }) =>
  Array.from(plasticity, (value, i) =>
    Number.isFinite(half?.[i])
      ? `<br>95 % interval: ${showShare(value - half[i])} to ${showShare(value + half[i])}`
      : "",
  );

/** The band of 95 % intervals, one shape per unbroken series of known intervals. */
export function intervalTraces(name, x, { plasticity, half_width: half }, color, alpha = "44") {
  const shape = { x: [], y: [] };
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
  return [
    {
      ...shape,
      name,
      mode: "lines",
      hoverinfo: "skip",
      fill: "toself",
      fillcolor: color + alpha,
      line: { color: color + alpha, width: 1 },
      showlegend: false,
    },
  ];
}

const IMAGE_FONT = "Helvetica, Arial, sans-serif";
const PNG_SCALE = 2;

/**
 * Charts that can be saved, by their id: a function gives the figure, its size, the run, and the
 * end of the file name. Cards add theirs.
 */
export const savedCharts = {};

/**
 * The figure for paper: the light theme, a white background, axis titles, a legend or a bar of
 * colours.
 */
function paperFigure({ figure, size }) {
  const {
    traces: [first, ...rest],
    layout,
    names,
    bar,
    note,
  } = withTheme("light", figure);
  const axis = (of, text, below = "") => ({
    ...of,
    color: "#1d2126",
    linecolor: "#5d6570",
    tickcolor: "#5d6570",
    automargin: true,
    ...(text
      ? { title: { text: plain(text) + (below && `<br><sub>${below}</sub>`), standoff: 8 } }
      : {}),
  });
  return {
    data: [{ ...first, ...(bar ? colourBar(bar) : {}) }, ...rest],
    layout: {
      ...withTheme("light", baseLayout),
      ...layout,
      ...size,
      paper_bgcolor: "#fff",
      plot_bgcolor: "#fff",
      font: { family: IMAGE_FONT, size: 13, color: "#1d2126" },
      margin: { l: 60, r: 18, t: 14, b: 50 },
      showlegend: !bar && rest.some((trace) => trace.name),
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      xaxis: axis(layout.xaxis, names.x, note),
      yaxis: axis(layout.yaxis, names.y),
      ...(layout.yaxis2 ? { yaxis2: axis(layout.yaxis2) } : {}),
    },
  };
}

/** A bar of colours with numbers, or with one name per class. */
function colourBar({ label, classes }) {
  const ticks = classes ? { tickvals: classes.map((_, i) => i), ticktext: classes.map(plain) } : {};
  return {
    showscale: true,
    colorbar: {
      thickness: 12,
      outlinewidth: 0,
      title: { text: plain(label), side: classes ? "top" : "right" },
      ...ticks,
    },
  };
}

/** Draw the chart again for paper, and save it. */
async function saveImage(id, format) {
  const image = savedCharts[id](),
    { data, layout } = paperFigure(image);
  const uri = await Plotly.toImage(
    { data, layout, config: PLOT_CONFIG },
    { format: "svg", ...image.size },
  );
  const svg = decodeURIComponent(uri.slice(uri.indexOf(",") + 1));
  const name = `${image.run ? slug(image.run.label) : "runs"}-${image.name}.${format}`;
  save(
    name,
    format === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await pngOf(svg, image.size),
  );
}

async function pngOf(svg, { width, height }) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await picture.decode();
  const canvas = make("canvas", "", { width: PNG_SCALE * width, height: PNG_SCALE * height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/** Two buttons for a chart. */
export function imageButtons(id, what) {
  const buttons = ["svg", "png"].map((format) => {
    const button = make("button", format.toUpperCase(), {
      type: "button",
      class: "image",
      "data-image": `${id}.${format}`,
      "aria-label": `Download the ${what} as ${format.toUpperCase()}`,
      title: `Download the ${what} as ${format.toUpperCase()}`,
    });
    button.addEventListener("click", () => saveImage(id, format));
    return button;
  });
  return make("span", "", { class: "images" }, buttons);
}

export function save(name, content) {
  const url = URL.createObjectURL(content);
  make("a", "", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The name of a run as part of a file name. */
export const slug = (label) => label.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^-+|-+$/g, "");
