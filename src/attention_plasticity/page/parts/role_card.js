// The card "What this head does": its role, scores, rotary bands, and words that it attends to.

const SPACES = { " ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥" };
const UNSEEN = /[\p{C}\p{Z}]/u;

/** A token as text with visible spaces; other characters without a shape are named by their number. */
function tokenElement(text) {
  if (!text) return make("bdi", "no text", { class: "token quiet" });
  const parts = [];
  for (const character of text) {
    if (!UNSEEN.test(character)) {
      if (typeof parts.at(-1) === "string") parts[parts.length - 1] += character;
      else parts.push(character);
    } else parts.push(make("span", SPACES[character] ?? `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`, { class: "unseen-character" }));
  }
  return make("bdi", "", { class: "token" }, parts);
}

/** Texts, scores and words. The chart is drawn by `drawBands`. */
function showRoleCard(run, other, key) {
  const row = run.ranges.roles.get(key)?.[0];
  byId("role-panel").hidden = row === undefined;
  byId("head-role").replaceChildren(...(row === undefined ? [] : [roleMark(run, key)]));
  if (row === undefined) return;
  byId("role-sentence").textContent = run.texts[run.tables.roles.columns.text[row]].replace(/ (?=[±%])|(?<=±) /g, "\u00a0"); // a number stays in one line
  byId("role-note").textContent = run.roles.has_intervals ? "±: half of the 95 % interval over texts" : "intervals are not known";
  showScores(run, other?.roles ? other : null, key);
  showWords(run, key);
}

function scoreOf(run, key, name) {
  const row = run.ranges.roles.get(key)?.[0], columns = run.tables.roles?.columns ?? {};
  return row === undefined ? { value: NaN, half: NaN } : { value: columns[name]?.[row] ?? NaN, half: columns[`${name}_half_width`]?.[row] ?? NaN };
}

const showScore = (value, decimals) => {
  if (decimals === null || !Number.isFinite(value)) return show(value);
  const text = Math.abs(value).toFixed(decimals);
  return value < 0 && Number(text) ? MINUS + text : text;
};

/** The table of scores. A score on texts has no threshold if the score on repeated tokens decides. */
function showScores(run, other, key) {
  const names = new Set(run.tables.roles.names), { thresholds } = run.roles;
  const replaced = (name) => Number.isFinite(scoreOf(run, key, name.replace(/(\w+)_excess$/, "repeated_$1")).value) && name.endsWith("_excess");
  const head = ["score", "value", "95 % interval", "threshold", ...(other ? [other.label] : [])];
  const rows = page.roles.scores.filter(({ name }) => names.has(name)).map(({ name, label, meaning, decimals }) => {
    const { value, half } = scoreOf(run, key, name), interval = Number.isFinite(half) ? `${showScore(value - half, decimals)} to ${showScore(value + half, decimals)}` : NONE;
    const limit = name in thresholds && !replaced(name) ? String(thresholds[name]) : "";
    const cells = [make("td", showScore(value, decimals), { class: "value" }), make("td", interval), make("td", limit)];
    if (other) cells.push(make("td", showScore(scoreOf(other, key, name).value, decimals), { class: "value other" }));
    const reached = limit !== "" && value >= thresholds[name];
    return make("tr", "", { "data-score": name, ...(reached ? { class: "reached" } : {}) }, [make("th", capital(label), { scope: "row", title: meaning }), ...cells]);
  });
  byId("role-scores").replaceChildren(make("thead", "", {}, [make("tr", "", {}, head.map((text) => make("th", text, { scope: "col" })))]), make("tbody", "", {}, rows));
}

const WORD_NOTES = {
  strongest: "queries with the largest weights, without those that attend to the first token of a text",
  typical: "queries at five quantiles of the largest weight, from 10 % to 90 %",
};

function showWords(run, key) {
  const range = run.ranges.words.get(key), why = run.roles.why_no_words || (range ? "" : "no query of this head has a known token");
  byId("no-words").hidden = !why;
  byId("no-words").textContent = why ? `Words are not shown: ${why}.` : "";
  const lists = why ? [] : page.roles.kinds.map((kind, number) => wordList(run, kind, number, rowsOfHead(run, "words", key)));
  byId("word-lists").replaceChildren(...lists.filter(Boolean));
}

