// The cards of tables: key heads, all runs, and the origin of the numbers.

import {
  byId, fillEstimate, fillTable, make, NONE, plain, showTo, whole, withHalf,
} from "./words.js";
import { contextOf, keyOf, spreadOf } from "./data.js";
import {
  cellsWords, hasTypes, layersWords, meanProfile, page, redraw, runsShown, state, typeWords,
} from "./state.js";
import { showMean, wordsOf } from "./values.js";
import { colourOfRun } from "./colours.js";
import {
  axisName, CHART_MARGIN, draw, intervalTexts, intervalTraces, placesOf, plasticityAxis,
  positionAxis, positionName, savedCharts, sizeOf,
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
  const names = ["run", "heads", "context", ...metrics.map((name) => wordsOf(name).label)];
  const head = make("thead", "", {}, [
    make(
      "tr",
      "",
      {},
      names.map((name) => make("th", name, { scope: "col" })),
    ),
  ]);
  const rowOf = (first, count, run, type, attributes) => {
    const context =
      type === null && Number.isFinite(contextOf(run))
        ? whole(contextOf(run))
        : type === null
          ? NONE
          : "";
    const values = [
      make("td", whole(count)),
      make("td", context),
      ...metrics.map((name) => fillEstimate(make("td"), showMean(run, name, type))),
    ];
    values.forEach((cell, i) => cell.setAttribute("data-label", names[i + 1]));
    return make("tr", "", attributes, [make("td", "", {}, first), ...values]);
  };
  const rows = runs.flatMap((run, number) => {
    const line = make("i");
    line.style.borderColor = colourOfRun(number);
    const button = make("button", "", { type: "button" }, [line, run.label]);
    const selection = run.selected
      ? [make("span", ` ${layersWords(run.selected)} only`, { class: "quiet" })]
      : [];
    button.addEventListener("click", () => redraw.run(number));
    const types = hasTypes(run)
      ? run.types.map(({ name, words, heads }) =>
          rowOf([words], heads, run, name, { class: "type-row" }),
        )
      : [];
    return [
      rowOf([button, ...selection], run.counts.shown, run, null, {
        "aria-current": run === current,
      }),
      ...types,
    ];
  });
  const layers = state.layers === null ? "" : ` (chart: ${typeWords(current, state.layers)})`;
  byId("runs-note").textContent =
    `mean profile over heads, for every run${layers}${runsKindWords()}`;
  byId("runs-table").replaceChildren(head, make("tbody", "", {}, rows));
}

/** What the profiles of the chart show. */
function runsKindWords() {
  const { runs } = state,
    over = runs.filter((run) => !run.at_one_position);
  if (!over.length || over.length === runs.length) return `: ${cellsWords(runs[0])}`;
  return `: RoPE-aligned plasticity; over a bucket: ${over.map((run) => run.label).join(", ")}`;
}

function runsFigure(width) {
  const { runs } = state;
  const bands = [],
    lines = [];
  runs.forEach((run, i) => {
    const mean = meanProfile(run),
      color = colourOfRun(i);
    if (!mean) return;
    const x = placesOf(run, mean);
    bands.push(...intervalTraces("interval", x, mean, color, "2e"));
    lines.push({
      x,
      y: Array.from(mean.plasticity),
      mode: "lines+markers",
      marker: { size: 5 },
      text: intervalTexts(mean),
      name: plain(run.label),
      line: { color, width: 2.5 },
      hovertemplate: `<b>%{y:.3f}</b> ${plain(run.label)}%{text}<extra></extra>`,
    });
  });
  return {
    traces: [...bands, ...lines],
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
  image: "profiles of all runs",
  body: `
    <div class="runs">
      <div class="chart profile" id="runs-chart" role="img"
        aria-label="Mean profile of every run"></div>
      <div class="runs-scroll"><table id="runs-table" class="plain"></table></div>
    </div>`,
  fill({ run }) {
    showRunsTable(state.runs, run);
    savedCharts.runs = () => ({
      run: null,
      name: "profiles",
      size: { width: 760, height: 430 },
      figure: () => runsFigure(760),
    });
  },
  drawRun: () => [draw("runs-chart", runsFigure(sizeOf(byId("runs-chart")).width))],
};

function showProvenance(shown) {
  const sections = shown.flatMap((run) =>
    run.provenance.map(([title, lines]) => {
      const list = make(
        "dl",
        "",
        {},
        lines.flatMap(([name, value]) => [make("dt", name), make("dd", value)]),
      );
      return make("section", "", {}, [
        make("h3", shown.length > 1 ? `${run.label}: ${title}` : title),
        list,
      ]);
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
