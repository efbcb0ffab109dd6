// Maps of layer × head, one per shown run. A click or an arrow key selects a head.

const MAP_MARGIN = { l: 36, r: 12, t: 3, b: 36 };
const MAP_ROW = 20, MAP_MIN = 130, MAP_MAX = 400;

/** The layers on the maps, one row each: those with heads in a shown run. Both maps have the same rows. */
const mapLayers = () => [...new Set(mapRuns().flatMap((run) => Object.keys(run.layer_types).map(Number)))].sort((a, b) => a - b);

/** The rows of a map above which layers are left out. */
const breaksOf = (layers) => layers.flatMap((layer, row) => (row && layer > layers[row - 1] + 1 ? [row] : []));

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
  plot.style.height = `${height}px`;
  sizes.set(plot, { width, height });
  const { traces, layout, names } = mapFigure(run, metric, scale, { width, height });
  Object.assign(plot.dataset, names);
  plot.setAttribute("aria-label", `${wordsOf(metric).label} by layer and head, ${run.label}; arrow keys move`);
  return Plotly.react(plot, traces, { ...baseLayout(), width, height, ...layout }, PLOT_CONFIG);
}

function mapFigure(run, metric, scale, size) {
  const heads = run.grid[1], layers = mapLayers();
  const cell = Math.min(...Object.values(cellSize(size, run)));
  const trace = {
    ...mapValues(run, metric, scale), type: "heatmap", hoverinfo: "text", hoverongaps: true, showscale: false,
    colorscale: scale.stops ?? stopsOf(scale.colours), zmin: scale.low, zmax: scale.high, xgap: cell > 7 ? 1 : 0, ygap: cell > 7 ? 1 : 0,
  };
  const axis = { ...baseAxis(), showgrid: false, showline: true, mirror: true, ticks: "" };
  return {
    traces: [trace, ...fadeTraces(run)], bar: { label: wordsOf(metric).label, classes: scale.classes }, names: { x: "head", y: "layer" }, note: typeNote(run, size.width),
    layout: {
      margin: MAP_MARGIN, shapes: [...typeShapes(run, layers), ...breakShapes(layers)],
      xaxis: { ...axis, range: [-0.5, heads - 0.5], dtick: tickStep(heads, size.width / 34) },
      yaxis: { ...axis, range: [layers.length - 0.5, -0.5], ...layerTicks(layers, size.height / 26) },
    },
  };
}

/** Numbers of layers beside their rows: round numbers if no layer is left out. */
function layerTicks(layers, limit) {
  const step = tickStep(layers.length, limit), whole = !breaksOf(layers).length;
  const rows = [...layers.keys()].filter((row) => (whole ? layers[row] : row) % step === 0);
  return { tickvals: rows, ticktext: rows.map((row) => String(layers[row])) };
}

/** Dashed lines where layers are left out. */
function breakShapes(layers) {
  const line = (row, style) => ({ name: "break", type: "line", xref: "paper", x0: 0, x1: 1, y0: row - 0.5, y1: row - 0.5, line: style });
  return breaksOf(layers).flatMap((row) => [line(row, { color: theme.panel, width: 3 }), line(row, { color: theme.quiet, width: 1.5, dash: "5px,3px" })]);
}

/** The left-out layers in words; empty if there is none. */
function breakWords(layers) {
  const breaks = breaksOf(layers);
  if (!breaks.length) return "";
  const ranges = breaks.map((row) => [layers[row - 1] + 1, layers[row] - 1].filter((layer, i, both) => !i || layer > both[0]).join("-")).join(",");
  const named = ranges.length > 40 ? "some layers" : layersWords(ranges);
  return `dashed line${breaks.length > 1 ? "s" : ""}: ${named} left out`;
}

/** A veil over heads with wide intervals and over heads of other layers than the chosen ones. */
function fadeTraces(run) {
  const z = mapLayers().map((layer) =>
    Array.from({ length: run.grid[1] }, (_, head) => (isVeiled(run, keyOf(layer, head)) ? 1 : null)));
  if (!z.some((row) => row.includes(1))) return [];
  return [{
    type: "heatmap", name: "faded", z, zmin: 0, zmax: 1, colorscale: [[0, theme.panel], [1, theme.panel]],
    opacity: state.metric === ROLE ? 0.6 : 0.75, showscale: false, hoverinfo: "skip",
  }];
}

