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
  for (const name of ["panel", "ink", "quiet", "line", "faint", "one", "two", "mean", "band", "texts"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.runs = RUN_COLOURS[document.documentElement.dataset.theme];
  theme.roles = page.roles.colours[document.documentElement.dataset.theme];
  theme.types = [4, 0, 1, 2, 3].map((place) => theme.runs[place]);
}

const stopsOf = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);

const gradient = (colours) => `linear-gradient(90deg, ${colours.join(", ")})`;

/** Colours and range of a metric: plasticity and shares from 0 to 1, signed metrics with zero in the middle. */
function scaleOf(metric, runs) {
  if (metric === "sliding_window") return windowScale(runs);
  if (metric === ROLE) return roleScale(runs);
  const spreads = runs.map((run) => spreadOf(run, metric)).filter(Boolean);
  let low = Math.min(...spreads.map((spread) => spread.low));
  let high = Math.max(...spreads.map((spread) => spread.high));
  if (!spreads.length) [low, high] = [0, 1];
  if (wordsOf(metric).signed) {
    const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { low: -largest, high: largest, colours: PURPLE_ORANGE };
  }
  if (isShare(metric)) return { low: 0, high: 1, colours: VIRIDIS };
  return high > low ? { low, high, colours: VIRIDIS } : { low, high: low + 1, colours: VIRIDIS, single: true };
}

/** One colour per window, and one per type of layers without a window. The numbers of the map are places in `classes`. */
function windowScale(runs) {
  const keys = runs.flatMap((run) => [...run.rowOf.keys()].map((key) => [run, key]));
  const windows = [...new Set(keys.map(([run, key]) => metricOf(run, key, "sliding_window")).filter(Number.isFinite))].sort((a, b) => a - b);
  const others = new Set(keys.filter(([run, key]) => !Number.isFinite(metricOf(run, key, "sliding_window"))).map(([run, key]) => windowWords(run, key)));
  const classes = [...windows.map(whole), ...[...others].sort((a, b) => (a === "full attention") - (b === "full attention"))];
  const step = classes.length > 1 ? 6 / (classes.length - 1) : 0;
  const colours = classes.map((_, i) => VIRIDIS[3 + Math.round(i * step)]);
  return classScale(classes, colours, classes.map((text) => (/\d/.test(text) ? `${text} tokens` : text)));
}

/** A scale of classes with a colour and a line of the legend each. */
const classScale = (classes, colours, legend) => ({
  classes, legend, low: -0.5, high: classes.length - 0.5, colours,
  stops: colours.flatMap((colour, i) => [[i / classes.length, colour], [(i + 1) / classes.length, colour]]),
});

function savedTheme() {
  try { return localStorage.getItem("attention-plasticity-theme"); } catch { return null; }
}

function keepTheme(name) {
  try { localStorage.setItem("attention-plasticity-theme", name); } catch { /* no storage: ignore */ }
}

/** The result of a function that reads the theme, for another theme than the one on the screen. */
function withTheme(name, build) {
  const root = document.documentElement, shown = root.dataset.theme;
  root.dataset.theme = name;
  readTheme();
  try { return build(); } finally {
    root.dataset.theme = shown;
    readTheme();
  }
}

/** Apply the given theme, or the theme of the system. */
function applyTheme(name) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = name ?? (dark ? "dark" : "light");
  readTheme();
}
