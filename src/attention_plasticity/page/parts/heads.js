// The card of the table of heads, with sort and search. Only visible rows are in the document.

import { byId, fillEstimate, make, NONE, plural, showChange, whole } from "./words.js";
import { keyOf, metricOf, spreadOf } from "./data.js";
import { inLayers, page, runShown, shownKind, state, typeOf, typeWords } from "./state.js";
import {
  fadedWords, isFaded, ROLE, roleOf, roleWords, showHeadValue, UNSURE, wordsOf,
} from "./values.js";
import { roleMark } from "./colours.js";
import { select } from "./map.js";

const ROW_HEIGHT = 26,
  SPARE_ROWS = 6;

/**
 * The metrics that every row has: plasticity, that of attended keys, attention on sinks, and the
 * drop from position, or the share of position.
 */
const usualMetrics = () =>
  shownKind() === page.kinds.position
    ? [shownKind().level, "ap_attended", "attn_sink_mass", shownKind().parts[0]].filter((name) =>
        spreadOf(runShown(), name),
      )
    : [shownKind().level, "q_R2_total"];

const headsTable = { order: [], sort: { by: "head", up: true }, columns: [] };

/**
 * Columns: usual metrics, the metric of the map, the role, and the difference from the other run.
 */
function tableColumns(run, other, metric) {
  const available = new Set(run.tables.heads.names);
  const metrics = usualMetrics().filter((name) => available.has(name));
  if (!metrics.includes(metric) && metric !== ROLE) metrics.push(metric);
  const columns = metrics.map((name) => ({
    id: name,
    label: wordsOf(name).label,
    title: wordsOf(name).meaning,
    value: (key) => metricOf(run, key, name),
    show: (_, key) => showHeadValue(run, key, name),
  }));
  if (run.tables.roles) columns.push(roleColumn(run));
  if (other && metric !== ROLE) {
    columns.push({
      id: "change",
      label: `difference in ${wordsOf(metric).label}`,
      title: `${run.label} minus ${other.label}`,
      value: (key) => metricOf(run, key, metric) - metricOf(other, key, metric),
      show: showChange,
    });
  }
  return columns;
}

const SPARE_WIDTH = 32; // for the mark and the bold numbers of rows that are not in the document

function isTooWide(box) {
  const table = byId("heads-table");
  table.style.width = "min-content";
  const width = table.offsetWidth;
  table.style.width = "";
  return box.clientWidth > 0 && width + SPARE_WIDTH > box.clientWidth;
}

function showTable(run) {
  const { sort } = headsTable;
  if (sort.by !== "head" && !headsTable.columns.some((column) => column.id === sort.by)) {
    headsTable.sort = { by: "head", up: true };
  }
  showNames();
  orderHeads(run);
}

function showNames() {
  const { columns, sort } = headsTable;
  const all = [{ id: "head", label: "head", title: "layer and query head" }, ...columns];
  byId("heads-names").replaceChildren(
    ...all.map(({ id, label, title }) => {
      const sorted = sort.by === id;
      const button = make("button", label + (sorted ? (sort.up ? " ↑" : " ↓") : ""), {
        type: "button",
        title,
        "data-sort": id,
      });
      const order = sorted ? { "aria-sort": sort.up ? "ascending" : "descending" } : {};
      return make("th", "", { scope: "col", ...order }, [button]);
    }),
  );
}

/**
 * Sort by a column, the largest number or the first role first, and show the top. A second call
 * reverses the order.
 */
function sortHeads(run, by) {
  const { sort } = headsTable;
  headsTable.sort = { by, up: sort.by === by ? !sort.up : by === "head" || by === ROLE };
  showNames();
  document.querySelector(`[data-sort="${CSS.escape(by)}"]`)?.focus();
  byId("heads").scrollTop = 0;
  orderHeads(run);
}

