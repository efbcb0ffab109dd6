// The cards of tables: key heads, all runs, and the origin of the numbers.

import { byId, fillTable, make, NONE, plain, showTo, whole, withHalf } from "./words.js";
import { contextOf, keyOf, spreadOf } from "./data.js";
import {
  cellsWords, hasTypes, layersWords, meanProfile, page, redraw, runsShown, state, typeWords,
} from "./state.js";
import { showMean, wordsOf } from "./values.js";
import { colourOfRun } from "./colours.js";
import {
  axisName, CHART_MARGIN, draw, intervalTraces, lineOf, plasticityAxis, positionAxis, positionName,
  sizeOf,
} from "./charts.js";

/** The key head of a query head, as `layer.head`; null if it is not known. */
function keyHeadOf(run, key) {
  const columns = run.tables.heads.columns,
    row = run.rowOf.get(key);
  return row === undefined || !columns.k_head
    ? null
    : keyOf(columns.layer[row], columns.k_head[row]);
}

/** A value of a row of a table with half of its interval, in the format of its column. */
function cellText({ columns }, row, name, words) {
  const value = columns[name][row],
    { decimals, count } = words[name];
  return count
    ? whole(value)
    : withHalf(showTo(decimals, value), value, columns[`${name}_half_width`]?.[row]);
}

/** The shares of their keys that key heads keep, by the per cent of all keys that are pruned. */
const budgetsOf = (run) =>
  (run.tables.key_heads?.names ?? [])
    .filter((name) => name.startsWith("kept_"))
    .map((name) => [Number(name.slice(5)), run.tables.key_heads.columns[name]]);

/** What the key head of a query head keeps of its keys, in words; empty if it is not known. */
export function budgetWords(run, key) {
  const { layer, k_head: head } = run.tables.key_heads?.columns ?? {},
    wanted = keyHeadOf(run, key);
  const row = layer?.findIndex((number, i) => keyOf(number, head[i]) === wanted) ?? -1;
  const parts = budgetsOf(run)
    .filter(([, kept]) => Number.isFinite(kept[row]))
    .map(([percent, kept]) => `${(100 * kept[row]).toFixed(0)} % at ${percent} %`);
  return parts.length
    ? `Key budget: keeps ${parts.join(", ")} compression of the cache (key head ${head[row]})`
    : "";
}

export const keyHeadsCard = {
  id: "key-heads",
  title: "Key heads",
  place: "below",
  folded: true,
  tables: ["key_heads"],
  body: `
    <p class="quiet">A cache keeps or drops keys of a key head, and all query heads of its group use
      them. Bold: the key head of the selected head. A pointer on a heading shows its meaning. ±:
      half of the 95 % interval over texts.</p>
    <div class="key-heads-scroll"><table id="key-heads-table" class="plain"></table></div>`,
  fill({ run }) {
    const table = run.tables.key_heads,
      words = page.words.key_heads,
      names = Object.keys(words).filter((name) => table.names.includes(name));
    const { layer, k_head: head } = table.columns;
    const budgets = budgetsOf(run).map(([percent, kept]) => ({
      heading: [
        `kept at ${percent}\u00a0%`,
        `share of its keys that the head keeps if ${percent} % of all keys are pruned by ` +
          "its RoPE-aligned plasticity (export --to kvpress-budget)",
      ],
      text: (row) => (Number.isFinite(kept[row]) ? `${(100 * kept[row]).toFixed(0)} %` : NONE),
    }));
    const rows = [...layer.keys()]
      .filter((row) => state.layers === null || run.layer_types[layer[row]] === state.layers)
      .map((row) => ({
        "data-key": keyOf(layer[row], head[row]),
        cells: [
          `layer ${layer[row]}, key head ${head[row]}`,
          ...budgets.map(({ text }) => text(row)),
          ...names.map((name) => cellText(table, row, name, words)),
        ],
      }));
    fillTable(
      byId("key-heads-table"),
      [
        ["key head"],
        ...budgets.map(({ heading }) => heading),
        ...names.map((name) => [words[name].label, words[name].meaning]),
      ],
      rows,
    );
  },
  drawHead({ run, key }) {
    for (const line of byId("key-heads-table").querySelectorAll("tbody tr"))
      line.setAttribute("aria-current", line.dataset.key === keyHeadOf(run, key));
  },
};

