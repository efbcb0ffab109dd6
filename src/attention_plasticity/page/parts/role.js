// The card "What this head does": its role, scores, rotary bands, and words that it attends to.

import { byId, capital, fillTable, make, NONE, show, showTo, whole } from "./words.js";
import { contextOf, hasRows, numberOf, rowsOfHead } from "./data.js";
import { page } from "./state.js";
import { theme } from "./colours.js";
import { baseAxis, draw, errorBars, lowerAxis, sizes, uprightLine } from "./charts.js";

const SPACES = { " ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥" };

const UNSEEN = /([\p{C}\p{Z}])/u;

/**
 * A token as text with visible spaces; other characters without a shape are named by their number.
 */
function tokenElement(text) {
  if (!text) return make("bdi", "no text", { class: "token quiet" });
  const named = (character) =>
    SPACES[character] ??
    `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  const parts = text
    .split(UNSEEN)
    .map((part, i) => (i % 2 ? make("span", named(part), { class: "unseen-character" }) : part));
  return make("bdi", "", { class: "token" }, parts);
}

const WORD_NOTES = {
  strongest:
    "queries with the largest weights, without those that attend to the first token of a text",
  typical: "queries at five quantiles of the largest weight, from 10 % to 90 %",
};

function showWords(run, key) {
  const why =
    run.why_no_words ||
    (hasRows(run, "words", key) ? "" : "no query of this head has a known token");
  byId("no-words").hidden = !why;
  byId("no-words").textContent = why ? `Words are not shown: ${why}.` : "";
  const lists = why
    ? []
    : Object.keys(WORD_NOTES).map((kind) => wordList(kind, rowsOfHead(run, "words", key)));
  byId("word-lists").replaceChildren(...lists.filter(Boolean));
}

/**
 * One list: the token of the query, the token that it attends to most, their distance, and the
 * weight.
 */
function wordList(kind, rows) {
  const places = [...rows.kind.keys()].filter((i) => rows.kind[i] === kind);
  if (!places.length) return null;
  const lines = places.map((i) => {
    const first = rows.k_position[i] === 0 ? [make("span", " first token", { class: "quiet" })] : [];
    const target = make("span", "", {}, [tokenElement(rows.key_token[i]), ...first]);
    const numbers = [whole(rows.distance[i]), rows.weight[i].toFixed(3)];
    return { cells: [tokenElement(rows.query_token[i]), target, ...numbers] };
  });
  const table = make("table", "", { class: "words" });
  fillTable(table, [["query"], ["attends to"], ["distance"], ["weight"]], lines);
  return make("section", "", { class: "word-list", "data-kind": kind }, [
    make("h3", capital(kind)),
    make("p", WORD_NOTES[kind], { class: "quiet" }),
    table,
  ]);
}

/**
 * Two panels over the wavelength: size of the band in logits, and its share of the variance. Bands
 * that do not turn are left out.
 */
function bandsFigure(run, key) {
  const rows = rowsOfHead(run, "bands", key),
    turning = [...rows.band.keys()].filter(
      (i) => Number.isFinite(rows.wavelength[i]) && rows.wavelength[i] > 0,
    );
  turning.sort((a, b) => rows.wavelength[a] - rows.wavelength[b]);
  const trace = (name, words, color, yaxis) => {
    const half = turning.map((i) => rows[`${name}_half_width`]?.[i] ?? NaN);
    return {
      x: turning.map((i) => rows.wavelength[i]),
      y: turning.map((i) => rows[name][i]),
      yaxis,
      mode: "lines+markers",
      line: { color, width: 1 },
      marker: { color, size: 5 },
      error_y: errorBars(half, { color, thickness: 1.2, width: 2 }),
      text: turning.map(
        (i) => `band ${rows.band[i]}, wavelength ${show(rows.wavelength[i])} tokens`,
      ),
      hovertemplate: `<b>%{y:.3~g}</b> ${words}<br>%{text}<extra></extra>`,
    };
  };
  const axis = { ...baseAxis(), showline: true, nticks: 4 },
    context = contextOf(run);
  const corner = { x: 0, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom" };
  const font = { size: 11.5, color: theme.quiet };
  const title = (text, y) => ({ ...corner, text, y, showarrow: false, font });
  return {
    traces: [
      trace("norm_product", "size (logits)", theme.one, "y"),
      trace("variance_share", "share of the variance", theme.two, "y2"),
    ],
    names: { x: "wavelength (tokens per turn)", y: "" },
    layout: {
      margin: { l: 48, r: 10, t: 20, b: 42 },
      hovermode: "closest",
      annotations: [title("size (logits)", 1), title("share of the variance of the logit", 0.44)],
      shapes: Number.isFinite(context) ? [uprightLine(context)] : [],
      xaxis: { ...lowerAxis(), type: "log", anchor: "y2", dtick: 1, tickformat: ",d" },
      yaxis: { ...axis, domain: [0.58, 1], rangemode: "tozero" },
      yaxis2: { ...axis, domain: [0, 0.44] },
    },
  };
}

/**
 * The table of scores. A score on texts has no threshold if the score on repeated tokens decides.
 */
function showScores(run, other, key) {
  const { names } = run.tables.roles,
    score = (of, name) => numberOf(of, "roles", key, name);
  const replaced = (name) =>
    name.endsWith("_excess") &&
    Number.isFinite(score(run, name.replace(/(\w+)_excess$/, "repeated_$1")).value);
  const headings = [
    ["score"],
    ["value"],
    ["95 % interval"],
    ["threshold"],
    ...(other ? [[other.label]] : []),
  ];
  const rows = Object.entries(page.words.roles)
    .filter(([name]) => names.includes(name) && !name.endsWith("role"))
    .map(([name, { label, meaning, decimals }]) => {
      const { value, half } = score(run, name),
        limit = name in run.thresholds && !replaced(name) ? run.thresholds[name] : null;
      const interval = Number.isFinite(half)
        ? `${showTo(decimals, value - half)} to ${showTo(decimals, value + half)}`
        : NONE;
      const others = other ? [showTo(decimals, score(other, name).value)] : [];
      const numbers = [showTo(decimals, value), interval, limit === null ? "" : String(limit)];
      const reached = limit !== null && value >= limit ? "reached" : "";
      const cells = [capital(label), ...numbers, ...others];
      return { cells, "data-score": name, title: meaning, class: reached };
    });
  fillTable(byId("role-scores"), headings, rows);
}

export const roleCard = {
  id: "role",
  title: "What this head does",
  place: "below",
  needs: ["roles"],
  body: `
    <p id="role-sentence"></p>
    <div class="role-parts">
      <table id="role-scores" class="scores"></table>
      <figure id="bands-figure" hidden>
        <figcaption><h3>Rotary bands</h3> <span class="quiet">left: pairs of dimensions that turn fast with position; right: slowly;
            right of the dashed line: less than one turn in the context</span></figcaption>
        <div class="chart" id="bands" role="img"></div>
      </figure>
      <div class="role-words"><div class="word-lists" id="word-lists"></div><p class="quiet"
        id="no-words" hidden></p></div>
    </div>`,
  drawHead({ run, beside, key }) {
    byId("role-sentence").textContent = rowsOfHead(run, "roles", key).sentence[0].replace(
      / (?=[±%])|(?<=±) /g,
      "\u00a0",
    ); // a number stays in one line
    byId("role-note").textContent = run.tables.roles.names.some((name) =>
      name.endsWith("_half_width"),
    )
      ? "±: half of the 95 % interval over texts"
      : "intervals are not known";
    showScores(run, beside?.tables.roles ? beside : null, key);
    showWords(run, key);
    const known = hasRows(run, "bands", key),
      figure = byId("bands-figure");
    if (figure.hidden && known) sizes.delete(byId("bands")); // the size of a hidden element is zero
    figure.hidden = !known;
  },
  drawCharts({ run, key }) {
    if (!hasRows(run, "bands", key)) return [];
    const { wavelength, variance_share: shares } = rowsOfHead(run, "bands", key),
      most = shares.indexOf(Math.max(...shares.filter(Number.isFinite)));
    byId("bands").setAttribute(
      "aria-label",
      most < 0
        ? "Rotary bands of this head"
        : "Rotary bands of this head; the largest share of the variance, " +
            `${show(shares[most])}, has a wavelength of ${show(wavelength[most])} tokens`,
    );
    return [draw("bands", bandsFigure(run, key))];
  },
};
