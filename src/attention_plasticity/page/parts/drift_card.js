// The card "Drift with position": numbers of the selected head, and its queries and keys on two components.

/** A number of the table of drift with half the width of its interval; NaN if it is not known. */
function driftOf(run, key, name) {
  const row = run.ranges.drift.get(key)?.[0], columns = run.tables.drift?.columns ?? {};
  return row === undefined ? { value: NaN, half: NaN } : { value: columns[name]?.[row] ?? NaN, half: columns[`${name}_half_width`]?.[row] ?? NaN };
}

function showDrift({ value, half }, decimals) {
  const places = decimals ?? 2, text = (number) => (Math.abs(number) >= 1e4 ? show(number) : showScore(number, places));
  if (!Number.isFinite(value)) return NONE;
  return Number.isFinite(half) ? `${text(value)}\u00a0±\u00a0${text(half)}` : text(value);
}

/** Texts and numbers. The points are drawn by `drawPoints`. */
function showDriftCard(run, other, key) {
  const known = run.ranges.drift.has(key);
  byId("drift-panel").hidden = !known;
  if (!known) return;
  const context = contextOf(run), over = Number.isFinite(context) ? ` over ${plural(context, "token")}` : "";
  byId("drift-note").textContent = `logits: change${over}, the longest text${run.drift.has_intervals ? "; ± is half the width of the 95 % interval over texts" : ""}${other?.drift ? `; orange: ${other.label}` : ""}`;
  byId("drift-values").replaceChildren(...page.drift.kinds.flatMap(([kind, words]) => driftRows(run, other?.drift ? other : null, key, kind, words)));
  showPointWords(run, key);
}

/** The part of the table for queries or for keys: a heading and its rows. */
function driftRows(run, other, key, kind, words) {
  const head = [make("th", capital(words), { scope: "col" }), ...page.drift.frames.map(([, label]) => make("th", label, { scope: "col" }))];
  const rows = page.drift.rows.map(({ name, label, meaning, beside, decimals }) => {
    const cells = page.drift.frames.map(([ending]) => {
      const column = `${kind}_${name}${ending}`, second = beside ? `, ${showDrift(driftOf(run, key, `${kind}_${beside}${ending}`), decimals)}` : "";
      const cell = make("td", showDrift(driftOf(run, key, column), decimals) + second, { "data-drift": column, ...(name === "drift_r" ? { class: "value" } : {}) });
      if (other) cell.append(make("span", ` ${showDrift({ value: driftOf(other, key, column).value, half: NaN }, decimals)}`, { class: "other", title: other.label }));
      return cell;
    });
    return make("tr", "", {}, [make("th", capital(label), { scope: "row", title: meaning }), ...cells]);
  });
  return [make("thead", "", {}, [make("tr", "", {}, head)]), make("tbody", "", {}, rows)];
}

/** The frames in which the points of a head are known: before RoPE, after RoPE. */
function framesOf(run, key) {
  const scales = rowsOfHead(run, "scales", key);
  return page.drift.points.filter(({ name }) => scales?.[`${name}_scale`].every(Number.isFinite));
}

/** The chosen frame, or the other one if the points of this head are not known in it. */
function frameShown(run, key) {
  const known = framesOf(run, key);
  return known.find(({ name }) => name === state.points) ?? known[0];
}

/** Whether both frames are equal, because the layer has no RoPE. */
function framesAreEqual(run, key) {
  if (framesOf(run, key).length < 2) return false;
  const rows = rowsOfHead(run, "points", key), scales = rowsOfHead(run, "scales", key);
  const equal = (one, other) => one.every((value, i) => value === other[i]);
  return equal(scales.before_scale, scales.after_scale) && equal(rows.before_x, rows.after_x) && equal(rows.before_y, rows.after_y);
}

/** Where the shown points are, in words. */
const frameWords = (run, key) => (framesAreEqual(run, key) ? "without RoPE" : frameShown(run, key).words);

