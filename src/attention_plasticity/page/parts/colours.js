// Colour scales for colour-blind readers, and the colours of the theme for Plotly.

import { make, whole } from "./words.js";
import { metricOf, spreadOf } from "./data.js";
import { page, state } from "./state.js";
import { ROLE, roleOf, roleWords, UNSURE, windowWords, wordsOf } from "./values.js";

export const VIRIDIS =
  "#440154 #482878 #3e4989 #31688e #26828e #1f9e89 #35b779 #6ece58 #b5de2b #fde725".split(" ");

const PURPLE_ORANGE = (
  "#7f3b08 #b35806 #e08214 #fdb863 #fee0b6 #f7f7f7 #d8daeb #b2abd2 #8073ac #542788 #2d004b"
).split(" ");

const RUN_COLOURS = {
  light: ["#007a58", "#a8487f", "#8a6d00", "#3b3f45", "#5b4fb5"],
  dark: ["#3ecf9f", "#e08bb8", "#e6cf4a", "#d5d9de", "#a99cf5"],
};

export const theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = "panel ink quiet line faint one two mean band texts";
  for (const name of names.split(" ")) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.runs = RUN_COLOURS[document.documentElement.dataset.theme];
  theme.roles = page.roles.colours[document.documentElement.dataset.theme];
  theme.types = [4, 0, 1, 2, 3].map((place) => theme.runs[place]);
}

export const stopsOf = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);

export const gradient = (colours) => `linear-gradient(90deg, ${colours.join(", ")})`;

/**
 * Colours and range of a metric: plasticity and shares from 0 to 1, signed metrics with zero in the
 * middle.
 */
export function scaleOf(metric, runs) {
  if (metric === "sliding_window") return windowScale(runs);
  if (metric === ROLE) return roleScale(runs);
  const spreads = runs.map((run) => spreadOf(run, metric)).filter(Boolean),
    { signed, share } = wordsOf(metric);
  let low = Math.min(...spreads.map((spread) => spread.low));
  let high = Math.max(...spreads.map((spread) => spread.high));
  if (!spreads.length) [low, high] = [0, 1];
  if (signed) {
    const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { low: -largest, high: largest, colours: PURPLE_ORANGE };
  }
  if (share) return { low: 0, high: 1, colours: VIRIDIS };
  return high > low
    ? { low, high, colours: VIRIDIS }
    : { low, high: low + 1, colours: VIRIDIS, single: true };
}

/**
 * One colour per window, and one per type of layers without a window. The numbers of the map are
 * places in `classes`.
 */
function windowScale(runs) {
  const keys = runs.flatMap((run) => [...run.rowOf.keys()].map((key) => [run, key]));
  const windows = [
    ...new Set(
      keys.map(([run, key]) => metricOf(run, key, "sliding_window")).filter(Number.isFinite),
    ),
  ].sort((a, b) => a - b);
  const others = new Set(
    keys
      .filter(([run, key]) => !Number.isFinite(metricOf(run, key, "sliding_window")))
      .map(([run, key]) => windowWords(run, key)),
  );
  const classes = [
    ...windows.map(whole),
    ...[...others].sort((a, b) => (a === "full attention") - (b === "full attention")),
  ];
  const step = classes.length > 1 ? 6 / (classes.length - 1) : 0;
  const colours = classes.map((_, i) => VIRIDIS[3 + Math.round(i * step)]);
  return classScale(
    classes,
    colours,
    classes.map((text) => (/\d/.test(text) ? `${text} tokens` : text)),
  );
}

/** A scale of classes with a colour and a line of the legend each. */
const classScale = (classes, colours, legend) => ({
  classes,
  legend,
  low: -0.5,
  high: classes.length - 0.5,
  colours,
  stops: colours.flatMap((colour, i) => [
    [i / classes.length, colour],
    [(i + 1) / classes.length, colour],
  ]),
});

export function savedTheme() {
  try {
    return localStorage.getItem("attention-plasticity-theme");
  } catch {
    return null;
  }
}

export function keepTheme(name) {
  try {
    localStorage.setItem("attention-plasticity-theme", name);
  } catch {
    /* no storage: ignore */
  }
}

/** Apply the given theme, or the theme of the system. */
export function applyTheme(name) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = name ?? (dark ? "dark" : "light");
  readTheme();
}

/**
 * One colour per likely role of a head, and a legend that counts roles. The numbers of the map are
 * places in `classes`.
 */
function roleScale(shown) {
  const found = shown
    .flatMap((run) => [...run.rowOf.keys()].map((key) => roleOf(run, key)))
    .filter(Boolean);
  const classes = page.roles.names.filter((name) => found.some(({ likely }) => likely === name));
  const counted = (name) => `${name} (${whole(found.filter(({ role }) => role === name).length)})`;
  const unsure = found.some(({ role }) => role === UNSURE)
    ? [`${counted(UNSURE)}, in the colour of the likely role`]
    : [];
  return {
    ...classScale(
      classes,
      classes.map((name) => theme.roles[name]),
      classes.map(counted),
    ),
    unsure,
  };
}

/** A swatch in the colour of the likely role, and the role; `unsure (far)` in a narrow place. */
export function roleMark(run, key, narrow = false) {
  const { role, likely, why } = roleOf(run, key),
    swatch = make("i", "", {
      class: role === UNSURE ? "swatch unsure" : "swatch",
      "aria-hidden": "true",
    });
  swatch.style.background = theme.roles[likely];
  return make("span", "", { class: "role", title: roleMeaning(role, likely, why) }, [
    swatch,
    narrow && role === UNSURE ? `${UNSURE} (${likely})` : roleWords(run, key),
  ]);
}

function roleMeaning(role, likely, why) {
  const meaning = page.roles.meanings[likely]
    ? `the head attends to ${page.roles.meanings[likely]}`
    : "no score reaches its threshold";
  return role === UNSURE ? `${why}; by the values alone: ${meaning}` : meaning;
}

/**
 * The colour of a type other than full attention. Each type has its own, the same in all runs of
 * the page.
 */
export function colourOfType(name) {
  const names = new Set([
    "sliding_attention",
    ...state.runs.flatMap(({ types }) => types.map((type) => type.name)),
  ]);
  names.delete("full_attention");
  const place = [...names].indexOf(name);
  return (
    theme.types[place] ??
    `hsl(${Math.round(137.5 * (place - theme.types.length)) % 360}, 60%, ` +
      `${document.documentElement.dataset.theme === "dark" ? 70 : 38}%)`
  );
}

/** The selected run and the compared run have fixed colours. */
export function colourOfRun(number) {
  if (number === state.run) return theme.one;
  if (number === state.beside) return theme.two;
  return theme.runs[number % theme.runs.length];
}

export const baselineColour = ({ look }) => [theme.runs[2], theme.runs[1]][look];
