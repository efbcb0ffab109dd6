// Charts of the selected head, and of the mean of every run.

const PLOT_CONFIG = { displayModeBar: false, responsive: false, showTips: false, doubleClick: false };
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

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

/** Draw a chart. CSS shows the axis titles, because Plotly would measure every label for them. */
function draw(id, traces, layout, names) {
  const element = byId(id);
  Object.assign(element.dataset, names);
  return Plotly.react(element, traces, { ...baseLayout(), ...sizeOf(element), ...layout }, PLOT_CONFIG);
}

/** The x positions of buckets: mean positions, else starts or numbers. */
function positionsOf(run, rows) {
  if (rows.q_position) return Array.from(rows.q_position);
  const { bucket, start } = run.tables.buckets.columns;
  return Array.from(rows.q_bucket, (number) => start[bucket.indexOf(number)]);
}

function positionAxis(runs, id) {
  const log = runs.some((run) => run.log);
  const axis = { ...baseAxis(), nticks: Math.min(8, Math.ceil(sizeOf(byId(id)).width / 85)), showgrid: false, showline: true, ticks: "outside", ticklen: 4 };
  return log ? { ...axis, type: "log", dtick: Math.log10(runs[0].tables.mean.rows > 8 ? 4 : 2), tickformat: ",d" } : { ...axis, rangemode: "tozero", tickformat: ",d" };
}

const positionName = (runs) => (runs.every((run) => run.unit === "tokens") ? "query position (tokens)" : "query bucket");

const plasticityAxis = () => ({
  ...baseAxis(), range: [-0.02, 1.04], tickvals: [0, 0.25, 0.5, 0.75, 1],
});

function drawProfile(run, other, key) {
  const mean = run.tables.mean.columns;
  const x = positionsOf(run, mean);
  const quartiles = Array.from(mean.low, (low, i) => [low, mean.high[i]]);
  const hidden = { hoverinfo: "skip", mode: "lines", line: { width: 0 } };
  const rows = rowsOfHead(run, "profiles", key);
  const traces = [
    { ...hidden, x, y: Array.from(mean.low) },
    { ...hidden, x, y: Array.from(mean.high), fill: "tonexty", fillcolor: theme.band },
    ...intervalTraces("interval of the mean", x, mean, theme.mean),
    {
      x, y: Array.from(mean.plasticity), mode: "lines", line: { color: theme.mean, width: 2 }, customdata: quartiles,
      text: intervalTexts(mean),
      hovertemplate: "%{y:.3f} mean of heads; middle half: %{customdata[0]:.3f}–%{customdata[1]:.3f}%{text}<extra></extra>",
    },
    ...(rows ? intervalTraces("interval of the head", positionsOf(run, rows), rows, theme.one) : []),
  ];
  if (other) traces.push(headTrace(other, key, theme.two, "dash", ` ${plain(other.label)}`));
  traces.push(headTrace(run, key, theme.one, "solid", " this head"));
  showProfileKeys(run, other, key);
  byId("profile").setAttribute("aria-label", profileWords(run, key));
  return draw("profile", traces, {
    margin: { l: 48, r: 14, t: 8, b: 42 }, hovermode: "x unified", hoverdistance: -1, xaxis: positionAxis([run], "profile"), yaxis: plasticityAxis(),
  }, { x: positionName([run]), y: "plasticity" });
}

function headTrace(run, key, color, dash, name) {
  const rows = rowsOfHead(run, "profiles", key);
  if (!rows) return { x: [], y: [], hoverinfo: "skip" };
  return {
    x: positionsOf(run, rows), y: rows.plasticity, mode: "lines+markers", connectgaps: false,
    line: { color, width: 2.5, dash }, marker: { color, size: 5.5 },
    text: intervalTexts(rows), hovertemplate: `<b>%{y:.3f}</b>${name}%{text}<extra></extra>`,
  };
}

/** A line of text per interval; empty where it is not known. */
const intervalTexts = ({ plasticity, half_width: half }) => Array.from(plasticity, (value, i) =>
  (Number.isFinite(half?.[i]) ? `<br>95 % interval: ${showIn("ap_", value - half[i])} to ${showIn("ap_", value + half[i])}` : ""));

