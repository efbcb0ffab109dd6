// What all charts share, and the charts of cells and of components of the selected head.

const PLOT_CONFIG = { displayModeBar: false, responsive: false, showTips: false, doubleClick: false };
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const CHART_MARGIN = { l: 54, r: 14, t: 8, b: 42 };

function baseLayout() {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false, autosize: false,
    font: { family: FONT, size: 11.5, color: theme.quiet },
    hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line, align: "left", font: { family: FONT, size: 12.5, color: theme.ink } },
  };
}

function baseAxis() {
  return {
    fixedrange: true, zeroline: false, gridcolor: theme.faint, linecolor: theme.line, tickcolor: theme.line,
    automargin: false, tickangle: 0, separatethousands: true, ticklabeloverflow: "allow",
  };
}

/** Sizes of chart elements. They are measured once per page layout, because measuring is slow. */
const sizes = new Map();

function sizeOf(element) {
  if (!sizes.has(element)) sizes.set(element, { width: element.clientWidth, height: element.clientHeight });
  return sizes.get(element);
}

const LOWEST_CHART = 190, USUAL_TABLE = 190, LOWEST_TABLE = 110;
const fitted = { top: NaN };

/** Whether texts above the charts have other lines than before. */
const chartsMoved = () => byId("profile").offsetTop !== fitted.top;

/** The y position where the column at the left ends if its table has its usual height. */
function leftColumnEnd() {
  const table = byId("heads"), panel = table.closest(".panel");
  return panel.getBoundingClientRect().bottom + scrollY - table.offsetHeight + USUAL_TABLE;
}

/**
 * Heights of the charts of the selected head. On a wide screen, the lower edge of the first screen
 * cuts none of them: all end above it, or the profile ends there and the others begin below it. The
 * second way is for low screens, and for a column at the left that would leave an empty space here
 * also with a lower table.
 */
function fitCharts() {
  const wide = matchMedia("(min-width: 1081px)").matches, profile = byId("profile"), square = byId("cells");
  const box = profile.getBoundingClientRect(), between = square.getBoundingClientRect().top - box.bottom;
  const room = innerHeight - (box.top + scrollY) - 6, usual = Math.max(LOWEST_CHART, Math.min(290, 0.27 * innerHeight));
  let heights = [usual, 270], table = USUAL_TABLE;
  fitted.top = profile.offsetTop;
  for (const chart of [profile, square, byId("components")]) sizes.delete(chart);
  if (wide) {
    const pair = square.closest(".pair").getBoundingClientRect(), top = box.top + scrollY;
    const below = between + pair.bottom - square.getBoundingClientRect().bottom + 12;
    const left = leftColumnEnd() - top - below, largest = Math.min(square.clientWidth, 420); // left: height of both charts
    heights = [usual, Math.min(room - usual - between, largest)];
    heights[0] += Math.max(0, Math.min(left, room - between) - heights[0] - heights[1]); // what is left of the first screen
    table -= Math.max(0, left - heights[0] - heights[1]);
    if (room < usual + between + LOWEST_CHART || table < LOWEST_TABLE) {
      const profile = Math.max(LOWEST_CHART, room);
      heights = [profile, Math.max(270, Math.min(left - profile, largest))];
      table = USUAL_TABLE;
    }
  }
  const values = { "--profile": heights[0], "--square": heights[1], "--table": table };
  for (const [name, value] of Object.entries(values)) document.documentElement.style.setProperty(name, `${Math.floor(value)}px`);
}

/** Draw a figure. CSS shows the axis titles, because Plotly would measure every label for them. */
function draw(id, { traces, layout, names }) {
  const element = byId(id);
  Object.assign(element.dataset, names);
  return Plotly.react(element, traces, { ...baseLayout(), ...sizeOf(element), ...layout }, PLOT_CONFIG);
}

