// Profiles over the context: of the selected head, with the number of texts per bucket, and of every run.

/** Whether profiles can be shown over shares of the context: only if the contexts are known and differ. */
function axisIsChoice(shown) {
  const contexts = shown.map((run) => (run.unit === "tokens" ? contextOf(run) : NaN));
  return contexts.every(Number.isFinite) && Math.max(...contexts) > 1.01 * Math.min(...contexts);
}

const isShareAxis = (shown) => state.axis === "share" && axisIsChoice(shown);

/** The x positions of buckets: mean positions, else starts or numbers. */
function positionsOf(run, rows) {
  if (rows.q_position) return Array.from(rows.q_position);
  const { bucket, start } = run.tables.places.columns;
  return Array.from(rows.q_bucket, (number) => start[bucket.indexOf(number)]);
}

/** Positions as drawn: tokens, or percent of the context of the run. */
function placesOf(run, rows, shown) {
  const positions = positionsOf(run, rows);
  return isShareAxis(shown) ? positions.map((position) => (100 * position) / contextOf(run)) : positions;
}

/** One axis for all shown runs: from the start to the end of the longest context. */
function positionAxis(shown, width) {
  const share = isShareAxis(shown), inTokens = shown.every((run) => run.unit === "tokens");
  const axis = { ...baseAxis(), nticks: Math.min(8, Math.ceil(width / 85)), showgrid: false, showline: true, ticks: "outside", ticklen: 4, tickformat: ",d" };
  if (shown.some((run) => run.log)) {
    const step = Math.log10(shown[0].tables.mean.rows > 8 ? 4 : 2);
    return { ...axis, type: "log", dtick: step, ...(share ? { tick0: 2, tickformat: ".3~g", ticksuffix: " %" } : {}) };
  }
  const end = share ? 100 : inTokens ? Math.max(...shown.map(contextOf)) : NaN;
  return { ...axis, ...(Number.isFinite(end) ? { range: [0, 1.01 * end] } : { rangemode: "tozero" }), ...(share ? { ticksuffix: " %" } : {}) };
}

function positionName(shown) {
  if (isShareAxis(shown)) return "query position (share of the context)";
  return shown.every((run) => run.unit === "tokens") ? "query position (tokens)" : "query bucket";
}

const plasticityAxis = () => ({ ...baseAxis(), range: [-0.02, 1.04], tickvals: [0, 0.25, 0.5, 0.75, 1] });

function showAxisChoice(shown) {
  for (const [id, runsOfChart] of [["profile-axis", shown], ["runs-axis", runs]]) {
    byId(`${id}-label`).hidden = !axisIsChoice(runsOfChart);
    byId(id).value = state.axis;
  }
}

function drawProfile(run, other, key) {
  byId("profile").setAttribute("aria-label", profileWords(run, key));
  return draw("profile", profileFigure(run, other, key, sizeOf(byId("profile")).width));
}

/** The selected head, the mean of heads, and the same head of the other run, or its mean if heads do not correspond. */
function profileFigure(run, other, key, width) {
  const shown = [run, other].filter(Boolean), rows = rowsOfHead(run, "profiles", key), mean = meanProfile(run);
  const traces = [...(mean ? meanTraces(run, mean, shown) : []), ...baselineTraces(run, shown)];
  if (rows) traces.push(...intervalTraces("interval of the head", placesOf(run, rows, shown), rows, theme.one));
  if (rows?.pooled) traces.push(...pooledTraces(run, rows, shown));
  if (other && !headsBeside()) traces.push(...otherMeanTraces(other, shown));
  else if (other) traces.push(headTrace(other, key, shown, theme.two, "dash", plain(other.label), `the same head, ${plain(other.label)}`));
  traces.push(headTrace(run, key, shown, theme.one, "solid", "this head", headName(...key.split(".")).toLowerCase().replace(" ·", ",") + bandWords(rows ?? {})));
  const texts = rows ? textsTraces(run, rows, shown, width) : [];
  const xaxis = positionAxis(shown, width);
  return {
    traces: [...texts, ...traces], names: { x: positionName(shown), y: axisName(shown) },
    layout: {
      margin: CHART_MARGIN, hovermode: "x unified", hoverdistance: -1,
      xaxis: texts.length ? { ...xaxis, anchor: "y2" } : xaxis,
      yaxis: { ...plasticityAxis(), ...(texts.length ? { domain: [0.17, 1] } : {}) },
      ...(texts.length ? { yaxis2: { ...baseAxis(), domain: [0, 0.11], range: [0, 1], tickvals: [0.5], ticktext: ["texts"], showgrid: false } } : {}),
    },
  };
}

