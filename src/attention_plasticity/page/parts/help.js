// Words of the page, explained behind the "?" of each card.

import { byId, make } from "./words.js";
import { hasTypes, runsShown } from "./state.js";
import { anyIntervals } from "./values.js";

const GLOSSARY = {
  attended: ["Attended plasticity", "RoPE-aligned plasticity of pairs of keys that are drawn in proportion to the attention they receive, without the first four tokens of the text. Plasticity itself counts all pairs alike."],
  beforeRope: ["Before RoPE", "RoPE turns queries and keys by angles that grow with their position. Before RoPE means that this rotation is undone."],
  baseline: ["Random weights, shuffled tokens", "Baselines: the same heads of the same model with random weights, and with the tokens of every text in random order, on a few texts. A value near that of shuffled tokens does not depend on the order of words. A value near that of random weights is what the architecture gives without training."],
  band: ["Rotary band", "RoPE turns every pair of dimensions with one frequency; the wavelength is the number of tokens per turn. A pair at the left of the chart turns fast and can tell near distances apart; a pair at the right turns slowly, and beyond the dashed line it makes less than one turn in the whole text, so that it mostly compares content. Size: how much the pair can change the logit at most (mean length of queries times mean length of keys). Share of the variance: how much of the differences between logits comes from this pair."],
  cells: ["Cell", "One range of positions of queries and one of keys. Its colour is the mean plasticity of the pairs of these keys for these queries."],
  bin: ["Bin", "A range of positions, such as 512–1,023. Every run has bins of one width, whatever positions the capture kept. RoPE-aligned plasticity is computed in bins."],
  component: ["Position per dimension", "Which dimensions of the query change steadily with position. Every dimension is predicted from the position by a straight line; the bars are the R² of these predictions, divided by their sum. One tall bar: position is in one dimension. Many low bars: it is spread over the vector."],
  context: ["Context", "The length of the longest text in tokens, if it is known; otherwise the largest captured position of a query, plus one."],
  distance: ["Distance", "Position of the query minus position of the key, in tokens. Bins double in width: 1, 2–3, 4–7, and so on. The first four tokens of the text have a bar of their own: many heads put much attention on them, whatever their distance."],
  distant: ["Distant attention", "The share of attention on keys that are at least distant_from tokens before the query. The first four tokens are included."],
  drop: ["Drop", "RoPE-aligned plasticity in the first fifth of the context minus that in the last fifth. It has two parts that sum to it. From position: the difference at equal distances from query to key; positive: the query decides less at later positions. From distance: queries of the last fifth have farther keys; positive: the query decides less between far keys."],
  equalDistances: ["Keys at equal distances", "Later queries have farther keys, so a profile can fall because of distance alone. This line has only keys at the distances that queries of the first fifth have. It begins where all of these distances exist."],
  entropy: ["Attention entropy", "0 if all attention is on one key. It grows with the number of keys that share the attention. The unit is nats."],
  far: ["Far attention", "The share of attention on keys that are at least distant_from tokens before the query, without the first four tokens of the text. Many heads put much attention on these four tokens, whatever they contain. The dashed line is at this distance."],
  filter: ["Search", "A place: l12h3, 12.3, layer 3-5, head 2. A type of layers: full, sliding. A role, on pages with roles: role:induction, role:unsure; several roles are joined by “or”. A comparison: plasticity>0.5, drop<0, phase>0.2, last fifth<=0.5. Plasticity is that which the page shows first. Parts are joined by spaces or commas, and all must be met."],
  head: ["Head", "A query head of an attention layer. Several query heads can use one key head."],
  interval: ["95 % interval", "A range around the value, from the differences between groups of texts. It is made so that in 95 of 100 samples of texts the range contains the true value. With fewer than four groups it is not known."],
  keyBucket: ["Key bucket", "A range of positions of keys, such as 0–511. The two keys of a pair come from one key bucket, or from one bin, unless the run draws pairs in another way."],
  layerType: ["Layers", "Full attention: a query can attend to all earlier keys. Sliding window: only to the last keys, such as 512. Means over both are means of different things."],
  mean: ["Mean of heads", "The mean over all captured heads, or over the heads of the chosen layers."],
  middle: ["Middle 50 % of heads", "A quarter of the heads is below this range, and a quarter is above it."],
  onePosition: ["RoPE-aligned", "All queries of a bin are de-rotated to one position before they are compared. So only the content of a query counts, not where it stands. This is the definition of attention plasticity."],
  overBucket: ["Over a bucket", "Queries of a bucket are compared as they were captured, at many positions. With RoPE the same question at two positions is two vectors, so the rotation counts as well. Over a bin is the same for the bins of the analysis."],
  phase: ["Rotary phase", "Plasticity over a bin minus RoPE-aligned plasticity, for the same pairs of keys: what the rotation of RoPE inside a bin adds. It says nothing about content."],
  plasticity: ["Plasticity", "Take two earlier keys, and let p be the share of queries that give the first key the higher score. Plasticity is 4p(1−p). 1: the query decides which key wins. 0: the same key always wins."],
  queryBucket: ["Query bucket", "A range of positions of queries, such as 512–1,023. All queries of a range are taken together."],
  role: ["Role", "What a head mostly attends to: induction (the token after an earlier occurrence of the query's token), duplicate (earlier occurrences of this token), previous (the previous token), self (its own token), local (tokens 2 to 7 before), far (distant tokens), sink (the first token). A head has the first of these roles whose score reaches its threshold. Mixed: no score does."],
  share: ["Share of the context", "Position divided by the length of the context of the same run. It makes runs with different contexts comparable."],
  sink: ["Attention on sinks", "The share of attention on the first four tokens of the text."],
  plusMinus: ["±", "Half of the 95 % interval, everywhere on this page. The interval goes from the value minus this number to the value plus it."],
  sure: ["How sure", "Fades heads about which these texts say little. For most metrics: the 95 % interval of the head is wider than the spread between heads, so that its place in the order of heads is open. For the drop: it does not differ from 0 if all heads are tested together (Benjamini–Hochberg, false discovery rate 5 %), as in the printed summary; the switch is then on at first. For roles: the role is unsure."],
  texts: ["Texts", "The strip below the profile has the number of texts with queries in each bin or bucket. Few texts: the value depends on single texts. A bin with fewer than four texts has no value."],
  unsureRole: ["Unsure role", "The 95 % interval of a score contains its threshold, so that other texts could give another role. Or the texts are too few for an interval. Or repeated tokens decide: on texts alone, an induction head can look like a far, sink or mixed head, and the run has no scores on repeated tokens. The likely role is that of the values alone. The map shows such heads faded in the colour of their likely role."],
  variance: ["Variance from position", "The share of the variance of the queries that a linear function of their position explains. 0: none, 1: all. As captured, it is mostly how far RoPE turns the mean query, not what queries ask."],
  varianceBefore: ["Variance from position, before RoPE", "The same after the rotation of RoPE is undone: how far the content of queries drifts with position."],
  words: ["Words", "Queries with the key that they attend to most. Strongest: the largest weights; the first token of a text is left out, because many heads attend to it whatever it is. Typical: queries at five quantiles of the largest weight. ␣ is a space, ⏎ a line break, ⇥ a tab."],
  window: ["Window", "The number of tokens that a query can attend back to."],
};

