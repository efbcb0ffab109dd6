// The selection, and updates of all views.

const page = JSON.parse(byId("page-data").textContent);
const state = { run: 0, beside: null, layer: 0, head: 0, metric: "", sure: null, queries: null, layers: null, allColumns: false, axis: "tokens", chosen: false };
let runs = [];

const runShown = () => runs[state.run];
const otherRun = () => (state.beside === null ? null : runs[state.beside]);
const runsShown = () => [runShown(), otherRun()].filter(Boolean);

/** The compared run if its heads correspond to those of the shown run, else null. */
const headsBeside = () => (otherRun() && sameArchitecture(runShown(), otherRun()) ? otherRun() : null);
const mapRuns = () => [runShown(), headsBeside()].filter(Boolean);

/** The heads that can be selected at the start: those of both runs if heads are compared, else all. */
function firstHeads() {
  const keys = [...runShown().rowOf.keys()], other = headsBeside(), shared = other ? keys.filter((key) => other.rowOf.has(key)) : [];
  return shared.length ? shared : keys;
}

/** The head selected at the start: the interval of its drop lies farthest from 0. Without intervals it has the largest drop, without drops it is the first head. */
function firstHead() {
  const distance = (key) => distanceOfDrop(runShown(), key);
  const best = firstHeads().reduce((a, b) => (distance(b) > distance(a) || (Number.isNaN(distance(a)) && !Number.isNaN(distance(b))) ? b : a));
  const [layer, head] = best.split(".").map(Number);
  return { layer, head };
}

/** Select a head. `place` is the number of the map: 1 is the map of the other run. */
function select(key, place = 0) {
  if (!mapRuns()[place].rowOf.has(key) || !runShown().rowOf.has(key)) return;
  [state.layer, state.head] = key.split(".").map(Number);
  state.chosen = true;
  revealSelected();
  drawHead();
}

function drawHead() {
  showHeadTexts();
  if (chartsMoved()) fitCharts();
  return drawHeadCharts();
}

function drawHeadCharts() {
  const run = runShown(), other = otherRun(), key = keyOf(state.layer, state.head);
  mapPlots().forEach((plot, place) => markHead(plot, mapRuns()[place], state.layer, state.head));
  return settle([drawProfile(run, other, key), drawCells(run, key), drawComponents(run, key), drawBands(run, key), drawAttention(run, other, key)]);
}

function showHeadTexts() {
  showSelected();
  showHead(runShown(), headsBeside(), state);
  showRoleCard(runShown(), headsBeside(), keyOf(state.layer, state.head));
  showDriftCard(runShown(), headsBeside(), keyOf(state.layer, state.head));
  showProfileKeys(runShown(), otherRun(), keyOf(state.layer, state.head));
  markKeyHead(runShown(), keyOf(state.layer, state.head));
  showFidelity(runShown(), keyOf(state.layer, state.head));
  clearTimeout(showHeadTexts.timer);
  showHeadTexts.timer = setTimeout(writeAddress, 150); // delayed: browsers limit address changes
}

function drawMaps() {
  const shown = mapRuns();
  const scale = scaleOf(state.metric, shown);
  const rows = mapLayers().length;
  byId("metric-meaning").textContent = capital(wordsOf(state.metric).meaning);
  showLegend(scale, shown);
  showTypeLegend(shown);
  showSwitch(runShown());
  return mapPlots().map((plot, place) => drawMap(plot, shown[place], state.metric, scale, rows));
}

function showTexts() {
  const run = runShown(), other = otherRun();
  fillControls();
  showSubtitle(run, other);
  showCards(run, other);
  showWarnings(runsShown());
  showProvenance(runsShown());
  makeMaps(mapRuns(), select);
  fillTable(run, headsBeside());
  showAxisChoice(runsShown());
  showKeyHeads(run);
  if (runs.length > 1) showRunsTable(runs, run, switchRun);
}

function drawAll() {
  sizes.clear();
  showTexts();
  showHeadTexts(); // its lines move the charts below
  const charts = drawMaps();
  fitCharts(); // after the maps, whose height it needs
  if (runs.length > 1) charts.push(drawRuns());
  return settle([...charts, drawHeadCharts()]);
}

/** Set the state of the document to "ready" when all charts are drawn. */
async function settle(charts) {
  document.documentElement.dataset.state = "drawing";
  const call = (settle.calls = (settle.calls ?? 0) + 1);
  await Promise.all(charts);
  if (call === settle.calls) document.documentElement.dataset.state = "ready";
}

function fillControls() {
  const option = (value, text, chosen) => {
    const element = make("option", text, { value });
    element.selected = chosen;
    return element;
  };
  byId("run").replaceChildren(...runs.map((run, i) => option(i, run.label, i === state.run)));
  const others = runs.map((run, i) => [run, i]).filter(([, i]) => i !== state.run);
  byId("beside").replaceChildren(
    option("", "none", state.beside === null), ...others.map(([run, i]) => option(i, sameArchitecture(runShown(), run) ? run.label : `${run.label} (means only)`, i === state.beside)));
  fillLayers(runShown(), otherRun());
  const quarter = spreadOf(runShown(), shownKind().level)?.q3 ?? 0.5; // a quarter of the heads have more
  byId("search").placeholder = `plasticity>${(Math.floor(10 * quarter) / 10).toFixed(1)}`;
  fillMetrics();
  byId("download-head-components").disabled = !runShown().tables.components;
}

