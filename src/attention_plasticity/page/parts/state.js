// The state of the page: its runs, the selection, and what of it is compared.

import { byId, plural, whole } from "./words.js";
import { keyOf } from "./data.js";

export const page = JSON.parse(byId("page-data").textContent);
export const state = {
  runs: [],
  run: 0,
  beside: null,
  layer: 0,
  head: 0,
  metric: "",
  sure: null,
  queries: null,
  layers: null,
  allColumns: false,
  chosen: false,
};

/**
 * Cards call `redraw.all()` or `redraw.head()` after they changed the state, and
 * `redraw.run(number)` for another run; page.js says how.
 */
export const redraw = { all: () => {}, head: () => {}, run: () => {} };

export const runShown = () => state.runs[state.run];

export const otherRun = () => (state.beside === null ? null : state.runs[state.beside]);

export const runsShown = () => [runShown(), otherRun()].filter(Boolean);

/** The compared run if its heads correspond to those of the shown run, else null. */
export const headsBeside = () =>
  otherRun() && sameArchitecture(runShown(), otherRun()) ? otherRun() : null;

export const mapRuns = () => [runShown(), headsBeside()].filter(Boolean);

export const selectedKey = () => keyOf(state.layer, state.head);

/** The columns and words of the plasticity that all these runs have. */
export const kindOf = (...shown) =>
  shown.every((run) => run.at_one_position) ? page.kinds.position : page.kinds.bucket;

export const shownKind = () => kindOf(...runsShown());

/**
 * Whether a metric is the drop over the context or one of its parts, which exist for RoPE-aligned
 * plasticity only.
 */
export const isDrop = (metric) =>
  metric === page.kinds.position.drop || page.kinds.position.parts.includes(metric);

/**
 * The drop that says something about position: that at equal distances, or the whole drop if a run
 * does not have it.
 */
export const mainDrop = (run) => {
  const { drop, parts } = shownKind();
  return run.tables.heads.columns[parts[0]]?.some(Number.isFinite) ? parts[0] : drop;
};

/**
 * What a part of the positions is called: bins are those of the analysis, buckets those of the
 * capture.
 */
export const partWord = (run) => (run.at_one_position ? "bin" : "bucket");

/** What the profiles and cells of a run show. */
export const cellsWords = (run) => kindOf(run).name;

/**
 * Why a run shows plasticity over a bucket, as a list of at most one sentence. It is empty if a
 * warning of the run has the reason.
 */
export function overBucketsNote(run) {
  if (run.at_one_position || run.warnings.some((text) => text.includes(run.why_over_buckets)))
    return [];
  return [`RoPE-aligned plasticity is not known: ${run.why_over_buckets}.`];
}

/** A sentence that names the runs over a bucket beside runs with RoPE-aligned plasticity. */
export function mixedWords(shown) {
  const over = shown.filter((run) => !run.at_one_position);
  if (!over.length || over.length === shown.length) return "";
  return (
    ". Plasticity over a bucket is compared, because " +
    `${over.map((run) => run.label).join(", ")} ${over.length > 1 ? "have" : "has"} no ` +
    "RoPE-aligned plasticity; profiles show what each run has"
  );
}

export const gridWords = ({ grid }) => `${grid[0]} layers × ${grid[1]} heads`;

/**
 * The first difference between the architectures of two runs, as text; empty if their heads
 * correspond. Layers of one run alone are not compared, nor is what a run does not record.
 */
export function architectureDifference(run, other) {
  if (gridWords(run) !== gridWords(other))
    return `${run.label} has ${gridWords(run)} and ${other.label} ${gridWords(other)}`;
  const differ = (a, b) => a != null && b != null && a !== b;
  if (differ(run.key_heads, other.key_heads))
    return (
      `${run.label} has ${plural(run.key_heads, "key head")} per layer and ${other.label} ` +
      `${whole(other.key_heads)}`
    );
  const layers = Object.keys(run.layer_types).filter((layer) => layer in other.layer_types);
  if (!layers.length) return `${run.label} and ${other.label} have no layer in common`;
  const wide = layers.find((layer) => differ(run.head_dims[layer], other.head_dims[layer]));
  if (wide !== undefined)
    return (
      `heads of layer ${wide} have ${plural(run.head_dims[wide], "dimension")} in ` +
      `${run.label} and ${whole(other.head_dims[wide])} in ${other.label}`
    );
  // the types of one run are not recorded
  if (run.has_layer_type !== other.has_layer_type) return "";
  const layer = layers.find((number) => run.layer_types[number] !== other.layer_types[number]);
  if (layer === undefined) return "";
  return (
    `layer ${layer} has the type ${typeWords(run, run.layer_types[layer])} in ${run.label} ` +
    `and ${typeWords(other, other.layer_types[layer])} in ${other.label}`
  );
}

export const sameArchitecture = (run, other) => architectureDifference(run, other) === "";

export const typeOf = (run, key) => run.layer_types[key.split(".")[0]];

export const typeNamed = (run, name) => run.types.find((type) => type.name === name);

export const typeWords = (run, name) => typeNamed(run, name)?.words ?? name.replaceAll("_", " ");

export const hasTypes = (run) => run.types.length > 1;

/** Whether a head belongs to the chosen layers. */
export const inLayers = (run, key) => state.layers === null || typeOf(run, key) === state.layers;

/**
 * The heads of the chosen layers of a run or a baseline: their number, means and mean profile; null
 * if it has no such layers.
 */
export const groupOf = (run, type = state.layers) =>
  type === null ? run.groups[0] : (typeNamed(run, type) ?? null);

/** The mean profile over the heads of the chosen layers; null if it is not known. */
export const meanProfile = (run) => run.tables[groupOf(run)?.profile]?.columns ?? null;

/** `mean of heads`, or `mean of 12 heads with full attention` if layers are chosen. */
export function meanWords(run) {
  const type = groupOf(run);
  return type?.name ? `mean of ${plural(type.heads, "head")}, ${type.words}` : "mean of heads";
}

/**
 * The number of heads from which the heads of the chosen layers were sampled at random; null if
 * they are fixed.
 */
export const eligibleHeads = (run) => groupOf(run)?.eligible_heads ?? null;

/** `layer 5`, or `layers 0–3, 8`, of the text `0-3,8`. */
export const layersWords = (text) =>
  `${/^\d+$/.test(text) ? "layer" : "layers"} ${text.replaceAll(",", ", ").replaceAll("-", "–")}`;

/** Why a head is not in a run. */
export const absentWords = (run, layer) =>
  run.selected && !(layer in run.layer_types) ? "not selected" : "not captured";
