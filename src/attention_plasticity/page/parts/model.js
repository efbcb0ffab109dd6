// The cards with the means of the model, and the warnings about its sample.

import {
  byId, capital, fillEstimate, make, NONE, plural, unbroken, whole, withHalf,
} from "./words.js";
import { contextOf, contextsDiffer, spreadOf } from "./data.js";
import {
  architectureDifference, eligibleHeads, gridWords, groupOf, hasTypes, isDrop, layersWords,
  mixedWords, overBucketsNote, page, runsShown, shownKind, state, typeNamed, typeWords,
} from "./state.js";
import { anyIntervals, commonReason, showMean, showShare } from "./values.js";

/** Title, metrics of which the first that the run has is shown, and meaning of every card. */
function cardsOf(kind) {
  const ofPosition = [
    ["Rotary phase", ["ap_phase"], "what RoPE adds"],
    [
      "Drop from position",
      [kind.parts[0], kind.drop],
      "at equal distances of keys, first fifth minus last fifth",
    ],
  ];
  return [
    [capital(kind.name), [kind.level], "mean"],
    ...(kind === page.kinds.position ? ofPosition : []),
    [
      "Variance from position",
      ["q_R2_total", "q_R2_pos"],
      "share of the variance of queries, as captured",
    ],
  ];
}

/** What is said below the number of a card besides its meaning. */
function cardNotes(run, other, metric) {
  const notes = [];
  if (metric === page.kinds.bucket.level)
    notes.push(
      run.at_one_position
        ? "the rotation of RoPE counts too"
        : "the rotation of RoPE counts too; RoPE-aligned: see below",
    );
  if (metric === "ap_phase")
    notes.push(
      `over a bin${run.bin_size ? ` of ${plural(run.bin_size, "token")}` : ""}: ` +
        `${unbroken(showMean(run, "ap_pooled"))}`,
    );
  if (metric === "q_R2_total" && spreadOf(run, "q_R2_unrotated"))
    notes.push(`before RoPE: ${unbroken(showMean(run, "q_R2_unrotated"))}`);
  if (metric === page.kinds.position.parts[0]) {
    const [, distance] = page.kinds.position.parts;
    notes.push(
      `from distance ${unbroken(showMean(run, distance))}: later queries have farther ` +
        `keys; together ${unbroken(showMean(run, page.kinds.position.drop))}`,
    );
  }
  if (other && isDrop(metric) && contextsDiffer(run, other))
    notes.push(
      `contexts of ${whole(contextOf(run))} and ${whole(contextOf(other))} tokens: do not ` +
        "compare these drops",
    );
  return notes.filter(Boolean);
}

/**
 * Over how many heads the mean of a card goes: always for plasticity, for others if it is another
 * number.
 */
function headsOf(run, metric) {
  const heads = (name) => spreadOf(run, name, state.layers)?.count ?? 0,
    { level } = shownKind();
  if (metric !== level && heads(metric) === heads(level)) return "";
  return `${metric === level ? " over" : ", mean over"} ${plural(heads(metric), "head")}`;
}

export function showCards(run, other) {
  const cards = cardsOf(shownKind()).map(([title, metrics, meaning]) => {
    const metric = metrics.find((name) => run.tables.heads.columns[name]);
    const reason = metric && commonReason(run, metric);
    const notes = [
      reason ? `missing: ${reason}` : `${meaning}${headsOf(run, metric)}`,
      ...cardNotes(run, other, metric),
    ];
    return modelCard(
      title,
      showMean(run, metric),
      other && showMean(other, metric),
      notes.join("; "),
      other,
      [...typeLines(run, other, metric), ...baselineLines(run, metric)],
    );
  });
  cards.push(headCountCard(run, other));
  byId("cards").style.setProperty("--cards", cards.length);
  byId("cards").replaceChildren(...cards);
}