const ALL_COLUMNS = "…"; // the last option of the menu of colours

/** The menu of colours: the usual metrics and the chosen one, or all columns without those of errors. */
function fillMetrics() {
  const groups = mapGroups(runShown());
  const usual = (name) => state.allColumns || name === ROLE || name === state.metric || name === "sliding_window" || FIRST_METRICS.has(name);
  const shown = groups.map(([title, names]) => [title, names.filter(usual)]).filter(([, names]) => names.length);
  const more = groups.flatMap(([, names]) => names).length - shown.flatMap(([, names]) => names).length;
  byId("metric").replaceChildren(
    ...shown.map(([title, names]) => make("optgroup", "", { label: title }, names.map((name) => make("option", wordsOf(name).label, { value: name })))),
    ...(more ? [make("option", `${plural(more, "more column")} …`, { value: ALL_COLUMNS })] : []));
  byId("metric").value = state.metric;
}

function switchRun(number) {
  if (number === state.beside) state.beside = state.run;
  state.run = number;
  const run = runShown();
  if (!canShow(run, state.metric)) state.metric = shownKind().level;
  if (!typeNamed(run, state.layers)) state.layers = null;
  if (!state.chosen || !run.rowOf.has(keyOf(state.layer, state.head))) Object.assign(state, firstHead(), { chosen: false });
  drawAll();
}

function switchAxis(event) {
  state.axis = event.target.value;
  showAxisChoice(runsShown());
  settle([drawHead(), ...(runs.length > 1 ? [drawRuns()] : [])]);
}

function addListeners() {
  byId("run").addEventListener("change", (event) => switchRun(Number(event.target.value)));
  byId("beside").addEventListener("change", (event) => {
    state.beside = event.target.value === "" ? null : Number(event.target.value);
    drawAll();
  });
  byId("metric").addEventListener("change", (event) => {
    if (event.target.value === ALL_COLUMNS) {
      state.allColumns = true;
      fillMetrics();
      return;
    }
    state.metric = event.target.value;
    fillTable(runShown(), headsBeside());
    settle([...drawMaps(), drawHead()]);
  });
  byId("layers").addEventListener("change", (event) => {
    state.layers = event.target.value || null;
    byId("heads").scrollTop = 0;
    drawAll();
  });
  for (const id of ["profile-axis", "runs-axis"]) byId(id).addEventListener("change", switchAxis);
  byId("link-close").addEventListener("click", () => { byId("link-notice").hidden = true; drawAll(); });
  byId("sure").addEventListener("change", (event) => {
    state.sure = event.target.checked;
    showRows();
    showHeadTexts();
    settle(drawMaps());
  });
  byId("all-metrics").addEventListener("change", showAllMetrics);
  byId("attention-queries").addEventListener("change", (event) => {
    state.queries = event.target.value === "" ? null : Number(event.target.value);
    settle([drawAttention(runShown(), otherRun(), keyOf(state.layer, state.head))]);
  });
  byId("theme").addEventListener("click", () => {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keepTheme(name);
    applyTheme(name);
    drawAll();
  });
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("head-panel").focus(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(savedTheme()); drawAll(); });
  addEventListener("hashchange", (event) => { readAddress(event.newURL); drawAll(); revealSelected(); });
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      byId("search").focus();
      byId("search").select();
    }
    if (event.key === "Escape") byId("downloads").open = false;
  });
  addEventListener("click", (event) => { if (!byId("downloads").contains(event.target)) byId("downloads").open = false; });
  let timer;
  addEventListener("resize", () => {
    document.documentElement.dataset.state = "drawing";
    clearTimeout(timer);
    timer = setTimeout(drawAll, 120);
  });
  addEventListener("beforeprint", preparePrint);
  addEventListener("afterprint", endPrint);
  addTableListeners(runShown, select);
  addDownloadListeners(runShown);
}

/** Run a script from a blob, so that it is parsed off the main thread. Inline if blobs are blocked. */
async function addScript(code) {
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const script = make("script", "", { src: url });
  const done = new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }));
  document.head.append(script);
  try { await done; } catch { document.head.append(make("script", await code.text())); }
  URL.revokeObjectURL(url);
}

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

async function start() {
  applyTheme(savedTheme());
  byId("title").textContent = page.title;
  byId("version").textContent = page.version;
  document.body.classList.toggle("single", page.runs.length === 1);
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot decompress the data; use a browser of 2023 or later");
  const library = inflated("plotly").blob();
  runs = await Promise.all(page.runs.map(openRun));
  byId("notice").hidden = true;
  byId("main").hidden = false;
  addGlossary();
  addImageButtons();
  readAddress(location.href);
  showTexts();
  showHeadTexts();
  revealSelected();
  await painted(); // show the numbers before the chart library is compiled
  await addScript(await library);
  addListeners();
  await drawAll();
  revealSelected(); // the charts have changed the height of the table
  performance.mark("ready");
}

start().catch((error) => {
  console.error(error);
  byId("main").hidden = true;
  byId("notice").hidden = false;
  byId("notice").textContent = `The page cannot be shown: ${error.message}`;
});
