// Tables as CSV, in the format of the run's files: `nan` for missing values.

/** The shortest text that gives the same float32. */
function shortestSingle(value) {
  for (let digits = 6; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

function csvOf({ names, columns, rows }, [start, end] = [0, rows], header = names) {
  const writers = names.map((name) => {
    const column = columns[name];
    const text = column instanceof Float32Array ? shortestSingle : String;
    return (row) => (Number.isNaN(column[row]) ? "nan" : text(column[row]));
  });
  const lines = [header.join(",")];
  for (let row = start; row < end; row++) lines.push(writers.map((write) => write(row)).join(","));
  return lines.join("\n") + "\n";
}

/** The table of heads as in head_metrics.csv, with the types of its layers. */
function headsCsv(run) {
  const table = run.tables.heads;
  if (!run.has_layer_type) return csvOf(table);
  const [names, ...lines] = csvOf(table).trimEnd().split("\n");
  const quoted = (text) => (/[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const typed = lines.map((line, row) => `${line},${quoted(run.layer_types[table.columns.layer[row]])}`);
  return [`${names},layer_type`, ...typed].join("\n") + "\n";
}

function save(name, content) {
  const url = URL.createObjectURL(content);
  make("a", "", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The name of a run as part of a file name. */
const slug = (label) => label.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^-+|-+$/g, "");

function addDownloadListeners(runShown) {
  const saveCsv = (what, text) => save(`${slug(runShown().label)}-${what}.csv`, new Blob([text], { type: "text/csv" }));
  const on = (id, action) => byId(id).addEventListener("click", () => { byId("downloads").open = false; action(runShown()); });
  const cellNames = (run) => run.tables.cells.names.map((name) => (run.at_one_position ? name.replace(/^([qk])_bucket$/, "$1_bin") : name));
  const headCsv = (run, table, names) => csvOf(run.tables[table], run.ranges[table].get(keyOf(state.layer, state.head)) ?? [0, 0], names);
  const headFile = (what) => `l${state.layer}h${state.head}-${what}`;
  on("download-heads", (run) => saveCsv("head_metrics", headsCsv(run)));
  on("download-cells", (run) => saveCsv(`head_${partWord(run)}_plasticity`, csvOf(run.tables.cells, undefined, cellNames(run))));
  on("download-head-cells", (run) => saveCsv(headFile("cells"), headCsv(run, "cells", cellNames(run))));
  on("download-head-components", (run) => saveCsv(headFile("components"), headCsv(run, "components")));
}