/** The metrics of the table. Those that no run has are left out. */
function runMetrics() {
  const { level, fifths, drop, parts } = page.kinds.position;
  return [
    level,
    ...fifths,
    drop,
    ...parts,
    "ap_phase",
    page.kinds.bucket.level,
    "q_R2_total",
    "q_R2_unrotated",
  ];
}

/** A row per run, and below it a row per type of layers if the run has several. */
function showRunsTable(runs, current) {
  const metrics = runMetrics().filter((name) => runs.some((run) => spreadOf(run, name)));
  const headings = ["run", "heads", "context", ...metrics.map((name) => wordsOf(name).label)];
  const means = (run, type) => metrics.map((name) => showMean(run, name, type));
  const rows = runs.flatMap((run, number) => {
    const line = make("i", "", { style: `border-color: ${colourOfRun(number)}` });
    const button = make("button", "", { type: "button" }, [line, run.label]);
    button.addEventListener("click", () => redraw.run(number));
    const selection = run.selected ? ` ${layersWords(run.selected)} only` : "";
    const name = make("span", "", {}, [button, make("span", selection, { class: "quiet" })]);
    const context = Number.isFinite(contextOf(run)) ? whole(contextOf(run)) : NONE;
    const types = hasTypes(run) ? run.types : [];
    return [
      {
        cells: [name, whole(run.counts.shown), context, ...means(run, null)],
        "aria-current": run === current,
      },
      ...types.map(({ name: type, words, heads }) => ({
        cells: [words, whole(heads), "", ...means(run, type)],
        class: "type-row",
      })),
    ];
  });
  const layers = state.layers === null ? "" : ` (chart: ${typeWords(current, state.layers)})`;
  byId("runs-note").textContent =
    `mean profile over heads, for every run${layers}${runsKindWords()}`;
  fillTable(
    byId("runs-table"),
    headings.map((text) => [text]),
    rows,
  );
}

/** What the profiles of the chart show. */
function runsKindWords() {
  const { runs } = state,
    over = runs.filter((run) => !run.at_one_position);
  if (!over.length || over.length === runs.length) return `: ${cellsWords(runs[0])}`;
  return `: RoPE-aligned plasticity; over a bucket: ${over.map((run) => run.label).join(", ")}`;
}

function runsFigure(width) {
  const { runs } = state,
    shown = runs.filter((run) => meanProfile(run)),
    traces = (makeTraces) =>
      shown.flatMap((run) => makeTraces(run, meanProfile(run), colourOfRun(run.number)));
  return {
    traces: [
      ...traces((run, mean, color) => intervalTraces("interval", run, mean, color, "2e")),
      ...traces((run, mean, color) =>
        lineOf(
          run,
          mean,
          { color, width: 2.5, words: plain(run.label) },
          { mode: "lines+markers", marker: { size: 5 } },
        ),
      ),
    ],
    names: { x: positionName(runs), y: axisName(runs) },
    layout: {
      margin: CHART_MARGIN,
      hovermode: "closest",
      xaxis: positionAxis(runs, width),
      yaxis: plasticityAxis(),
    },
  };
}

export const runsCard = {
  id: "runs",
  title: "All runs",
  place: "below",
  several: true,
  body: `
    <div class="runs">
      <div class="chart profile" id="runs-chart" role="img"
        aria-label="Mean profile of every run"></div>
      <div class="runs-scroll"><table id="runs-table" class="plain"></table></div>
    </div>`,
  fill: ({ run }) => showRunsTable(state.runs, run),
  drawRun: () => [draw("runs-chart", runsFigure(sizeOf(byId("runs-chart")).width))],
};

function showProvenance(shown) {
  const sections = shown.flatMap((run) =>
    run.provenance.map(([title, lines]) => {
      const words = lines.flatMap(([name, value]) => [make("dt", name), make("dd", value)]);
      const heading = make("h3", shown.length > 1 ? `${run.label}: ${title}` : title);
      return make("section", "", {}, [heading, make("dl", "", {}, words)]);
    }),
  );
  byId("provenance-list").replaceChildren(...sections);
}

export const provenanceCard = {
  id: "provenance",
  title: "Where these numbers come from",
  place: "below",
  folded: true,
  body: `<div id="provenance-list" class="provenance"></div>`,
  fill: () => showProvenance(runsShown()),
};
