// Formatting of numbers and names.

const MINUS = "−", NONE = "–";
const MEANS = ["ap_overall", "ap_drop", "ap_first20", "ap_20to40", "ap_40to60", "ap_60to80", "ap_last20"];
const COUNTS = ["ap_counted", "ap_gaussian_gap"];
const ATTENDED = ["ap_attended", "ap_attended_counted"];
const ATTENTION = ["attn_sink_mass", "attn_distant_mass", "attn_entropy", "attn_max_logit"];
const HOW_SURE = [
  ...[...MEANS, ...COUNTS, ...ATTENDED, ...ATTENTION].map((name) => `${name}_se`), ...[...MEANS, "ap_attended"].map((name) => `${name}_bias`),
  "n_text_groups", "ap_attended_ess", "n_later_queries",
];
const GROUPS = [
  ["Plasticity", [...MEANS, ...COUNTS, ...ATTENDED]],
  ["Attention", ATTENTION],
  ["Position in the queries", ["q_R2_total", "q_R2_pos", "q_R2_scalar", "q_mae_ratio", "q_mae_proj", "q_mae_baseline", "q_beta_norm"]],
  ["Residuals of the regression on position", ["q_resid0_skew", "q_resid0_kurt", "q_resid0_ks_p", "q_noise_med_abs_skew", "q_noise_med_abs_kurt", "q_noise_med_ks_p", "q_noise_frac_ks_p_lt_alpha"]],
  ["Data", ["n_q_tokens", "n_k_tokens", "d_model", "q_position_max", "sliding_window"]],
  ["How sure", HOW_SURE],
];
const ABSENT_IF_EMPTY = new Set([...COUNTS, ...ATTENDED, ...ATTENTION, ...HOW_SURE]);
const isError = (metric) => /^(ap|attn)_.*_(se|bias)$/.test(metric);
const isPlasticity = (metric) => metric.startsWith("ap_") && metric !== "ap_attended_ess" && !isError(metric);
const isShare = (metric) => isPlasticity(metric) || metric === "attn_sink_mass" || metric === "attn_distant_mass";

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const whole = (value) => GROUPED.format(value);

function show(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) || size >= 1000) text = whole(size);
  else if (size < 0.001) text = size.toExponential(2);
  else text = size >= 100 ? size.toFixed(1) : size >= 10 ? size.toFixed(2) : size.toFixed(3);
  return value < 0 ? MINUS + text : text;
}

/** A value of a metric. Plasticity and shares have three decimals and errors four, for alignment. */
function showIn(metric, value) {
  if (!(isShare(metric) || isError(metric)) || !Number.isFinite(value)) return show(value);
  const text = Math.abs(value).toFixed(isError(metric) ? 4 : 3);
  return value < 0 && Number(text) ? MINUS + text : text;
}

function showChange(value) {
  if (!Number.isFinite(value)) return NONE;
  const text = show(value);
  return value > 0 ? `+${text}` : text;
}

const plural = (count, thing) => `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;
const headName = (layer, head) => `Layer ${layer} · head ${head}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Escape text for Plotly, which interprets tags. */
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function wordsOf(metric) {
  return page.words[metric] ?? { label: metric, meaning: "a column of head_metrics.csv", signed: false };
}

/** Metrics of a run by group. Unknown columns are last. Errors that are not known are left out. */
function metricGroups(run) {
  const ids = new Set(["layer", "q_head", "k_head"]);
  const shown = (name) => !ids.has(name) && (!ABSENT_IF_EMPTY.has(name) || spreadOf(run, name));
  const remaining = new Set(run.tables.heads.names.filter(shown));
  const groups = GROUPS.map(([title, names]) => [title, names.filter((name) => remaining.delete(name))]);
  groups.push(["Other columns", [...remaining]]);
  return groups.filter(([, names]) => names.length);
}

/** An element with text, attributes and children. Text is never interpreted as HTML. */
function make(tag, text = "", attributes = {}, children = []) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);
