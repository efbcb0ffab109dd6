// Tables as CSV, in the format of the run's files: `nan` for missing values.

/** The shortest text that gives the same float32. */
function shortestSingle(value) {
  for (let digits = 6; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

function csvOf({ names, columns, rows }, [start, end] = [0, rows]) {
  const writers = names.map((name) => {
    const column = columns[name];
    const text = column instanceof Float32Array ? shortestSingle : String;
    return (row) => (Number.isNaN(column[row]) ? "nan" : text(column[row]));
  });
  const lines = [names.join(",")];
  for (let row = start; row < end; row++) lines.push(writers.map((write) => write(row)).join(","));
  return lines.join("\n") + "\n";
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", "", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function addDownloadListeners(runShown) {
  const fileName = (what) => `${runShown().label.replace(/[^\p{L}\p{N}._-]+/gu, "-")}-${what}.csv`;
  const on = (id, action) => byId(id).addEventListener("click", () => { byId("downloads").open = false; action(runShown()); });
  const headCsv = (run, table) => csvOf(run.tables[table], run.ranges[table].get(keyOf(state.layer, state.head)) ?? [0, 0]);
  const headFile = (what) => fileName(`l${state.layer}h${state.head}-${what}`);
  on("download-heads", (run) => save(fileName("head_metrics"), csvOf(run.tables.heads)));
  on("download-cells", (run) => save(fileName("head_bucket_plasticity"), csvOf(run.tables.cells)));
  on("download-head-cells", (run) => save(headFile("cells"), headCsv(run, "cells")));
  on("download-head-components", (run) => save(headFile("components"), headCsv(run, "components")));
}