const someHas = (table) => (shown) => shown.some((run) => run.tables[table]);

/** Words of which only some runs have something to show. */
const NEEDED = {
  baseline: (shown) => shown.some((run) => run.baselines.length),
  ...Object.fromEntries(["role", "unsureRole"].map((name) => [name, someHas("roles")])),
  ...Object.fromEntries(["interval", "plusMinus", "sure"].map((name) => [name, (shown) => shown.some((run) => anyIntervals(run) || run.tables.roles)])),
  attended: someHas("attention"), words: someHas("words"), band: someHas("bands"), component: someHas("components"),
  layerType: (shown) => shown.some(hasTypes), window: (shown) => shown.some((run) => Object.keys(run.tables.heads.columns).includes("sliding_window")),
};

/** The button "?" of a card that explains these words, the most important first. */
export function helpButton(card, title, words) {
  const button = make("button", "?", { type: "button", class: "help", "aria-haspopup": "dialog", "aria-label": `Words of the card “${title}”`, title: "What the words mean", "data-help": card });
  button.addEventListener("click", () => openGlossary(title, words));
  return button;
}

/** The dialog takes the focus. Escape, a click beside it, or Close gives it back to the button. */
function openGlossary(title, words) {
  byId("glossary-title").textContent = title;
  byId("glossary-words").replaceChildren(...words.filter((name) => NEEDED[name]?.(runsShown()) ?? true).flatMap((name) => {
    const [term, meaning] = GLOSSARY[name];
    return [make("dt", term), make("dd", meaning)];
  }));
  byId("glossary").showModal();
  byId("glossary").scrollTop = 0;
}

export function addGlossary() {
  byId("glossary").addEventListener("click", (event) => { if (event.target === byId("glossary")) byId("glossary").close(); });
}