/** The name of the axis of plasticity; runs of both kinds have no common words. */
const axisName = (shown) => (new Set(shown.map((run) => run.at_one_position)).size > 1 ? "plasticity" : cellsWords(shown[0]));

/** Plasticity over a bin of the selected head, for the same pairs and queries as captured. */
function pooledTraces(run, rows, shown) {
  const x = placesOf(run, rows, shown), pooled = { plasticity: rows.pooled, half_width: rows.pooled_half_width };
  return [
    ...intervalTraces("interval over a bin", x, pooled, theme.one, "18"),
    {
      x, y: rows.pooled, mode: "lines", connectgaps: false, line: { color: theme.one, width: 1.5, dash: "dot" }, name: `over a bin, with rotary phase${bandWords(pooled)}`,
      text: intervalTexts(pooled), hovertemplate: "%{y:.3f} over a bin, with rotary phase%{text}<extra></extra>",
    },
  ];
}

function meanTraces(run, mean, shown) {
  const x = placesOf(run, mean, shown);
  const hidden = { hoverinfo: "skip", mode: "lines", line: { width: 0 }, showlegend: false };
  return [
    { ...hidden, x, y: Array.from(mean.low) },
    { ...hidden, x, y: Array.from(mean.high), fill: "tonexty", fillcolor: theme.band, name: "middle 50 % of heads", showlegend: true },
    ...intervalTraces("interval of the mean", x, mean, theme.mean),
    {
      x, y: Array.from(mean.plasticity), mode: "lines", line: { color: theme.mean, width: 2 }, name: meanWords(run) + bandWords(mean),
      customdata: Array.from(mean.low, (low, i) => [low, mean.high[i]]), text: intervalTexts(mean),
      hovertemplate: "%{y:.3f} mean of heads; middle 50 %: %{customdata[0]:.3f}–%{customdata[1]:.3f}%{text}<extra></extra>",
    },
  ];
}

function otherMeanTraces(other, shown) {
  const mean = meanProfile(other);
  if (!mean) return [];
  const x = placesOf(other, mean, shown), name = `${meanWords(other)}, ${plain(other.label)}`;
  return [
    ...intervalTraces("interval of the other mean", x, mean, theme.two),
    {
      x, y: Array.from(mean.plasticity), mode: "lines", line: { color: theme.two, width: 2, dash: "dash" }, name,
      text: intervalTexts(mean), hovertemplate: `%{y:.3f} ${name}%{text}<extra></extra>`,
    },
  ];
}

function headTrace(run, key, shown, color, dash, words, name) {
  const rows = rowsOfHead(run, "profiles", key);
  if (!rows) return { x: [], y: [], hoverinfo: "skip", showlegend: false };
  const intervals = intervalTexts(rows);
  const texts = Array.from(rows.plasticity, (_, i) => (Number.isFinite(rows.n_texts?.[i]) ? `<br>${plural(rows.n_texts[i], "text")}` : ""));
  return {
    x: placesOf(run, rows, shown), y: rows.plasticity, mode: "lines+markers", connectgaps: false, name,
    line: { color, width: 2.5, dash }, marker: { color, size: 5.5 },
    text: intervals, customdata: texts, hovertemplate: `<b>%{y:.3f}</b> ${words}%{text}%{customdata}<extra></extra>`,
  };
}