function showPointWords(run, key) {
  const known = framesOf(run, key).length > 0, pair = byId("points-pair");
  if (pair.hidden) for (const kind of ["q", "k"]) sizes.delete(byId(`points-${kind}`)); // the size of a hidden element is zero
  pair.hidden = !known;
  byId("points-frame-label").hidden = framesOf(run, key).length < 2 || framesAreEqual(run, key);
  byId("points-note").textContent = known ? pointsNote(run, key) : `Points are not shown: ${run.drift.points ? "the vectors of this head do not vary" : "the analysis kept none; analyze with --points_per_head 1000"}.`;
  if (!known) return;
  byId("points-frame").value = frameShown(run, key).name;
  for (const bar of document.querySelectorAll(".points-bar")) bar.style.background = gradient(VIRIDIS);
  for (const end of document.querySelectorAll(".points-end")) end.textContent = whole(run.drift.last);
}

const FRAME_NOTES = {
  before: "before RoPE, which is the content of the vectors",
  after: "after RoPE, as the attention compares them",
};

function pointsNote(run, key) {
  const { name } = frameShown(run, key), unknown = page.drift.points.find((frame) => !framesOf(run, key).includes(frame));
  const outside = rowsOfHead(run, "scales", key)[`${name}_outside`].reduce((sum, number) => sum + number, 0);
  return [
    framesAreEqual(run, key) ? "without RoPE, which this layer does not have" : FRAME_NOTES[name],
    ...(unknown ? [`the points ${unknown.words} are not known`] : []),
    "a point is a query or a key, its colour the position in tokens", "components 0 and 1 are the directions in which they vary most",
    ...(outside ? [`${plural(outside, "point")} far from all others ${outside === 1 ? "is" : "are"} left out`] : []),
  ].join("; ");
}

function drawPoints(run, key) {
  const frame = frameShown(run, key);
  if (!frame) return [];
  return page.drift.kinds.map(([kind, words]) => {
    const r = driftOf(run, key, `${kind}_drift_r${frame.ending}`);
    byId(`points-${kind}`).setAttribute("aria-label", `${capital(words)} of this head ${frameWords(run, key)} on two principal components, coloured by position; correlation of the drift with position ${showDrift(r, 3)}`);
    return draw(`points-${kind}`, pointsFigure(run, key, kind));
  });
}

/** The end of the name of a saved picture of points. */
const pointsFile = (run, key) => (frameShown(run, key).name === "after" ? "-after-rope" : "");

/** Queries or keys of a head. The order of points is random, so that no colour covers the others. */
function pointsFigure(run, key, kind) {
  const rows = rowsOfHead(run, "points", key), number = kind === "q" ? 0 : 1, scales = rowsOfHead(run, "scales", key);
  const { name, ending } = frameShown(run, key), x = rows[`${name}_x`], y = rows[`${name}_y`];
  const scale = scales[`${name}_scale`][scales.kind.indexOf(number)];
  const own = [...rows.kind.keys()].filter((i) => rows.kind[i] === number && x[i] <= page.drift.largest); // others are far from all
  const place = (value) => scale * ((2 * value) / page.drift.largest - 1);
  const trace = {
    x: own.map((i) => place(x[i])), y: own.map((i) => place(y[i])), customdata: own.map((i) => whole(rows.position[i])), mode: "markers",
    marker: { color: own.map((i) => rows.position[i]), colorscale: stopsOf(VIRIDIS), cmin: 0, cmax: Math.max(1, run.drift.last), size: 4.5, opacity: 0.8, line: { color: theme.quiet, width: 0.4 } },
    hovertemplate: "position <b>%{customdata}</b><extra></extra>",
  };
  const axis = { ...baseAxis(), showline: true, nticks: 5 };
  const words = (component) => {
    const share = driftOf(run, key, `${kind}_pc${component}_share${ending}`).value, r = driftOf(run, key, `${kind}_pc${component}_r${ending}`).value;
    return `component ${component}${Number.isFinite(share) ? `: ${(100 * share).toFixed(0)} %` : ""}${Number.isFinite(r) ? `, |r| ${r.toFixed(2)}` : ""}`;
  };
  return {
    traces: [trace], bar: { label: "position (tokens)" }, names: { x: words(0), y: words(1) }, note: `${kind === "q" ? "queries" : "keys"} ${frameWords(run, key)}`,
    layout: { margin: { l: 54, r: 8, t: 8, b: 42 }, hovermode: "closest", xaxis: { ...axis, ticks: "outside", ticklen: 4 }, yaxis: axis },
  };
}
