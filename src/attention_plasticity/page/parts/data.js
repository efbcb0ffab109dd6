// Data of the page: compressed blocks to typed arrays, and rows of a head.

const ARRAYS = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** A compressed block of the page as a Response. The block is removed from the document. */
function inflated(id) {
  const element = document.getElementById(id);
  const stream = new Blob([bytesOf(element.textContent)]).stream();
  element.remove();
  return new Response(stream.pipeThrough(new DecompressionStream("gzip")));
}

function openTable({ rows, columns }, buffer) {
  const arrays = {};
  for (const [name, kind, offset] of columns) arrays[name] = new ARRAYS[kind](buffer, offset, rows);
  return { rows, names: columns.map(([name]) => name), columns: arrays };
}

const keyOf = (layer, head) => `${layer}.${head}`;

/** For a table sorted by head: map from the key of a head to [first row, end row). */
function rangesOf({ rows, columns }) {
  const found = new Map();
  const { layer, q_head: head } = columns;
  for (let start = 0; start < rows; ) {
    let end = start + 1;
    while (end < rows && layer[end] === layer[start] && head[end] === head[start]) end++;
    found.set(keyOf(layer[start], head[start]), [start, end]);
    start = end;
  }
  return found;
}

async function openRun(about, number) {
  const buffer = await inflated(`run-${number}`).arrayBuffer();
  const tables = {};
  for (const [name, header] of Object.entries(about.tables)) tables[name] = openTable(header, buffer);
  const ranges = {};
  for (const name of ["cells", "profiles", "components", "attention", "roles", "words", "bands", "drift"]) {
    ranges[name] = tables[name] ? rangesOf(tables[name]) : new Map();
  }
  const { layer, q_head: head } = tables.heads.columns;
  const rowOf = new Map();
  for (let row = 0; row < tables.heads.rows; row++) rowOf.set(keyOf(layer[row], head[row]), row);
  const baselines = openBaselines(about.baselines, tables);
  const texts = tables.texts ? JSON.parse(new TextDecoder().decode(tables.texts.columns.utf8)) : []; // tokens, and a sentence per head
  return { ...about, number, tables, texts, baselines, ranges, rowOf, spreads: new Map() };
}

/** Rows of a head in a table of the run, as arrays by column; null if there are none. */
function rowsOfHead(run, table, key) {
  const range = run.ranges[table].get(key);
  if (!range) return null;
  const found = {};
  for (const name of run.tables[table].names) {
    found[name] = Array.from(run.tables[table].columns[name].subarray(...range));
  }
  return found;
}

/** A metric of a head; NaN if it is missing. */
function metricOf(run, key, metric) {
  const row = run.rowOf.get(key);
  const column = run.tables.heads.columns[metric];
  return row === undefined || !column ? NaN : column[row];
}

/** Mean, quartiles and range of a metric over heads with a value, of all layers or of one type; null if no head has one. */
function spreadOf(run, metric, type = null) {
  const place = `${metric} ${type ?? ""}`;
  if (!run.spreads.has(place)) {
    const { layer } = run.tables.heads.columns;
    const column = run.tables.heads.columns[metric] ?? [];
    run.spreads.set(place, spreadAmong(column.filter((_, row) => type === null || run.layer_types[layer[row]] === type)));
  }
  return run.spreads.get(place);
}

/** Length of the context in tokens; NaN if it is not known. */
const contextOf = (run) => run.context ?? (spreadOf(run, "q_position_max")?.high ?? NaN) + 1;

/** Whether the contexts of two runs differ by more than a tenth. Their fifths are then other positions. */
const contextsDiffer = (run, other) => Math.max(contextOf(run), contextOf(other)) > 1.1 * Math.min(contextOf(run), contextOf(other));

function spreadAmong(values) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  if (!sorted.length) return null;
  const quantile = (fraction) => {
    const index = fraction * (sorted.length - 1);
    const below = Math.floor(index);
    const above = Math.min(below + 1, sorted.length - 1);
    return sorted[below] + (sorted[above] - sorted[below]) * (index - below);
  };
  const mean = sorted.reduce((sum, value) => sum + value, 0) / sorted.length;
  return { mean, low: sorted[0], high: sorted.at(-1), q1: quantile(0.25), q3: quantile(0.75), count: sorted.length };
}