/** The words of a head that a search finds: its names, the type of its layer, and its role. */
function searchedWords(run, key) {
  const [layer, head] = key.split(".");
  const names = [`l${layer}h${head}`, `l${layer} h${head}`, `layer ${layer} head ${head}`, key];
  return [...names, typeWords(run, typeOf(run, key)), roleWords(run, key)].join(" ").toLowerCase();
}

/** A test of a head: it has every text between commas, from the begin of a word or a number. */
function searchTest(run, query) {
  const plain = (text) => text.replace(/[^\p{L}\p{N}\s]/gu, "\\$&");
  const parts = query
    .toLowerCase()
    .split(/\s*,\s*/)
    .map((text) => new RegExp(`(?<![\\p{L}\\p{N}.])${plain(text)}(?!\\d)`, "u"));
  return (key) => parts.every((part) => part.test(searchedWords(run, key)));
}

function orderHeads(run) {
  const query = byId("search").value.trim(),
    test = searchTest(run, query),
    all = [...run.rowOf.keys()];
  const keys = all.filter((key) => inLayers(run, key) && test(key));
  const { by, up } = headsTable.sort;
  const column = headsTable.columns.find(({ id }) => id === by);
  if (column) {
    const value = new Map(keys.map((key) => [key, column.value(key)]));
    const sign = up ? 1 : -1;
    keys.sort((a, b) => {
      const x = value.get(a),
        y = value.get(b);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return sign * (x - y);
    });
  } else if (!up) keys.reverse();
  headsTable.order = keys;
  byId("found").textContent =
    keys.length < all.length || query
      ? `${whole(keys.length)} of ${plural(all.length, "head")}`
      : plural(all.length, "head");
  byId("heads-table").setAttribute("aria-rowcount", keys.length + 1);
  showRows();
}

/** Put the visible rows into the document, between two spacers. */
function showRows() {
  const box = byId("heads"),
    { order, columns } = headsTable;
  const visible = Math.ceil(box.clientHeight / ROW_HEIGHT),
    top = Math.floor(box.scrollTop / ROW_HEIGHT);
  // the scroll position can be that of a longer table
  const first = Math.max(0, Math.min(top, order.length - visible) - SPARE_ROWS);
  const last = Math.min(order.length, first + visible + 2 * SPARE_ROWS);
  const rows = [];
  if (first) rows.push(spacer(first));
  for (let place = first; place < last; place++) rows.push(headRow(order[place], place, columns));
  if (last < order.length) rows.push(spacer(order.length - last));
  if (!order.length)
    rows.push(
      make("tr", "", {}, [
        make("td", "No head has this name, type or role", {
          class: "none",
          colspan: columns.length + 1,
        }),
      ]),
    );
  byId("heads-rows").replaceChildren(...rows);
  showSelected();
}

function showSelected() {
  const key = keyOf(state.layer, state.head);
  byId("heads-rows")
    .querySelector('[aria-selected="true"]')
    ?.setAttribute("aria-selected", "false");
  const row = byId(`head-${key}`);
  row?.setAttribute("aria-selected", "true");
  if (row) byId("heads-table").setAttribute("aria-activedescendant", row.id);
  else byId("heads-table").removeAttribute("aria-activedescendant");
}

function spacer(count) {
  const row = make("tr", "", { "aria-hidden": "true" });
  row.style.height = `${count * ROW_HEIGHT}px`;
  return row;
}

function headRow(key, place, columns) {
  const cells = columns.map(
    (column) => column.cell?.(key) ?? fillEstimate(make("td"), column.show(column.value(key), key)),
  );
  const [layer, head] = key.split("."),
    run = runShown();
  const faded = isFaded(run, key);
  return make(
    "tr",
    "",
    {
      class: faded ? "row faded" : "row",
      id: `head-${key}`,
      "data-key": key,
      "aria-rowindex": place + 2,
      "aria-selected": "false",
      ...(faded ? { title: fadedWords(state.metric) } : {}),
    },
    [make("td", `L${layer} H${head}`), ...cells],
  );
}