function headCountCard(run, other) {
  const { shown, not_captured: missing, failed } = run.counts;
  const notes = [
    missing && `${whole(missing)} not captured`,
    failed && `${whole(failed)} failed`,
  ].filter(Boolean);
  const eligible = eligibleHeads(run);
  if (eligible !== null) notes.push(`sampled at random from ${whole(eligible)} heads`);
  if (Number.isFinite(contextOf(run))) notes.push(`context of ${plural(contextOf(run), "token")}`);
  notes.push(gridWords(run));
  if (run.selected) notes.push(`${layersWords(run.selected)} only`);
  const count = (of) => whole(state.layers === null ? of.counts.shown : (groupOf(of)?.heads ?? 0));
  const lines =
    hasTypes(run) && state.layers === null
      ? run.types.map(({ words, heads, layers }) => [
          words,
          make("dd", whole(heads)),
          { title: layersWords(layers) },
        ])
      : [];
  const title = state.layers === null ? "Heads" : `Heads, ${typeWords(run, state.layers)}`;
  const number = other && count(other);
  return modelCard(title, count(run), number, notes.join(" · "), other, lineList("types", lines));
}

function modelCard(title, number, otherNumber, meaning, other, lines) {
  const big = fillEstimate(make("div", "", { class: "number" }), number);
  if (other) big.append(make("span", otherNumber, { class: "other", title: other.label }));
  return make("div", "", { class: "card" }, [make("h2", title), big, make("p", meaning), ...lines]);
}

export function showWarnings(shown) {
  const lines = shown.flatMap((run) =>
    [...overBucketsNote(run), ...run.warnings].map((text) =>
      shown.length > 1 ? `${run.label}: ${text}` : text,
    ),
  );
  byId("warnings").replaceChildren(...lines.map((text) => make("li", text)));
  byId("warnings").hidden = lines.length === 0;
}

export function showSubtitle(run, other) {
  const subtitle =
    "Plasticity: how much the query decides between two keys, for each attention head and " +
    "along the context";
  const known = runsShown().some(anyIntervals)
    ? ". ±: half of the 95 % interval" +
      (eligibleHeads(run) === null ? "" : "; that of means is over texts and the choice of heads")
    : "";
  if (!other)
    byId("subtitle").textContent =
      subtitle + (run.selected ? `; ${layersWords(run.selected)} only` : "") + known;
  else {
    const selection = (of) => (of.selected ? [`${layersWords(of.selected)} only`] : []);
    const words = (of, notes) => of.label + (notes.length ? ` (${notes.join("; ")})` : "");
    const difference = architectureDifference(run, other);
    const means =
      difference && `. Only means are compared: ${difference}, so their heads do not correspond`;
    byId("subtitle").textContent =
      `${words(run, selection(run))} compared with ` +
      `${words(other, [...selection(other), "numbers in orange"])}${means}` +
      `${mixedWords([run, other])}${known}`;
  }
}

/** Lines below the number of a card: each has a name, an element and attributes. */
function lineList(kind, lines) {
  if (!lines.length) return [];
  const shown = lines.map(([words, value, attributes]) =>
    make("div", "", attributes, [make("dt", words), value]),
  );
  return [make("dl", "", { class: kind }, shown)];
}

/** Means of every type for a card: one line per type. */
function typeLines(run, other, metric) {
  if (!hasTypes(run) || state.layers !== null || !metric) return [];
  const lines = run.types.map(({ name, words }) => {
    const value = fillEstimate(make("dd"), showMean(run, metric, name));
    const theirs = other && (typeNamed(other, name) ? showMean(other, metric, name) : NONE);
    if (other) value.append(make("span", theirs, { class: "other", title: other.label }));
    return [words, value, { "data-type": name }];
  });
  return lineList("types", lines);
}

/**
 * The mean of a metric over the heads of a baseline, of the chosen layers, as text; null if it is
 * not known.
 */
function baselineMean(baseline, metric) {
  const found = groupOf(baseline)?.means[metric];
  return found ? withHalf(showShare(found[0]), found[0], found[1] ?? NaN) : null;
}

/** Lines of a card: the values of the baselines. */
function baselineLines(run, metric) {
  const title = ({ texts, draws }) =>
    `baseline, ${plural(texts, "text")}${draws > 1 ? `, mean of ${draws} draws` : ""}`;
  const lines = run.baselines
    .map((baseline) => [baseline, metric && baselineMean(baseline, metric)])
    .filter(([, text]) => text)
    .map(([baseline, text]) => [
      baseline.words,
      fillEstimate(make("dd"), text),
      baseline.texts ? { title: title(baseline) } : {},
    ]);
  return lineList("types baselines", lines);
}
