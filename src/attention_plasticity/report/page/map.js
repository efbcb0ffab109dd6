// Maps of layer × head, one per shown run. A click or an arrow key selects a head.

const MAP_MARGIN = { l: 36, r: 3, t: 3, b: 36 };
const MAP_ROW = 20, MAP_MIN = 130, MAP_MAX = 400;

const mapHeight = (layers) => Math.min(MAP_MAX, Math.max(MAP_MIN, layers * MAP_ROW)) + MAP_MARGIN.t + MAP_MARGIN.b;

function makeMaps(runs, onSelect) {
  byId("maps").replaceChildren(...runs.map((run, place) => {
    const plot = make("div", "", {
      class: "map-plot", tabindex: "0", role: "application", "aria-roledescription": "map of heads",
    });
    plot.addEventListener("click", (event) => onSelect(headAt(plot, runs[place], event), place));
    plot.addEventListener("keydown", (event) => moveByKey(event, runs[place], onSelect, place));
    const parts = runs.length > 1 ? [make("figcaption", run.label, { title: run.label }), plot] : [plot];
    return make("figure", "", { class: "map" }, parts);
  }));
}

const mapPlots = () => [...document.querySelectorAll(".map-plot")];

function drawMap(plot, run, metric, scale, rows) {
  const [layers, heads] = run.grid;
  const { z, text } = mapValues(run, metric);
  const width = plot.clientWidth, height = mapHeight(rows);
  sizes.set(plot, { width, height });
  const cell = Math.min(...Object.values(cellSize(plot, run)));
  Object.assign(plot.dataset, { x: "head", y: "layer" });
  plot.setAttribute("aria-label", `${wordsOf(metric).label} by layer and head, ${run.label}; arrow keys move`);
  const trace = {
    type: "heatmap", z, text, hoverinfo: "text", hoverongaps: true, showscale: false,
    colorscale: stopsOf(scale.colours), zmin: scale.low, zmax: scale.high,
    xgap: cell > 7 ? 1 : 0, ygap: cell > 7 ? 1 : 0,
  };
  const axis = { ...baseAxis(), showgrid: false, showline: true, mirror: true, ticks: "" };
  const layout = {
    ...baseLayout(), width, height, margin: MAP_MARGIN,
    xaxis: { ...axis, range: [-0.5, heads - 0.5], dtick: tickStep(heads, width / 34) },
    yaxis: { ...axis, range: [layers - 0.5, -0.5], dtick: tickStep(layers, height / 26) },
  };
  return Plotly.react(plot, [trace, ...fadeTraces(run), ...gapTraces(run, cell)], layout, PLOT_CONFIG);
}

/** A veil over the faded heads. */
function fadeTraces(run) {
  const [layers, heads] = run.grid;
  const z = Array.from({ length: layers }, (_, layer) =>
    Array.from({ length: heads }, (_, head) => (isFaded(run, keyOf(layer, head)) ? 1 : null)));
  if (!z.some((row) => row.includes(1))) return [];
  return [{
    type: "heatmap", name: "faded", z, zmin: 0, zmax: 1, colorscale: [[0, theme.panel], [1, theme.panel]],
    opacity: 0.82, showscale: false, hoverinfo: "skip",
  }];
}

/** Marks of the heads whose Gaussian model differs from the count. */
function gapTraces(run, cell) {
  const marked = [...run.rowOf.keys()].filter((key) => gapIsLarge(run, key)).map((key) => key.split(".").map(Number));
  if (!marked.length) return [];
  return [{
    name: "gap", x: marked.map(([, head]) => head), y: marked.map(([layer]) => layer), mode: "markers", hoverinfo: "skip",
    marker: { symbol: "diamond", size: Math.max(4, Math.min(9, 0.5 * cell)), color: "#fff", line: { color: "#1d2126", width: 1 } },
  }];
}

function mapValues(run, metric) {
  const [layers, heads] = run.grid;
  const label = wordsOf(metric).label;
  const z = [], text = [];
  for (let layer = 0; layer < layers; layer++) {
    const values = [], texts = [];
    for (let head = 0; head < heads; head++) {
      const key = keyOf(layer, head);
      const value = metricOf(run, key, metric);
      const known = run.rowOf.has(key);
      values.push(Number.isFinite(value) ? value : null);
      texts.push(`layer ${layer}, head ${head}<br>` + (known ? mapText(run, key, metric, label) : "not captured"));
    }
    z.push(values);
    text.push(texts);
  }
  return { z, text };
}

function mapText(run, key, metric, label) {
  const gap = gapIsLarge(run, key) ? `<br>${GAP_MARK} ${gapText(run, key)}` : "";
  return `<b>${showHeadValue(run, key, metric)}</b> ${plain(label)}${gap}`;
}

/** Size of a cell in pixels. */
function cellSize(plot, run) {
  const [layers, heads] = run.grid;
  const { width, height } = sizeOf(plot);
  return {
    cellWidth: (width - MAP_MARGIN.l - MAP_MARGIN.r) / heads,
    cellHeight: (height - MAP_MARGIN.t - MAP_MARGIN.b) / layers,
  };
}

function headAt(plot, run, event) {
  const box = plot.getBoundingClientRect();
  const { cellWidth, cellHeight } = cellSize(plot, run);
  const head = Math.floor((event.clientX - box.left - MAP_MARGIN.l) / cellWidth);
  const layer = Math.floor((event.clientY - box.top - MAP_MARGIN.t) / cellHeight);
  return keyOf(layer, head);
}

function markHead(plot, run, layer, head) {
  let mark = plot.querySelector(":scope > .map-mark");
  if (!mark) plot.append((mark = make("div", "", { class: "map-mark" })));
  mark.hidden = !run.rowOf.has(keyOf(layer, head));
  const { cellWidth, cellHeight } = cellSize(plot, run);
  const border = 2;
  mark.style.left = `${MAP_MARGIN.l + head * cellWidth - border}px`;
  mark.style.top = `${MAP_MARGIN.t + layer * cellHeight - border}px`;
  mark.style.width = `${cellWidth + 2 * border}px`;
  mark.style.height = `${cellHeight + 2 * border}px`;
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Select the next captured head in the direction of the arrow key. */
function moveByKey(event, run, onSelect, place) {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  let { layer, head } = state;
  do {
    layer += step[0];
    head += step[1];
    if (layer < 0 || head < 0 || layer >= run.grid[0] || head >= run.grid[1]) return;
  } while (!run.rowOf.has(keyOf(layer, head)));
  onSelect(keyOf(layer, head), place);
}

/** A round step that gives at most `limit` ticks. */
function tickStep(count, limit) {
  return [1, 2, 4, 5, 8, 10, 20, 25, 50, 100].find((step) => count / step <= limit) ?? 200;
}

function showLegend(scale, metric) {
  byId("legend-low").textContent = show(scale.low);
  byId("legend-high").textContent = show(scale.high);
  byId("legend-bar").style.background = gradient(scale.colours);
  byId("cells-bar").style.background = gradient(VIRIDIS);
  byId("legend-note").textContent = "blank: not captured, or no value";
}
