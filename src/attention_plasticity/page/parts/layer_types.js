// Types of layers: full attention, sliding window and others, and the choice "Layers".

const typeOf = (run, key) => run.layer_types[key.split(".")[0]];
const typeNamed = (run, name) => run.types.find((type) => type.name === name);
const typeWords = (run, name) => typeNamed(run, name)?.words ?? name.replaceAll("_", " ");
const hasTypes = (run) => run.types.length > 1;

/** Whether a head belongs to the chosen layers. */
const inLayers = (run, key) => state.layers === null || typeOf(run, key) === state.layers;

/** The mean profile over the heads of the chosen layers; null if the run has no such layers. */
function meanProfile(run) {
  if (state.layers === null) return run.tables.mean.columns;
  if (!typeNamed(run, state.layers)) return null;
  if (!hasTypes(run)) return run.tables.mean.columns;
  return run.tables[`mean_${run.types.findIndex(({ name }) => name === state.layers)}`]?.columns ?? null;
}

/** `mean of heads`, or `mean of 12 heads with full attention` if layers are chosen. */
function meanWords(run) {
  const type = state.layers === null ? null : typeNamed(run, state.layers);
  return type ? `mean of ${plural(type.heads, "head")}, ${type.words}` : "mean of heads";
}

/** The number of heads from which the heads of the chosen layers were sampled at random; null if they are fixed. */
const eligibleHeads = (run) => (state.layers === null ? run : typeNamed(run, state.layers))?.eligible_heads ?? null;

/** The menu. It is absent if the shown runs have layers of one type only. */
function fillLayers(run, other) {
  const all = new Set([run, other].filter(Boolean).flatMap(({ types }) => types.map(({ name }) => name)));
  byId("layers-label").hidden = all.size < 2;
  const options = run.types.map(({ name, words, layers }) => make("option", words, { value: name, title: layersWords(layers) }));
  byId("layers").replaceChildren(make("option", "all", { value: "" }), ...options);
  byId("layers").value = state.layers ?? "";
}

/** `layer 5`, or `layers 0–3, 8`, of the text `0-3,8`. */
const layersWords = (text) => `${/^\d+$/.test(text) ? "layer" : "layers"} ${text.replaceAll(",", ", ").replaceAll("-", "–")}`;

/** Why a head is not in a run. */
const absentWords = (run, layer) => (run.selected && !(layer in run.layer_types) ? "not selected" : "not captured");

/** The colour of a type other than full attention. Each type has its own, the same in all runs of the page. */
function colourOfType(name) {
  const names = new Set(["sliding_attention", ...runs.flatMap(({ types }) => types.map((type) => type.name))]);
  names.delete("full_attention");
  const place = [...names].indexOf(name);
  return theme.types[place] ?? `hsl(${Math.round(137.5 * (place - theme.types.length)) % 360}, 60%, ${document.documentElement.dataset.theme === "dark" ? 70 : 38}%)`;
}

/** Bars beside the map at the layers without full attention. */
function typeShapes(run, layers) {
  const shapes = [];
  for (const [row, layer] of layers.entries()) {
    const name = run.layer_types[layer], last = shapes.at(-1);
    if (!name || name === "full_attention") continue;
    if (last?.name === name && last.y1 === row - 0.5) last.y1 = row + 0.5;
    else shapes.push({ name, type: "rect", xref: "paper", yref: "y", x0: 1, x1: 1, xsizemode: "pixel", xanchor: 1, y0: row - 0.5, y1: row + 0.5, fillcolor: colourOfType(name), line: { color: theme.panel, width: 1 } });
  }
  return shapes.map((shape) => ({ ...shape, x0: 4, x1: 9 }));
}

/** The legend of the bars of a map that is saved as an image of this width, with tags for Plotly. */
function typeNote(run, width) {
  const marked = run.types.filter(({ name }) => name !== "full_attention"), letters = width / 7;
  let note = "bar at the right:", length = note.length;
  for (const { name, words } of marked) {
    length += words.length + 3;
    note += `${length > letters ? "<br>" : " "}<span style="color:${colourOfType(name)}">■</span> ${plain(words)}`;
    if (length > letters) length = words.length + 3;
  }
  return marked.length ? note : "";
}

function showTypeLegend(shown) {
  const same = new Set(shown.map(({ types }) => JSON.stringify(types.map(({ name, layers }) => [name, layers])))).size === 1;
  const named = same ? shown.slice(0, 1) : shown;
  const marked = named.flatMap((run) => run.types.filter(({ name }) => name !== "full_attention").map((type) => [run, type]));
  byId("type-legend").hidden = !marked.length;
  byId("type-legend").replaceChildren(...marked.map(([run, { name, words, layers }]) => {
    const mark = make("i");
    mark.style.background = colourOfType(name);
    const owner = named.length > 1 ? `${run.label}: ` : "";
    return make("span", "", {}, [mark, `${owner}${words}, ${layersWords(layers)}`]);
  }));
}

/** The window of a head as text: `512`, or the type of its layer if it has no window. */
function windowWords(run, key) {
  const window = metricOf(run, key, "sliding_window");
  return Number.isFinite(window) ? whole(window) : typeWords(run, typeOf(run, key));
}

/** Means of every type for a card: one line per type. */
function typeLines(run, other, metric) {
  if (!hasTypes(run) || state.layers !== null || !metric) return [];
  const lines = run.types.map(({ name, words }) => {
    const value = fillEstimate(make("dd"), showMean(run, metric, name));
    if (other) value.append(make("span", typeNamed(other, name) ? showMean(other, metric, name) : NONE, { class: "other", title: other.label }));
    return make("div", "", { "data-type": name }, [make("dt", words), value]);
  });
  return [make("dl", "", { class: "types" }, lines)];
}
