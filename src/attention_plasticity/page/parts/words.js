// Formatting of numbers and names.

const MINUS = "−", NONE = "–";

const isShare = (metric) => wordsOf(metric).share;

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

/** A value of a metric, with half of its 95 % interval if it is known. Shares have three decimals and errors four, for alignment. */
function showIn(metric, value, half = NaN) {
  const decimals = wordsOf(metric).decimals ?? (Math.abs(value) < 0.001 && half >= 0.0005 ? 3 : null);
  if (decimals === null || !Number.isFinite(value)) return show(value);
  const text = Math.abs(value).toFixed(decimals);
  return value < 0 && Number(text) ? MINUS + text : text;
}

const showShare = (value) => showIn("ap_overall", value);

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
  return page.words[metric] ?? { label: metric, meaning: "a column of head_metrics.csv", signed: false, share: false, decimals: null, optional: false };
}

/** Metrics of a run by group. Unknown columns are last. Optional metrics without a value are left out. */
function metricGroups(run) {
  const ids = new Set(["layer", "q_head", "k_head"]);
  const shown = (name) => !ids.has(name) && (!wordsOf(name).optional || spreadOf(run, name));
  const remaining = new Set(run.tables.heads.names.filter(shown));
  const groups = page.groups.map(([title, names]) => [title, names.filter((name) => remaining.delete(name))]);
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
