// Colour scales for colour-blind readers, and the colours of the theme for Plotly.

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const PURPLE_ORANGE = ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#fee0b6", "#f7f7f7", "#d8daeb", "#b2abd2", "#8073ac", "#542788", "#2d004b"];
const RUN_COLOURS = {
  light: ["#007a58", "#a8487f", "#8a6d00", "#3b3f45", "#5b4fb5"],
  dark: ["#3ecf9f", "#e08bb8", "#e6cf4a", "#d5d9de", "#a99cf5"],
};

let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["panel", "ink", "quiet", "line", "faint", "one", "two", "mean", "band"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.runs = RUN_COLOURS[document.documentElement.dataset.theme];
}

const stopsOf = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);

const gradient = (colours) => `linear-gradient(90deg, ${colours.join(", ")})`;

/** Colours and range of a metric: plasticity and shares from 0 to 1, signed metrics with zero in the middle. */
function scaleOf(metric, runs) {
  const spreads = runs.map((run) => spreadOf(run, metric)).filter(Boolean);
  let low = Math.min(...spreads.map((spread) => spread.low));
  let high = Math.max(...spreads.map((spread) => spread.high));
  if (!spreads.length) [low, high] = [0, 1];
  if (wordsOf(metric).signed) {
    const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { low: -largest, high: largest, colours: PURPLE_ORANGE };
  }
  if (isShare(metric)) return { low: 0, high: 1, colours: VIRIDIS };
  return { low, high: high > low ? high : low + 1, colours: VIRIDIS };
}

function savedTheme() {
  try { return localStorage.getItem("attention-plasticity-theme"); } catch { return null; }
}

function keepTheme(name) {
  try { localStorage.setItem("attention-plasticity-theme", name); } catch { /* no storage: ignore */ }
}

/** Apply the given theme, or the theme of the system. */
function applyTheme(name) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = name ?? (dark ? "dark" : "light");
  readTheme();
}