function drawCells(run, key) {
  const part = partWord(run);
  byId("cells").setAttribute("aria-label", `${capital(cellsWords(run))} of this head by query ${part} and key ${part}`);
  byId("cells-note").textContent = `${cellsWords(run)} per query ${part} and key ${part}; blank: keys after the query or outside the window, ${run.at_one_position ? `no key pairs, or fewer than ${page.fewest_texts} texts` : "or no key pairs"}${firstIsEmpty(run) ? `; the first ${part} has no earlier ${part} of keys` : ""}`;
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
  const rows = rowsOfHead(run, "cells", key), profile = rowsOfHead(run, "profiles", key);
  const factor = new Map(profile?.half_widths_per_error?.map((number, i) => [profile.q_bucket[i], number]));
  const span = (i) => (end ? `${whole(start[i])}–${whole(end[i])}` : `${run.unit === "tokens" ? "around " : "bucket "}${whole(start[i])}`);
  for (let i = 0; i < (rows?.plasticity.length ?? 0); i++) {
    const q = place.get(rows.q_bucket[i]), k = place.get(rows.k_bucket[i]);
    const value = rows.plasticity[i], half = rows.plasticity_se?.[i] * factor.get(rows.q_bucket[i]);
    z[k][q] = Number.isFinite(value) ? value : null;
    const pairs = rows.n_pairs ? `<br>${plural(rows.n_pairs[i], "pair")} of keys` : "";
    const pooled = Number.isFinite(rows.pooled?.[i]) ? `<br>over a bin: ${showShare(rows.pooled[i])}` : "";
    text[k][q] = `<b>${withHalf(showShare(value), half)}</b> ${cellsWords(run)}${pooled}<br>queries ${span(q)}<br>keys ${span(k)}${pairs}`;
  }
  const trace = {
    type: "heatmap", z, text, hoverinfo: "text", hoverongaps: false, colorscale: stopsOf(VIRIDIS), zmin: 0, zmax: 1, xgap: 1, ygap: 1, showscale: false,
  };
  const unit = run.unit === "tokens" ? "position (tokens)" : "bucket";
  return {
    traces: [trace], bar: { label: cellsWords(run) }, names: { x: `query ${unit}`, y: `key ${unit}` },
    layout: { margin: { l: 70, r: 24, t: 9, b: 42 }, xaxis: bucketAxis("query", run, start), yaxis: bucketAxis("key", run, start) },
  };
}

/** Ticks at the starts of buckets and the end of the last one if known, else at their middles. */
function bucketAxis(kind, run, start) {
  const { end } = run.tables.places.columns, exact = Boolean(end);
  const step = tickStep(start.length, kind === "query" ? 4 : 6);
  const places = Array.from(start.keys()).filter((i) => i % step === 0 && !(exact && i && start.length - i < 0.6 * step));
  const last = exact ? [{ place: start.length - 0.5, text: whole(end.at(-1) + 1) }] : [];
  const ticks = [...places.map((i) => ({ place: exact ? i - 0.5 : i, text: whole(start[i]) })), ...last];
  return {
    ...baseAxis(), showgrid: false, range: [-0.5, start.length - 0.5],
    showline: true, mirror: true, ticks: exact ? "outside" : "", ticklen: 4,
    tickvals: ticks.map(({ place }) => place), ticktext: ticks.map(({ text }) => text),
  };
}

function drawComponents(run, key) {
  byId("components-figure").hidden = !run.tables.components;
  if (!run.tables.components) return Promise.resolve();
  const { component = [], weight = [] } = rowsOfHead(run, "components", key) ?? {};
  const most = weight.indexOf(Math.max(...weight));
  byId("components").setAttribute("aria-label", most < 0 ? "No component weights" : `Component weights; the largest, ${show(weight[most])}, is dimension ${component[most]}`);
  return draw("components", componentsFigure(run, key));
}

/** All bars are one outline, which is faster than one shape per dimension. */
function componentsFigure(run, key) {
  const { component = [], weight = [], r2 } = rowsOfHead(run, "components", key) ?? {};
  const half = component.length > 90 ? 0.5 : 0.4;
  const trace = {
    x: component.flatMap((number) => [number - half, number - half, number + half, number + half]),
    y: weight.flatMap((value) => [0, value, value, 0]),
    customdata: component.flatMap((number, i) => new Array(4).fill([number, weight[i], r2?.[i]])),
    mode: "lines", line: { width: 0 }, fill: "tozeroy", fillcolor: theme.one,
    hovertemplate: `<b>%{customdata[1]:.3f}</b> of the linear position R²<br>dimension %{customdata[0]}${r2 ? "<br>R² of position %{customdata[2]:.3f}" : ""}<extra></extra>`,
  };
  return {
    traces: [trace], names: { x: "dimension", y: "share of position R²" },
    layout: {
      margin: { l: 58, r: 6, t: 6, b: 42 }, hovermode: "x", hoverdistance: -1,
      xaxis: { ...baseAxis(), showgrid: false, showline: true, ticks: "outside", ticklen: 4, nticks: 6, range: [-1, Math.max(1, ...component) + 1] },
      yaxis: { ...baseAxis(), range: [0, 1.05 * Math.max(...weight, 1e-6)], nticks: 5 },
    },
  };
}