/** One list: the token of the query, the token that it attends to most, their distance, and the weight. */
function wordList(run, kind, number, rows) {
  const places = [...rows.kind.keys()].filter((i) => rows.kind[i] === number);
  if (!places.length) return null;
  const head = ["query", "attends to", "distance", "weight"].map((text) => make("th", text, { scope: "col" }));
  const lines = places.map((i) => make("tr", "", {}, [
    make("td", "", {}, [tokenElement(run.texts[rows.query[i]])]), make("td", "", {}, [tokenElement(run.texts[rows.key[i]]), ...(rows.on_first[i] ? [make("span", " first token", { class: "quiet" })] : [])]),
    make("td", whole(rows.distance[i])), make("td", rows.weight[i].toFixed(3)),
  ]));
  return make("section", "", { class: "word-list", "data-kind": kind }, [
    make("h3", capital(kind)), make("p", WORD_NOTES[kind], { class: "quiet" }),
    make("table", "", { class: "words" }, [make("thead", "", {}, [make("tr", "", {}, head)]), make("tbody", "", {}, lines)]),
  ]);
}

function drawBands(run, key) {
  const known = run.ranges.bands.has(key) && run.ranges.roles.has(key), figure = byId("bands-figure");
  if (figure.hidden) sizes.delete(byId("bands")); // the size of a hidden element is zero
  figure.hidden = !known;
  if (!known) return Promise.resolve();
  const { wavelength, variance_share: shares } = rowsOfHead(run, "bands", key), most = shares.indexOf(Math.max(...shares.filter(Number.isFinite)));
  byId("bands").setAttribute("aria-label", most < 0 ? "Rotary bands of this head" : `Rotary bands of this head; the largest share of the variance, ${show(shares[most])}, has a wavelength of ${show(wavelength[most])} tokens`);
  return draw("bands", bandsFigure(run, key));
}

/** Two panels over the wavelength: size of the band in logits, and its share of the variance. Bands that do not turn are left out. */
function bandsFigure(run, key) {
  const rows = rowsOfHead(run, "bands", key), turning = [...rows.band.keys()].filter((i) => Number.isFinite(rows.wavelength[i]) && rows.wavelength[i] > 0);
  turning.sort((a, b) => rows.wavelength[a] - rows.wavelength[b]);
  const trace = (name, words, color, yaxis) => {
    const half = turning.map((i) => rows[`${name}_half_width`]?.[i] ?? NaN);
    return {
      x: turning.map((i) => rows.wavelength[i]), y: turning.map((i) => rows[name][i]), yaxis, name: words, mode: "lines+markers", line: { color, width: 1 }, marker: { color, size: 5 },
      error_y: { type: "data", array: half.map((value) => (Number.isFinite(value) ? value : 0)), visible: half.some(Number.isFinite), color, thickness: 1.2, width: 2 },
      text: turning.map((i) => `band ${rows.band[i]}, wavelength ${show(rows.wavelength[i])} tokens`), hovertemplate: `<b>%{y:.3~g}</b> ${words}<br>%{text}<extra></extra>`,
    };
  };
  const axis = { ...baseAxis(), showline: true, nticks: 4 }, context = contextOf(run);
  const title = (text, y) => ({ text, x: 0, y, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 11.5, color: theme.quiet } });
  return {
    traces: [trace("norm_product", "size (logits)", theme.one, "y"), trace("variance_share", "share of the variance", theme.two, "y2")],
    names: { x: "wavelength (tokens per turn)", y: "" },
    layout: {
      margin: { l: 48, r: 10, t: 20, b: 42 }, hovermode: "closest",
      annotations: [title("size (logits)", 1), title("share of the variance of the logit", 0.44)],
      shapes: Number.isFinite(context) ? [{ name: "context", type: "line", xref: "x", yref: "paper", x0: context, x1: context, y0: 0, y1: 1, line: { color: theme.quiet, width: 1, dash: "dash" } }] : [],
      xaxis: { ...baseAxis(), type: "log", anchor: "y2", showgrid: false, showline: true, ticks: "outside", ticklen: 4, dtick: 1, tickformat: ",d" },
      yaxis: { ...axis, domain: [0.58, 1], rangemode: "tozero" }, yaxis2: { ...axis, domain: [0, 0.44] },
    },
  };
}
