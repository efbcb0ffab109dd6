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

function showPointWords(run, key) {
  const known = run.ranges.points.has(key), pair = byId("points-pair");
  if (pair.hidden) for (const kind of ["q", "k"]) sizes.delete(byId(`points-${kind}`)); // the size of a hidden element is zero
  pair.hidden = !known;
  const outside = known ? rowsOfHead(run, "scales", key).outside.reduce((sum, number) => sum + number, 0) : 0;
  const why = run.drift.points ? "RoPE of this layer cannot be undone, or the vectors of this head do not vary" : "the analysis kept none; analyze with --points_per_head 1000";
  byId("points-note").textContent = known
    ? `before RoPE; a point is a query or a key, its colour the position in tokens; components 0 and 1 are the directions in which they vary most${outside ? `; ${plural(outside, "point")} far from all others ${outside === 1 ? "is" : "are"} left out` : ""}`
    : `Points are not shown: ${why}.`;
  for (const bar of document.querySelectorAll(".points-bar")) bar.style.background = gradient(VIRIDIS);
  for (const end of document.querySelectorAll(".points-end")) end.textContent = whole(run.drift.last);
}

function drawPoints(run, key) {
  if (!run.ranges.points.has(key)) return [];
  return ["q", "k"].map((kind) => {
    const r = driftOf(run, key, `${kind}_drift_r_unrotated`);
    byId(`points-${kind}`).setAttribute("aria-label", `${kind === "q" ? "Queries" : "Keys"} of this head before RoPE on two principal components, coloured by position; correlation of the drift with position ${showDrift(r, 3)}`);
    return draw(`points-${kind}`, pointsFigure(run, key, kind));
  });
}

/** Queries or keys of a head. The order of points is random, so that no colour covers the others. */
function pointsFigure(run, key, kind) {
  const rows = rowsOfHead(run, "points", key), number = kind === "q" ? 0 : 1, scales = rowsOfHead(run, "scales", key);
  const scale = scales.scale[scales.kind.indexOf(number)], own = [...rows.kind.keys()].filter((i) => rows.kind[i] === number);
  const place = (value) => scale * ((2 * value) / page.drift.largest - 1);
  const trace = {
    x: own.map((i) => place(rows.x[i])), y: own.map((i) => place(rows.y[i])), customdata: own.map((i) => whole(rows.position[i])), mode: "markers",
    marker: { color: own.map((i) => rows.position[i]), colorscale: stopsOf(VIRIDIS), cmin: 0, cmax: Math.max(1, run.drift.last), size: 4.5, opacity: 0.8, line: { color: theme.quiet, width: 0.4 } },
    hovertemplate: "position <b>%{customdata}</b><extra></extra>",
  };
  const axis = { ...baseAxis(), showline: true, nticks: 5 };
  const words = (component) => {
    const share = driftOf(run, key, `${kind}_pc${component}_share_unrotated`).value, r = driftOf(run, key, `${kind}_pc${component}_r_unrotated`).value;
    return `component ${component}${Number.isFinite(share) ? `: ${(100 * share).toFixed(0)} %` : ""}${Number.isFinite(r) ? `, |r| ${r.toFixed(2)}` : ""}`;
  };
  return {
    traces: [trace], bar: { label: "position (tokens)" }, names: { x: words(0), y: words(1) },
    layout: { margin: { l: 54, r: 8, t: 8, b: 42 }, hovermode: "closest", xaxis: { ...axis, ticks: "outside", ticklen: 4 }, yaxis: axis },
  };
}