/** Scroll to the selected row if it is not visible. */
function revealSelected() {
  const box = byId("heads");
  const place = headsTable.order.indexOf(keyOf(state.layer, state.head));
  if (place >= 0) {
    const top = place * ROW_HEIGHT,
      height = box.clientHeight - byId("heads-names").offsetHeight - ROW_HEIGHT;
    const before = box.scrollTop;
    if (top < before) box.scrollTop = top;
    else if (top > before + height) box.scrollTop = top - height;
    if (box.scrollTop !== before) return showRows();
  }
  showSelected();
}

function moveInTable(event) {
  const { order } = headsTable;
  const current = order.indexOf(keyOf(state.layer, state.head));
  const page = Math.max(1, Math.floor(byId("heads").clientHeight / ROW_HEIGHT) - 2);
  const steps = {
    ArrowUp: -1,
    ArrowDown: 1,
    PageUp: -page,
    PageDown: page,
    Home: -order.length,
    End: order.length,
  };
  if (!(event.key in steps) || !order.length) return;
  event.preventDefault();
  const next =
    current < 0 ? 0 : Math.min(order.length - 1, Math.max(0, current + steps[event.key]));
  select(order[next]);
}

/**
 * Fill the table. On a narrow screen it has less space between columns, then no errors, then fewer
 * usual metrics.
 */
function fillHeads(run, other) {
  const box = byId("heads"),
    drop = (name) => {
      headsTable.columns = headsTable.columns.filter(({ id }) => id !== name);
    };
  headsTable.columns = tableColumns(run, other, state.metric);
  box.classList.remove("close", "bare");
  showTable(run);
  const usual = [...usualMetrics().slice(0, 2), ROLE, ...usualMetrics().slice(2)]
    .filter((name) => name !== state.metric)
    .reverse();
  for (const step of [
    () => box.classList.add("close"),
    () => box.classList.add("bare"),
    ...usual.map((name) => () => drop(name)),
  ]) {
    if (!isTooWide(box)) break;
    step();
    showTable(run);
  }
}

/** The column of the table of heads. Unsure heads come after the others of their likely role. */
const roleColumn = (run) => ({
  id: ROLE,
  label: "role",
  title: wordsOf(ROLE).meaning,
  value: (key) => {
    const found = roleOf(run, key);
    return found ? page.roles.names.indexOf(found.likely) + 0.5 * (found.role === UNSURE) : NaN;
  },
  cell: (key) =>
    make(
      "td",
      roleOf(run, key) ? "" : NONE,
      { class: "role-cell" },
      roleOf(run, key) ? [roleMark(run, key, true)] : [],
    ),
});

export const headsCard = {
  id: "heads",
  title: "All heads",
  place: "left",
  grows: true,
  controls: `<span class="quiet" id="found" role="status"></span>
    <input type="search" class="grow-right" id="search"
      aria-label="Find heads by name, type of layer or role" placeholder="l12h3 or induction"
      autocomplete="off" spellcheck="false">`,
  body: `
    <div class="heads" id="heads">
      <table id="heads-table" role="grid" tabindex="0"
        aria-label="Heads; up and down arrows select a head"><thead><tr
        id="heads-names"></tr></thead><tbody id="heads-rows"></tbody></table>
    </div>`,
  listen() {
    let waiting = false;
    byId("heads").addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        showRows();
      });
    });
    byId("heads-rows").addEventListener("click", (event) => {
      const row = event.target.closest("tr.row");
      if (row) select(row.dataset.key);
    });
    byId("heads-names").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) sortHeads(runShown(), button.dataset.sort);
    });
    byId("heads-table").addEventListener("keydown", (event) => moveInTable(event));
    byId("search").addEventListener("input", () => {
      byId("heads").scrollTop = 0;
      orderHeads(runShown());
    });
    byId("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && headsTable.order.length) select(headsTable.order[0]);
      if (event.key === "Escape") {
        byId("search").value = "";
        orderHeads(runShown());
      }
    });
  },
  fill({ run, beside }) {
    fillHeads(run, beside);
  },
  drawRun: () => revealSelected(), // the map above has its height now
  drawHead: () => revealSelected(),
};
