// The registry of cards, the controls of the page, and its start.

import { byId, fillMenu, make } from "./words.js";
import { hasRows, inflated, keyOf, openRun } from "./data.js";
import {
  headsBeside, layersWords, otherRun, page, redraw, runShown, runsShown, sameArchitecture,
  selectedKey, shownKind, state, typeNamed,
} from "./state.js";
import { canShow, firstHead } from "./values.js";
import { applyTheme, keepTheme, savedTheme } from "./colours.js";
import { sizes } from "./charts.js";
import { showCards, showSubtitle, showWarnings } from "./model.js";
import { mapCard } from "./map.js";
import { headsCard } from "./heads.js";
import { headCard } from "./head.js";
import { roleCard } from "./role.js";
import { attentionCard } from "./attention.js";
import { metricsCard } from "./metrics.js";
import { keyHeadsCard, provenanceCard, runsCard } from "./tables.js";
import { readAddress, writeAddress } from "./address.js";

/**
 * A card has an `id`, a `title`, a `place`, `controls` beside its title, and a `body`. It is shown
 * if the selected head has rows in all tables of `needs`, or the run has all `tables`. `listen` is
 * called once, `fill` for other runs or settings, `drawHead` for another head. Then the charts are
 * drawn: `drawRun` and `drawCharts` return promises. `run` is the shown run, `other` the second one,
 * `beside` the second one if its heads correspond, and `key` the head.
 */
const CARDS = [
  mapCard,
  headsCard,
  headCard,
  roleCard,
  attentionCard,
  metricsCard,
  keyHeadsCard,
  runsCard,
  provenanceCard,
];

const panelOf = ({ id }) => byId(`${id}-panel`);

/** The element of a card. Its parts are written here, never by a run. */
function makeCard({ id, title, place, controls = "", body, folded, grows, several }) {
  const panel = make(folded ? "details" : "section", "", {
    class: `panel${grows ? " grow" : ""}${several ? " several" : ""}`,
    id: `${id}-panel`,
    ...(id === "head" ? { tabindex: "-1" } : {}),
    ...(folded ? {} : { "aria-labelledby": `${id}-title` }),
  });
  const top = `<h2 id="${id}-title">${title}</h2>`;
  panel.innerHTML = folded
    ? `<summary>${top}</summary>${body}`
    : `<div class="panel-top">${top} <p class="quiet" id="${id}-note"></p>${controls}</div>${body}`;
  byId(place).append(panel);
}

const viewOf = () => ({
  run: runShown(),
  other: otherRun(),
  beside: headsBeside(),
  key: selectedKey(),
});

/** The cards that have something to show; the others are hidden. */
function cardsShown({ run, key }) {
  return CARDS.filter((card) => {
    const { needs = [], tables = [], several } = card,
      panel = panelOf(card);
    const known =
      needs.every((table) => hasRows(run, table, key)) &&
      tables.every((table) => run.tables[table]) &&
      (!several || state.runs.length > 1);
    if (panel.hidden && known)
      // the size of a hidden element is zero
      for (const chart of panel.querySelectorAll(".chart")) sizes.delete(chart);
    panel.hidden = !known;
    return known;
  });
}

const callCards = (cards, name, view) => cards.flatMap((card) => card[name]?.(view) ?? []);

function showTexts() {
  const view = viewOf();
  fillControls();
  showSubtitle(view.run, view.other);
  showCards(view.run, view.other);
  showWarnings(runsShown());
  callCards(cardsShown(view), "fill", view);
  showHeadTexts();
}

function showHeadTexts() {
  const view = viewOf();
  callCards(cardsShown(view), "drawHead", view);
  clearTimeout(showHeadTexts.timer);
  showHeadTexts.timer = setTimeout(writeAddress, 150); // delayed: browsers limit address changes
}

function drawSelected() {
  const view = viewOf();
  showHeadTexts();
  return settle(callCards(cardsShown(view), "drawCharts", view));
}

function drawAll() {
  sizes.clear();
  showTexts();
  const view = viewOf(),
    cards = cardsShown(view);
  return settle([...callCards(cards, "drawRun", view), ...callCards(cards, "drawCharts", view)]);
}