/** Borders of the buckets of some rows as drawn. Without known borders they are midway between positions. */
function bucketSpans(run, rows, shown) {
  const { bucket, start, end } = run.tables.places.columns;
  const share = isShareAxis(shown) ? 100 / contextOf(run) : 1, last = contextOf(run);
  if (end) return rows.q_bucket.map((number) => {
    const place = bucket.indexOf(number), stop = end[place] + 1;
    return [share * Math.max(start[place], run.log ? 1 : 0), share * (last > start[place] ? Math.min(stop, last) : stop)];
  });
  const x = placesOf(run, rows, shown);
  const middle = (i) => (x[i] + x[i + 1]) / 2;
  return x.map((place, i) => [i ? middle(i - 1) : Math.max(0, 2 * place - middle(0)), i < x.length - 1 ? middle(i) : 2 * place - middle(i - 1)]);
}

/** The strip below the profile: the number of texts with queries of this head in each bucket. Numbers without room are left out. */
function textsTraces(run, rows, shown, width) {
  if (!rows.n_texts?.some(Number.isFinite) || rows.n_texts.length < 2) return [];
  const spans = bucketSpans(run, rows, shown), most = Math.max(...rows.n_texts.filter(Number.isFinite));
  const step = Math.ceil((spans.length * (7 * whole(most).length + 2)) / (width - CHART_MARGIN.l - CHART_MARGIN.r));
  const edges = [spans[0][0]], z = [], text = [], hover = [];
  spans.forEach(([first, stop], i) => {
    if (first > edges.at(-1) * 1.0001) { edges.push(first); z.push(null); text.push(""); hover.push(""); }
    const known = Number.isFinite(rows.n_texts[i]);
    edges.push(stop);
    z.push(known ? rows.n_texts[i] : null);
    text.push(known && (spans.length - 1 - i) % step === 0 ? whole(rows.n_texts[i]) : "");
    hover.push(known ? `<b>${plural(rows.n_texts[i], "text")}</b> with queries of this head at ${queriesWords(run, rows.q_bucket[i], rows.q_position?.[i], run.tables.places)}` : "");
  });
  return [{
    type: "heatmap", name: "texts", x: edges, y: [0, 1], z: [z], text: [text], customdata: [hover], xaxis: "x", yaxis: "y2", xgap: 1, showscale: false, showlegend: false,
    zmin: 0, zmax: most, colorscale: [[0, theme.panel], [1, theme.texts]], texttemplate: "%{text}", textfont: { size: 10, color: theme.ink },
    hovertemplate: "%{customdata}<extra></extra>", hoverongaps: false,
  }];
}

const bandWords = ({ half_width: half }) => (half?.some(Number.isFinite) ? ", 95 % interval" : "");

/** A line of text per interval; empty where it is not known. */
const intervalTexts = ({ plasticity, half_width: half }) => Array.from(plasticity, (value, i) =>
  (Number.isFinite(half?.[i]) ? `<br>95 % interval: ${showShare(value - half[i])} to ${showShare(value + half[i])}` : ""));

/** The band of 95 % intervals, one shape per unbroken series of known intervals. */
function intervalTraces(name, x, { plasticity, half_width: half }, color, alpha = "44") {
  const shape = { x: [], y: [] };
  let start = 0;
  for (let i = 0; i <= x.length; i++) {
    if (Number.isFinite(half?.[i]) && i < x.length) continue;
    const there = Array.from({ length: i - start }, (_, step) => start + step), back = [...there].reverse();
    if (there.length) {
      shape.x.push(...[...there, ...back, start].map((j) => x[j]), null);
      shape.y.push(...there.map((j) => plasticity[j] + half[j]), ...back.map((j) => plasticity[j] - half[j]), plasticity[start] + half[start], null);
    }
    start = i + 1;
  }
  if (!shape.x.length) return [];
  return [{ ...shape, name, mode: "lines", hoverinfo: "skip", fill: "toself", fillcolor: color + alpha, line: { color: color + alpha, width: 1 }, showlegend: false }];
}

