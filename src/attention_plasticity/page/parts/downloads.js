// Tables as CSV, in the format of the run's files: `nan` for missing values.

import { byId } from "./words.js";
import { isDerived } from "./data.js";
import { partWord, runShown, selectedKey, state } from "./state.js";
import { save, slug } from "./charts.js";

/** The shortest text that gives the same float32. */
function shortestSingle(value) {
  for (let digits = 6; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

function csvOf({ names: all, columns, rows }, [start, end] = [0, rows], rename = (name) => name) {
  const names = all.filter((name) => !isDerived(name)), header = names.map(rename);
  const writers = names.map((name) => {
    const column = columns[name];
    if (Array.isArray(column)) return (row) => (/[",]/.test(column[row]) ? `"${column[row].replaceAll('"', '""')}"` : column[row]);
    const text = column instanceof Float32Array ? shortestSingle : String;
    return (row) => (Number.isNaN(column[row]) ? "nan" : text(column[row]));
  });
  const lines = [header.join(",")];
  for (let row = start; row < end; row++) lines.push(writers.map((write) => write(row)).join(","));
  return lines.join("\n") + "\n";
}

export function addDownloadListeners() {
  const saveCsv = (what, text) => save(`${slug(runShown().label)}-${what}.csv`, new Blob([text], { type: "text/csv" }));
  const on = (id, action) => byId(id).addEventListener("click", () => { byId("downloads").open = false; action(runShown()); });
  const cellName = (run) => (name) => (run.at_one_position ? name.replace(/^([qk])_bucket$/, "$1_bin") : name);
  const headCsv = (run, table, rename) => csvOf(run.tables[table], run.ranges[table].get(selectedKey()) ?? [0, 0], rename);
  const headFile = (what) => `l${state.layer}h${state.head}-${what}`;
  on("download-heads", (run) => saveCsv("head_metrics", csvOf(run.tables.heads)));
  on("download-cells", (run) => saveCsv(`head_${partWord(run)}_plasticity`, csvOf(run.tables.cells, undefined, cellName(run))));
  on("download-head-cells", (run) => saveCsv(headFile("cells"), headCsv(run, "cells", cellName(run))));
  on("download-head-components", (run) => saveCsv(headFile("components"), headCsv(run, "components")));
}
