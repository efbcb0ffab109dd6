// The card "Drift with position": numbers of the selected head, each with its place among all heads.

/** A number of the table of drift with half of its 95 % interval; NaN if it is not known. */
function driftOf(run, key, name) {
  const row = run.ranges.drift.get(key)?.[0], columns = run.tables.drift?.columns ?? {};
  return row === undefined ? { value: NaN, half: NaN } : { value: columns[name]?.[row] ?? NaN, half: columns[`${name}_half_width`]?.[row] ?? NaN };
}

function showDrift({ value, half }, decimals) {
  const places = decimals ?? 2, text = (number) => (Math.abs(number) >= 1e4 ? show(number) : showScore(number, places));
  if (!Number.isFinite(value)) return NONE;
  return Number.isFinite(half) ? `${text(value)} ± ${text(half)}` : text(value);
}

/** Mean, quartiles and range of a number over heads; null if no head has it. */
function driftSpread(run, name) {
  const place = `drift ${name}`;
  if (!run.spreads.has(place)) run.spreads.set(place, spreadAmong(run.tables.drift.columns[name] ?? []));
  return run.spreads.get(place);
}

function showDriftCard(run, other, key) {
  const known = run.ranges.drift.has(key);
  byId("drift-panel").hidden = !known;
  if (!known) return;
  const context = contextOf(run), over = Number.isFinite(context) ? ` over ${plural(context, "token")}` : " over the context";
  const bars = make("span", "; bar: range over heads; shaded: middle 50 %; line: mean; dot: this head", { class: "where" });
  const halves = run.tables.drift.names.some((name) => name.endsWith("_half_width")) ? "; ±: half of the 95 % interval over texts" : "";
  byId("drift-note").replaceChildren(`change of the mean logit:${over}, the longest text${halves}`, bars, other?.tables.drift ? `; orange: ${other.label}` : "");
  byId("drift-tables").replaceChildren(...page.drift.kinds.map(([kind, words]) => driftTable(run, other?.tables.drift ? other : null, key, kind, words)));
}

/** The numbers of queries or of keys: after RoPE, and before it if that is known. */
function driftTable(run, other, key, kind, words) {
  const frames = page.drift.frames.filter(([ending]) => page.drift.rows.some(({ name }) => driftSpread(run, `${kind}_${name}${ending}`)));
  const head = [make("th", capital(words), { scope: "col" }), ...frames.map(([, label]) => make("th", label, { scope: "col" }))];
  const rows = page.drift.rows.map(({ name, label, meaning, decimals }) => {
    const cells = frames.map(([ending]) => driftCell(run, other, key, `${kind}_${name}${ending}`, decimals));
    return make("tr", "", {}, [make("th", capital(label), { scope: "row", title: meaning }), ...cells]);
  });
  return make("table", "", { class: "scores" }, [make("thead", "", {}, [make("tr", "", {}, head)]), make("tbody", "", {}, rows)]);
}

/** A cell with the place of a number among all heads, and the number. */
function driftCell(run, other, key, column, decimals) {
  const found = driftOf(run, key, column), spread = driftSpread(run, column), dot = make("i", "", { class: "dot" });
  placeDot(dot, spread, found.value);
  const where = make("span", "", { class: "where" }, [strip(spread, (value) => showDrift({ value, half: NaN }, decimals), [dot])]);
  const number = fillEstimate(make("span", "", { "data-drift": column }), showDrift(found, decimals));
  if (other) number.append(make("span", ` ${showDrift({ value: driftOf(other, key, column).value, half: NaN }, decimals)}`, { class: "other", title: other.label }));
  return make("td", "", { class: "value" }, [make("div", "", {}, [where, number])]);
}