const isVeiled = (run, key) => run.rowOf.has(key) && (isFaded(run, key) || !inLayers(run, key));

function mapValues(run, metric, scale) {
  const heads = run.grid[1];
  const label = wordsOf(metric).label;
  const z = [], text = [];
  for (const layer of mapLayers()) {
    const values = [], texts = [];
    for (let head = 0; head < heads; head++) {
      const key = keyOf(layer, head);
      const known = run.rowOf.has(key);
      const value = scale.classes && known ? scale.classes.indexOf(classOf(run, key, metric)) : metricOf(run, key, metric);
      values.push(Number.isFinite(value) && !(scale.classes && value < 0) ? value : null);
      const type = known && hasTypes(run) ? ` · ${plain(typeWords(run, typeOf(run, key)))}` : "";
      texts.push(`layer ${layer}, head ${head}${type}<br>` + (known ? mapText(run, key, metric, label) : absentWords(run, layer)));
    }
    z.push(values);
    text.push(texts);
  }
  return { z, text };
}

/** The class of a head on a map of classes; undefined if it has none. */
const classOf = (run, key, metric) => (metric === ROLE ? roleOf(run, key)?.likely : windowWords(run, key));

function mapText(run, key, metric, label) {
  const reason = reasonOf(run, key, metric);
  return `<b>${showHeadValue(run, key, metric)}</b> ${plain(label)}${reason ? `<br>missing: ${plain(reason)}` : ""}`;
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
function moveByKey(event, run, onSelect, place) {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const layers = mapLayers();
  let row = layers.indexOf(state.layer), { head } = state;
  do {
    row += step[0];
    head += step[1];
    if (row < 0 || head < 0 || row >= layers.length || head >= run.grid[1]) return;
  } while (!run.rowOf.has(keyOf(layers[row], head)));
  onSelect(keyOf(layers[row], head), place);
}

/** A round step that gives at most `limit` ticks. */
function tickStep(count, limit) {
  return [1, 2, 4, 5, 8, 10, 20, 25, 50, 100].find((step) => count / step <= limit) ?? 200;
}

/** Whether a cell of a map has no colour. */
const hasBlanks = (shown) => shown.some((run) => mapLayers().some((layer) => Array.from({ length: run.grid[1] }, (_, head) => keyOf(layer, head))
  .some((key) => !run.rowOf.has(key) || !hasValue(run, key))));

/** Whether a head has a value of the metric of the map. */
function hasValue(run, key) {
  if (state.metric === ROLE) return roleOf(run, key) !== null;
  return state.metric === "sliding_window" || Number.isFinite(metricOf(run, key, state.metric));
}

/** The legend of the colours: a bar with its ends, one value, or a list of classes. */
function showLegend(scale, shown) {
  const swatch = (background, kind) => {
    const made = make("i", "", { class: kind });
    made.style.background = background;
    return made;
  };
  const entry = (text, colour, kind = "swatch") => make("span", "", { class: "class" }, [swatch(colour, kind), text]);
  const unsure = (scale.unsure ?? []).map((text) => entry(text, theme.quiet, "swatch unsure"));
  if (scale.classes) byId("legend-colours").replaceChildren(...scale.legend.map((text, i) => entry(text, scale.colours[i])), ...unsure);
  else if (scale.single) byId("legend-colours").replaceChildren(entry(show(scale.low), scale.colours[0]));
  else byId("legend-colours").replaceChildren(show(scale.low), swatch(gradient(scale.colours), "bar"), show(scale.high));
  byId("cells-bar").style.background = gradient(VIRIDIS);
  const reasons = [...(shown.some((run) => run.selected) ? ["not selected"] : []), "not captured", ...(state.metric === ROLE ? ["no role"] : scale.classes ? [] : ["no value"])];
  const blank = hasBlanks(shown) ? `blank: ${reasons.slice(0, -1).join(", ")}${reasons.length > 1 ? ", or " : ""}${reasons.at(-1)}` : "";
  byId("legend-note").textContent = [breakWords(mapLayers()), blank].filter(Boolean).join("; ");
}