function showProfileKeys(run, other, key) {
  const entry = (colour, text, kind = "") => {
    const line = make("i", "", kind ? { class: kind } : {});
    line.style[kind === "band" ? "background" : "borderColor"] = colour;
    return make("span", "", {}, [line, text]);
  };
  const rows = rowsOfHead(run, "profiles", key), mine = rows?.half_width?.some(Number.isFinite), mean = meanProfile(run);
  const ofMean = mean?.half_width?.some(Number.isFinite);
  const withBand = (colour, text, known) => {
    const made = entry(colour, text + (known ? ", 95 % interval" : ""));
    if (known) made.firstChild.style.boxShadow = `0 -4px ${colour}44, 0 4px ${colour}44`;
    return made;
  };
  byId("profile-note").textContent = profileNotes(run, rows, mine || ofMean, ofMean).join("; ");
  const entries = [withBand(theme.one, `this head${run.at_one_position ? ", at one position" : ""}`, mine)];
  if (rows?.pooled) entries.push(entry(theme.one, "this head, over a bin (with rotary phase)", "dotted"));
  if (other) entries.push(entry(theme.two, otherWords(other, key), "dashed"));
  if (mean) entries.push(withBand(theme.mean, meanWords(run), ofMean), entry(theme.band, "middle 50 % of heads", "band"));
  for (const baseline of drawnBaselines(run)) entries.push(entry(baselineColour(baseline), `${baseline.words}, mean of heads`, ["dashed", "dotted"][baseline.look]));
  byId("profile-keys").replaceChildren(...entries);
}

/** What is said about intervals, and about bins without a value. */
function profileNotes(run, rows, intervals, ofMean) {
  const notes = intervals ? [`intervals over texts${ofMean && eligibleHeads(run) !== null ? ", that of the mean also over heads" : ""}`] : [];
  if (run.at_one_position && rows?.plasticity.some(Number.isNaN)) notes.push(`bins with fewer than ${page.fewest_texts} texts, or too few pairs of keys, are not drawn`);
  return notes;
}

function otherWords(other, key) {
  if (!headsBeside()) return meanProfile(other) ? `${meanWords(other)}, ${other.label}` : `${other.label}: no such layers`;
  return other.ranges.profiles.has(key) ? `same head, ${other.label}` : `${other.label}: ${absentWords(other, key.split(".")[0])}`;
}

function profileWords(run, key) {
  const rows = rowsOfHead(run, "profiles", key), known = (rows?.plasticity ?? []).filter(Number.isFinite);
  if (!known.length) return "Profile of this head: no values";
  const texts = (rows.n_texts ?? []).filter(Number.isFinite);
  const counts = texts.length ? `; ${plural(texts[0], "text")} in the first ${partWord(run)}, ${whole(texts.at(-1))} in the last` : "";
  return `Profile of this head: ${cellsWords(run)} from ${show(known[0])} at the start to ${show(known.at(-1))} at the end of the context${counts}`;
}

const drawRuns = () => draw("runs-chart", runsFigure(sizeOf(byId("runs-chart")).width));

function runsFigure(width) {
  const bands = [], lines = [];
  runs.forEach((run, i) => {
    const mean = meanProfile(run), color = colourOfRun(i);
    if (!mean) return;
    const x = placesOf(run, mean, runs);
    bands.push(...intervalTraces("interval", x, mean, color, "2e"));
    lines.push({
      x, y: Array.from(mean.plasticity), mode: "lines+markers", marker: { size: 5 }, text: intervalTexts(mean), name: plain(run.label),
      line: { color, width: 2.5 }, hovertemplate: `<b>%{y:.3f}</b> ${plain(run.label)}%{text}<extra></extra>`,
    });
  });
  return {
    traces: [...bands, ...lines], names: { x: positionName(runs), y: axisName(runs) },
    layout: { margin: CHART_MARGIN, hovermode: "closest", xaxis: positionAxis(runs, width), yaxis: plasticityAxis() },
  };
}

/** The selected run and the compared run have fixed colours. */
function colourOfRun(number) {
  if (number === state.run) return theme.one;
  if (number === state.beside) return theme.two;
  return theme.runs[number % theme.runs.length];
}
