// Data of the page: compressed blocks to typed arrays, and rows of a head.

const ARRAYS = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** A compressed block of the page as a Response. The block is removed from the document. */
export function inflated(id) {
  const element = document.getElementById(id);
  const stream = new Blob([bytesOf(element.textContent)]).stream();
  element.remove();
  return new Response(stream.pipeThrough(new DecompressionStream("gzip")));
}

const SCALE = 10_000,
  UNKNOWN = 65_535; // shares of attention as integers, see tables.py

/**
 * The columns of a table. Texts are found by their numbers, and shares of attention are made from
 * integers.
 */
function openTable({ rows, columns }, buffer, texts) {
  const arrays = {};
  for (const [name, kind, offset] of columns) {
    const stored = new ARRAYS[kind === "text" ? "u4" : kind](buffer, offset, rows);
    if (kind === "text") arrays[name] = Array.from(stored, (number) => texts[number]);
    else if (/^(mass|half)_(sinks|\d+)$/.test(name))
      arrays[name] = Float32Array.from(stored, (value) =>
        value === UNKNOWN ? NaN : value / SCALE,
      );
    else arrays[name] = stored;
  }
  return { rows, names: columns.map(([name]) => name), columns: arrays };
}

export const keyOf = (layer, head) => `${layer}.${head}`;

/** For a table sorted by head: map from the key of a head to [first row, end row). */
function rangesOf({ rows, columns }) {
  const found = new Map();
  const { layer, q_head: head } = columns;
  for (let start = 0; start < rows;) {
    let end = start + 1;
    while (end < rows && layer[end] === layer[start] && head[end] === head[start]) end++;
    found.set(keyOf(layer[start], head[start]), [start, end]);
    start = end;
  }
  return found;
}

export async function openRun(about, number) {
  const buffer = await inflated(`run-${number}`).arrayBuffer();
  const texts = JSON.parse(
    new TextDecoder().decode(openTable(about.tables.texts, buffer).columns.utf8),
  );
  const tables = {},
    ranges = {};
  for (const [name, header] of Object.entries(about.tables)) {
    tables[name] = openTable(header, buffer, texts);
    ranges[name] = tables[name].columns.q_head ? rangesOf(tables[name]) : new Map();
  }
  const { layer, q_head: head } = tables.heads.columns;
  const rowOf = new Map();
  for (let row = 0; row < tables.heads.rows; row++) rowOf.set(keyOf(layer[row], head[row]), row);
  const baselines = about.baselines.map((baseline) => ({
    ...baseline,
    types: baseline.groups.slice(1),
    tables,
  }));
  return {
    ...about,
    number,
    types: about.groups.slice(1),
    tables,
    baselines,
    ranges,
    rowOf,
  };
}

/** Whether a run has rows of a head in a table. */
export const hasRows = (run, table, key) => Boolean(run?.ranges[table]?.has(key));

/** Rows of a head in a table of the run, as arrays by column; null if there are none. */
export function rowsOfHead(run, table, key) {
  if (!hasRows(run, table, key)) return null;
  const { names, columns } = run.tables[table];
  return Object.fromEntries(
    names.map((name) => [name, Array.from(columns[name].slice(...run.ranges[table].get(key)))]),
  );
}

/**
 * A number of a head in a table with one row per head, and half of its 95 % interval; NaN if it is
 * not known.
 */
export function numberOf(run, table, key, name) {
  const row = run.ranges[table]?.get(key)?.[0],
    columns = run.tables[table]?.columns ?? {};
  return row === undefined
    ? { value: NaN, half: NaN }
    : { value: columns[name]?.[row] ?? NaN, half: columns[`${name}_half_width`]?.[row] ?? NaN };
}

/** A metric of a head; NaN if it is missing. */
export function metricOf(run, key, metric) {
  const row = run.rowOf.get(key);
  const column = run.tables.heads.columns[metric];
  return row === undefined || !column ? NaN : column[row];
}

/**
 * Number, mean, quartiles and range of a column over heads with a value, of all layers or of one
 * type; null if no head has one.
 */
export function spreadOf(run, metric, type = null) {
  const group = run.groups.find(({ name }) => name === type),
    columns = run.tables[group?.spreads]?.columns,
    row = columns?.metric.indexOf(metric) ?? -1;
  if (row < 0) return null;
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[row]]));
}

/** Length of the context in tokens; NaN if it is not known. */
export const contextOf = (run) => run.context ?? (spreadOf(run, "q_position_max")?.high ?? NaN) + 1;

/**
 * Whether the contexts of two runs differ by more than a tenth. Their fifths are then other
 * positions.
 */
export const contextsDiffer = (run, other) =>
  Math.max(contextOf(run), contextOf(other)) > 1.1 * Math.min(contextOf(run), contextOf(other));

/** Whether a column was added for the page, so that it is not in the file of the run. */
export const isDerived = (name) =>
  /_(half_width|groups|differs)$/.test(name) && name !== "n_text_groups";