/** The band of 95 % intervals, one shape per unbroken series of known intervals. */
function intervalTraces(name, x, { plasticity, half_width: half }, color, alpha = "44") {
  const shape = { x: [], y: [] };
  let start = 0;
  for (let i = 0; i <= x.length; i++) {
    if (Number.isFinite(half?.[i]) && i < x.length) continue;
    const there = Array.from({ length: i - start }, (_, step) => start + step), back = [...there].reverse();
    if (there.length) {
      shape.x.push(...[...there, ...back, start].map((j) => x[j]), null);
      shape.y.push(...there.map((j) => plasticity[j] + half[j]), ...back.map((j) => plasticity[j] - half[j]), plasticity[start] + half[start], null);
    }
    start = i + 1;
  }
  if (!shape.x.length) return [];
  return [{ ...shape, name, mode: "lines", hoverinfo: "skip", fill: "toself", fillcolor: color + alpha, line: { color: color + alpha, width: 1 } }];
}

function showProfileKeys(run, other, key) {
  const entry = (colour, text, kind = "") => {
    const line = make("i", "", kind ? { class: kind } : {});
    line.style[kind === "band" ? "background" : "borderColor"] = colour;
    return make("span", "", {}, [line, text]);
  };
  const mine = rowsOfHead(run, "profiles", key)?.half_width?.some(Number.isFinite);
  const ofMean = run.tables.mean.columns.half_width?.some(Number.isFinite);
  const withBand = (colour, text, known) => {
    const made = entry(colour, text + (known ? ", 95 % interval" : ""));
    if (known) made.firstChild.style.boxShadow = `0 -4px ${colour}44, 0 4px ${colour}44`;
    return made;
  };
  byId("profile-note").textContent = mine || ofMean ? "values corrected for bias; intervals over texts" : "";
  const entries = [withBand(theme.one, "this head", mine)];
  if (other) {
    const captured = other.ranges.profiles.has(key);
    entries.push(entry(theme.two, captured ? `same head, ${other.label}` : `${other.label}: not captured`, "dashed"));
  }
  entries.push(withBand(theme.mean, "mean of heads", ofMean), entry(theme.band, "middle half of heads", "band"));
  byId("profile-keys").replaceChildren(...entries);
}

function profileWords(run, key) {
  const known = (rowsOfHead(run, "profiles", key)?.plasticity ?? []).filter(Number.isFinite);
  if (!known.length) return "Profile of this head: no values";
  return `Profile of this head: plasticity from ${show(known[0])} at the start to ${show(known.at(-1))} at the end of the context`;
}

function drawCells(run, key) {
  const { bucket, start, end } = run.tables.buckets.columns;
  const place = new Map(Array.from(bucket, (number, i) => [number, i]));
  const size = bucket.length;
  const z = Array.from({ length: size }, () => new Array(size).fill(null));
  const text = Array.from({ length: size }, () => new Array(size).fill(""));
  const rows = rowsOfHead(run, "cells", key);
  const span = (i) => (end ? `${whole(start[i])}–${whole(end[i])}` : `${run.unit === "tokens" ? "around " : "bucket "}${whole(start[i])}`);
  for (let i = 0; i < (rows?.plasticity.length ?? 0); i++) {
    const q = place.get(rows.q_bucket[i]), k = place.get(rows.k_bucket[i]);
    const value = rows.plasticity[i] - (rows.plasticity_bias?.[i] || 0);
    z[k][q] = Number.isFinite(value) ? value : null;
    const counted = Number.isFinite(rows.plasticity_counted?.[i]) ? `<br>counted: ${showIn("ap_", rows.plasticity_counted[i])}` : "";
    const pairs = rows.n_pairs ? `<br>${plural(rows.n_pairs[i], "pair")} of keys` : "";
    text[k][q] = `<b>${withError(showIn("ap_", value), rows.plasticity_se?.[i])}</b> plasticity<br>queries ${span(q)}<br>keys ${span(k)}${pairs}${counted}`;
  }
  const trace = {
    type: "heatmap", z, text, hoverinfo: "text", hoverongaps: false, colorscale: stopsOf(VIRIDIS), zmin: 0, zmax: 1, xgap: 1, ygap: 1, showscale: false,
  };
  byId("cells").setAttribute("aria-label", "Plasticity of this head by query bucket and key bucket");
  return draw("cells", [trace], {
    margin: { l: 70, r: 8, t: 6, b: 42 },
    xaxis: bucketAxis("query", run, start), yaxis: bucketAxis("key", run, start),
  }, { x: `query ${run.unit === "tokens" ? "position" : "bucket"}`, y: `key ${run.unit === "tokens" ? "position" : "bucket"}` });
}

