// Maps of layer × head, one per shown run. A click or an arrow key selects a head.

const MAP_MARGIN = { l: 36, r: 12, t: 3, b: 36 };
const MAP_ROW = 20, MAP_MIN = 130, MAP_MAX = 400;

/** The map ends above the lower edge of the first screen if it can. */
const mapHeight = (layers, top) => Math.min(MAP_MAX, Math.max(220, innerHeight - top - 90), Math.max(MAP_MIN, layers * MAP_ROW)) + MAP_MARGIN.t + MAP_MARGIN.b;

function makeMaps(runs, onSelect) {
  byId("maps").replaceChildren(...runs.map((run, place) => {
    const plot = make("div", "", {
      class: "map-plot", tabindex: "0", role: "application", "aria-roledescription": "map of heads",
    });
    plot.addEventListener("click", (event) => onSelect(headAt(plot, runs[place], event), place));
    plot.addEventListener("keydown", (event) => moveByKey(event, runs[place], onSelect, place));
    if (runs.length === 1) return make("figure", "", { class: "map" }, [plot]);
    const caption = make("figcaption", "", {}, [make("span", run.label, { title: run.label }), imageButtons(`map-${place}`, `map of ${run.label}`)]);
    return make("figure", "", { class: "map" }, [caption, plot]);
  }));
  byId("map-images").replaceChildren(...(runs.length === 1 ? [imageButtons("map-0", "map")] : []));
}

const mapPlots = () => [...document.querySelectorAll(".map-plot")];

function drawMap(plot, run, metric, scale, rows) {
  const width = plot.clientWidth, height = mapHeight(rows, plot.getBoundingClientRect().top + scrollY);
  sizes.set(plot, { width, height });
  const { traces, layout, names } = mapFigure(run, metric, scale, { width, height });
  Object.assign(plot.dataset, names);
  plot.setAttribute("aria-label", `${wordsOf(metric).label} by layer and head, ${run.label}; arrow keys move`);
  return Plotly.react(plot, traces, { ...baseLayout(), width, height, ...layout }, PLOT_CONFIG);
}

function mapFigure(run, metric, scale, size) {
  const [layers, heads] = run.grid;
  const cell = Math.min(...Object.values(cellSize(size, run)));
  const trace = {
    ...mapValues(run, metric, scale), type: "heatmap", hoverinfo: "text", hoverongaps: true, showscale: false,
    colorscale: scale.stops ?? stopsOf(scale.colours), zmin: scale.low, zmax: scale.high, xgap: cell > 7 ? 1 : 0, ygap: cell > 7 ? 1 : 0,
  };
  const axis = { ...baseAxis(), showgrid: false, showline: true, mirror: true, ticks: "" };
  return {
    traces: [trace, ...fadeTraces(run), ...gapTraces(run, cell)], bar: { label: wordsOf(metric).label, classes: scale.classes }, names: { x: "head", y: "layer" }, note: typeNote(run, size.width),
    layout: {
      margin: MAP_MARGIN, shapes: typeShapes(run),
      xaxis: { ...axis, range: [-0.5, heads - 0.5], dtick: tickStep(heads, size.width / 34) },
      yaxis: { ...axis, range: [layers - 0.5, -0.5], dtick: tickStep(layers, size.height / 26) },
    },
  };
}

/** A veil over heads with wide intervals and over heads of other layers than the chosen ones. */
function fadeTraces(run) {
  const [layers, heads] = run.grid;
  const z = Array.from({ length: layers }, (_, layer) =>
    Array.from({ length: heads }, (_, head) => (isVeiled(run, keyOf(layer, head)) ? 1 : null)));
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

const isVeiled = (run, key) => run.rowOf.has(key) && (isFaded(run, key) || !inLayers(run, key));

function mapValues(run, metric, scale) {
  const [layers, heads] = run.grid;
  const label = wordsOf(metric).label;
  const z = [], text = [];
  for (let layer = 0; layer < layers; layer++) {
    const values = [], texts = [];
    for (let head = 0; head < heads; head++) {
      const key = keyOf(layer, head);
      const known = run.rowOf.has(key);
      const value = scale.classes && known ? scale.classes.indexOf(windowWords(run, key)) : metricOf(run, key, metric);
      values.push(Number.isFinite(value) ? value : null);
      const type = known && hasTypes(run) ? ` · ${plain(typeWords(run, typeOf(run, key)))}` : "";
      texts.push(`layer ${layer}, head ${head}${type}<br>` + (known ? mapText(run, key, metric, label) : absentWords(run, layer)));
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
function cellSize({ width, height }, run) {
  const [layers, heads] = run.grid;
  return {
    cellWidth: (width - MAP_MARGIN.l - MAP_MARGIN.r) / heads,
    cellHeight: (height - MAP_MARGIN.t - MAP_MARGIN.b) / layers,
  };
}

function headAt(plot, run, event) {
  const box = plot.getBoundingClientRect();
  const { cellWidth, cellHeight } = cellSize(sizeOf(plot), run);
  const head = Math.floor((event.clientX - box.left - MAP_MARGIN.l) / cellWidth);
  const layer = Math.floor((event.clientY - box.top - MAP_MARGIN.t) / cellHeight);
  return keyOf(layer, head);
}

function markHead(plot, run, layer, head) {
  let mark = plot.querySelector(":scope > .map-mark");
  if (!mark) plot.append((mark = make("div", "", { class: "map-mark" })));
  mark.hidden = !run.rowOf.has(keyOf(layer, head));
  const { cellWidth, cellHeight } = cellSize(sizeOf(plot), run);
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

/** The legend of the colours: a bar with its ends, one value, or a list of classes. */
function showLegend(scale, shown) {
  const swatch = (background, kind) => {
    const made = make("i", "", { class: kind });
    made.style.background = background;
    return made;
  };
  const entry = (text, colour) => make("span", "", { class: "class" }, [swatch(colour, "swatch"), text]);
  if (scale.classes) byId("legend-colours").replaceChildren(...scale.classes.map((text, i) => entry(/\d/.test(text) ? `${text} tokens` : text, scale.colours[i])));
  else if (scale.single) byId("legend-colours").replaceChildren(entry(show(scale.low), scale.colours[0]));
  else byId("legend-colours").replaceChildren(show(scale.low), swatch(gradient(scale.colours), "bar"), show(scale.high));
  byId("cells-bar").style.background = gradient(VIRIDIS);
  const reasons = [...(shown.some((run) => run.selected) ? ["not selected"] : []), "not captured", ...(scale.classes ? [] : ["no value"])];
  byId("legend-note").textContent = `blank: ${reasons.slice(0, -1).join(", ")}${reasons.length > 1 ? ", or " : ""}${reasons.at(-1)}`;
}
