// What is selected, and how every view follows it.

const page = JSON.parse(byId("page-data").textContent);
const state = { run: 0, beside: null, layer: 0, head: 0, metric: "ap_overall" };
let runs = [];

const runShown = () => runs[state.run];
const runBeside = () => (state.beside === null ? null : runs[state.beside]);
const runsShown = () => [runShown(), runBeside()].filter(Boolean);

/** The head to begin with: the one that stiffens most, or the first. */
function firstHead(run) {
  const { layer, q_head: head, ap_drop: drop } = run.tables.heads.columns;
  let best = 0;
  for (let row = 1; drop && row < drop.length; row++) if (drop[row] > drop[best] || Number.isNaN(drop[best])) best = row;
  return { layer: layer[best], head: head[best] };
}

/** Take over what the address says, as far as the runs have it. */
function readAddress(address) {
  const said = new URLSearchParams(new URL(address).hash.slice(1));
  const numberOf = (name) => {
    const number = said.has(name) ? Number(said.get(name)) : NaN;
    return runs[number] ? number : null;
  };
  state.run = numberOf("run") ?? 0;
  state.beside = numberOf("beside");
  if (state.beside === state.run) state.beside = null;
  const metric = said.get("metric");
  state.metric = runShown().tables.heads.names.includes(metric) ? metric : "ap_overall";
  const key = said.get("head");
  if (runShown().rowOf.has(key)) [state.layer, state.head] = key.split(".").map(Number);
  else Object.assign(state, firstHead(runShown()));
}

function writeAddress() {
  const said = new URLSearchParams({ run: state.run, head: keyOf(state.layer, state.head), metric: state.metric });
  if (state.beside !== null) said.set("beside", state.beside);
  try { history.replaceState(null, "", `#${said}`); } catch { /* inside a notebook there is no address */ }
}

/** Select a head; `place` 1 is the map of the run beside. */
function select(key, place = 0) {
  if (!runsShown()[place].rowOf.has(key) || !runShown().rowOf.has(key)) return;
  [state.layer, state.head] = key.split(".").map(Number);
  drawHead();
}

function drawHead() {
  const run = runShown(), other = runBeside(), key = keyOf(state.layer, state.head);
  tellHead();
  mapPlots().forEach((plot, place) => markHead(plot, runsShown()[place], state.layer, state.head));
  return settle([drawProfile(run, other, key), drawCells(run, key), drawComponents(run, key)]);
}

/** All about the selected head that is not a chart. */
function tellHead() {
  revealSelected();
  showHead(runShown(), runBeside(), state);
  clearTimeout(tellHead.later);
  tellHead.later = setTimeout(writeAddress, 150); // slow, and refused when done too often
}

function drawMaps() {
  const shown = runsShown();
  const scale = scaleOf(state.metric, shown);
  const rows = Math.max(...shown.map((run) => run.grid[0]));
  byId("metric-meaning").textContent = capital(wordsOf(state.metric).meaning);
  showLegend(scale, state.metric);
  return mapPlots().map((plot, place) => drawMap(plot, shown[place], state.metric, scale, rows));
}

/** All that is not a chart. */
function tellAll() {
  const run = runShown(), other = runBeside();
  fillControls();
  showSubtitle(run, other);
  showCards(run, other);
  showWarnings(runsShown());
  showProvenance(runsShown());
  makeMaps(runsShown(), select);
  fillTable(run, other);
  if (runs.length > 1) showRunsTable(runs, run, switchRun);
}

function drawAll() {
  sizes.clear();
  tellAll();
  const charts = drawMaps();
  if (runs.length > 1) charts.push(drawRuns(runs));
  return settle([...charts, drawHead()]);
}

/** Mark the document when everything asked for so far is drawn. */
async function settle(charts) {
  document.documentElement.dataset.state = "drawing";
  const turn = (settle.turn = (settle.turn ?? 0) + 1);
  await Promise.all(charts);
  if (turn === settle.turn) document.documentElement.dataset.state = "ready";
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
    option("", "nothing", state.beside === null), ...others.map(([run, i]) => option(i, run.label, i === state.beside)));
  byId("metric").replaceChildren(...metricGroups(runShown()).map(([title, names]) =>
    make("optgroup", "", { label: title }, names.map((name) => option(name, wordsOf(name).label, name === state.metric)))));
  byId("download-head-components").disabled = !runShown().tables.components;
}

function switchRun(number) {
  if (number === state.beside) state.beside = state.run;
  state.run = number;
  const run = runShown();
  if (!run.tables.heads.names.includes(state.metric)) state.metric = "ap_overall";
  if (!run.rowOf.has(keyOf(state.layer, state.head))) Object.assign(state, firstHead(run));
  drawAll();
}

function wire() {
  byId("run").addEventListener("change", (event) => switchRun(Number(event.target.value)));
  byId("beside").addEventListener("change", (event) => {
    state.beside = event.target.value === "" ? null : Number(event.target.value);
    drawAll();
  });
  byId("metric").addEventListener("change", (event) => {
    state.metric = event.target.value;
    fillTable(runShown(), runBeside());
    settle([...drawMaps(), drawHead()]);
  });
  byId("theme").addEventListener("click", () => {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keepTheme(name);
    applyTheme(name);
    drawAll();
  });
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("head-panel").focus(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(savedTheme()); drawAll(); });
  addEventListener("hashchange", (event) => { readAddress(event.newURL); drawAll(); });
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
  let later;
  addEventListener("resize", () => {
    document.documentElement.dataset.state = "drawing";
    clearTimeout(later);
    later = setTimeout(drawAll, 120);
  });
  wireTable(runShown, select);
  wireDownloads(runShown);
}

/** Run a script, read off the main thread where the place we are in allows it. */
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
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot decompress it; use one of 2023 or later");
  const library = inflated("plotly").blob();
  runs = await Promise.all(page.runs.map(openRun));
  byId("notice").hidden = true;
  byId("main").hidden = false;
  readAddress(location.href);
  tellAll();
  tellHead();
  await painted(); // numbers can be read while the charts' library is being compiled
  await addScript(await library);
  wire();
  await drawAll();
  performance.mark("ready");
}

start().catch((error) => {
  console.error(error);
  byId("main").hidden = true;
  byId("notice").hidden = false;
  byId("notice").textContent = `The page cannot be shown: ${error.message}`;
});