/** Ticks at the starts of buckets if known, else at their middles. */
function bucketAxis(kind, run, start) {
  const exact = Boolean(run.tables.buckets.columns.end);
  const step = tickStep(start.length, kind === "query" ? 4 : 6);
  const places = Array.from(start.keys()).filter((i) => i % step === 0);
  return {
    ...baseAxis(), showgrid: false, range: [-0.5, start.length - 0.5],
    showline: true, mirror: true, ticks: exact ? "outside" : "", ticklen: 4,
    tickvals: places.map((i) => (exact ? i - 0.5 : i)), ticktext: places.map((i) => whole(start[i])),
  };
}

/** All bars are one outline, which is faster than one shape per dimension. */
function drawComponents(run, key) {
  byId("components-figure").hidden = !run.tables.components;
  if (!run.tables.components) return Promise.resolve();
  const { component = [], weight = [], r2 } = rowsOfHead(run, "components", key) ?? {};
  const most = weight.indexOf(Math.max(...weight));
  const half = component.length > 90 ? 0.5 : 0.4;
  const trace = {
    x: component.flatMap((number) => [number - half, number - half, number + half, number + half]),
    y: weight.flatMap((value) => [0, value, value, 0]),
    customdata: component.flatMap((number, i) => new Array(4).fill([number, weight[i], r2?.[i]])),
    mode: "lines", line: { width: 0 }, fill: "tozeroy", fillcolor: theme.one,
    hovertemplate: `<b>%{customdata[1]:.3f}</b> of positional information<br>dimension %{customdata[0]}${r2 ? "<br>R² of position %{customdata[2]:.3f}" : ""}<extra></extra>`,
  };
  byId("components").setAttribute("aria-label", most < 0 ? "No component weights" : `Component weights; the largest, ${show(weight[most])}, is dimension ${component[most]}`);
  return draw("components", [trace], {
    margin: { l: 58, r: 6, t: 6, b: 42 }, hovermode: "x", hoverdistance: -1,
    xaxis: { ...baseAxis(), showgrid: false, showline: true, ticks: "outside", ticklen: 4, nticks: 6, range: [-1, Math.max(1, ...component) + 1] },
    yaxis: { ...baseAxis(), range: [0, 1.05 * Math.max(weight[most] ?? 0, 1e-6)], nticks: 5 },
  }, { x: "dimension", y: "weight" });
}

function drawRuns(runs) {
  const bands = [], lines = [];
  runs.forEach((run, i) => {
    const mean = run.tables.mean.columns, x = positionsOf(run, mean), color = colourOfRun(i);
    bands.push(...intervalTraces("interval", x, mean, color, "2e"));
    lines.push({
      x, y: Array.from(mean.plasticity), mode: "lines+markers", marker: { size: 5 }, text: intervalTexts(mean),
      line: { color, width: 2.5 }, hovertemplate: `<b>%{y:.3f}</b> ${plain(run.label)}%{text}<extra></extra>`,
    });
  });
  return draw("runs-chart", [...bands, ...lines], {
    margin: { l: 48, r: 14, t: 8, b: 42 }, hovermode: "closest", xaxis: positionAxis(runs, "runs-chart"), yaxis: plasticityAxis(),
  }, { x: positionName(runs), y: "plasticity" });
}

/** The selected run and the compared run have fixed colours. */
function colourOfRun(number) {
  if (number === state.run) return theme.one;
  if (number === state.beside) return theme.two;
  return theme.runs[number % theme.runs.length];
}