/** Set the state of the document to "ready" when all charts are drawn. */
async function settle(charts) {
  document.documentElement.dataset.state = "drawing";
  const call = (settle.calls = (settle.calls ?? 0) + 1);
  await Promise.all(charts);
  if (call === settle.calls) document.documentElement.dataset.state = "ready";
}

function fillControls() {
  const { runs } = state;
  fillMenu(
    byId("run"),
    runs.map((run, i) => [i, run.label]),
    state.run,
  );
  const others = runs
    .map((run, i) => [
      i,
      sameArchitecture(runShown(), run) ? run.label : `${run.label} (means only)`,
    ])
    .filter(([i]) => i !== state.run);
  fillMenu(byId("beside"), [["", "none"], ...others], state.beside ?? "");
  byId("layers-label").hidden =
    new Set(runsShown().flatMap(({ types }) => types.map(({ name }) => name))).size < 2;
  fillMenu(
    byId("layers"),
    [
      ["", "all"],
      ...runShown().types.map(({ name, words, layers }) => [name, words, layersWords(layers)]),
    ],
    state.layers ?? "",
  );
}

function switchRun(number) {
  if (number === state.beside) state.beside = state.run;
  state.run = number;
  const run = runShown();
  if (!canShow(run, state.metric)) state.metric = shownKind().level;
  if (!typeNamed(run, state.layers)) state.layers = null;
  if (!state.chosen || !run.rowOf.has(keyOf(state.layer, state.head)))
    Object.assign(state, firstHead(), { chosen: false });
  drawAll();
}

function setTheme(name) {
  applyTheme(name);
  drawAll();
}

function addListeners() {
  Object.assign(redraw, { all: drawAll, head: drawSelected, run: switchRun });
  for (const card of CARDS) card.listen?.();
  byId("run").addEventListener("change", ({ target }) => switchRun(Number(target.value)));
  byId("beside").addEventListener("change", ({ target }) => {
    state.beside = target.value === "" ? null : Number(target.value);
    drawAll();
  });
  byId("layers").addEventListener("change", ({ target }) => {
    state.layers = target.value || null;
    byId("heads").scrollTop = 0;
    drawAll();
  });
  byId("link-close").addEventListener("click", () => {
    byId("link-notice").hidden = true;
    drawAll();
  });
  byId("theme").addEventListener("click", () => {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keepTheme(name);
    setTheme(name);
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("head-panel").focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    setTheme(savedTheme()),
  );
  addEventListener("hashchange", (event) => {
    readAddress(event.newURL);
    drawAll();
  });
  addEventListener("keydown", onKey);
  let timer;
  addEventListener("resize", () => {
    document.documentElement.dataset.state = "drawing";
    clearTimeout(timer);
    timer = setTimeout(drawAll, 120);
  });
}

function onKey(event) {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    byId("search").focus();
    byId("search").select();
  }
}

/**
 * Run a script from a blob, so that it is parsed off the main thread. Inline if blobs are blocked.
 */
async function addScript(code) {
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const script = make("script", "", { src: url });
  const done = new Promise((resolve, reject) =>
    Object.assign(script, { onload: resolve, onerror: reject }),
  );
  document.head.append(script);
  try {
    await done;
  } catch {
    document.head.append(make("script", await code.text()));
  }
  URL.revokeObjectURL(url);
}

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

async function startPage() {
  applyTheme(savedTheme());
  byId("title").textContent = page.title;
  byId("version").textContent = page.version;
  document.body.classList.toggle("single", page.runs.length === 1);
  if (typeof DecompressionStream === "undefined")
    throw new Error("this browser cannot decompress the data; use a browser of 2023 or later");
  const library = inflated("plotly").blob();
  state.runs = await Promise.all(page.runs.map(openRun));
  byId("notice").hidden = true;
  byId("main").hidden = false;
  CARDS.forEach(makeCard);
  readAddress(location.href);
  showTexts();
  await painted(); // show the numbers before the chart library is compiled
  await addScript(await library);
  addListeners();
  await drawAll();
  performance.mark("ready");
}

startPage().catch((error) => {
  console.error(error);
  byId("main").hidden = true;
  byId("notice").hidden = false;
  byId("notice").textContent = `The page cannot be shown: ${error.message}`;
});
