// The search field: places such as `l12h3` and `layer 3-5`, types of layers such as `full`, roles
// such as `role:induction`, and comparisons such as `plasticity>0.9`.

import { MINUS } from "./words.js";
import { keyOf, metricOf } from "./data.js";
import { kindOf, page, state, typeOf } from "./state.js";
import { metricGroups, roleOf, showIn, wordsOf } from "./values.js";

const NUMBER = String.raw`[-−+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?`;

const COMPARISON = new RegExp(String.raw`(>=|<=|==|≥|≤|>|<|=)\s*(${NUMBER})(?![\w.])`, "gi");

const TESTS = {
  "=": (a, b, metric) => a === b || shownNumber(metric, a) === b,
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
};

const OTHER_SIGNS = { "==": "=", "≥": ">=", "≤": "<=" };

/** Short names of metrics. Plasticity is that which the page shows first. */
function shortNames(run) {
  const {
    drop,
    parts: [position, distance],
    fifths: [first, last],
  } = page.kinds.position;
  return {
    plasticity: kindOf(run).level,
    drop,
    "from position": position,
    "from distance": distance,
    "first fifth": first,
    "last fifth": last,
    phase: "ap_phase",
    layer: "layer",
    head: "q_head",
    "key head": "k_head",
  };
}

/** Text for comparisons of names: small letters, plain signs, single spaces. */
const simple = (text) =>
  text
    .toLowerCase()
    .replaceAll("−", "-")
    .replaceAll("–", "-")
    .replace(/\s*%/g, "%")
    .replace(/[\s,;]+/g, " ")
    .trim();

/** A value of a metric, rounded to the digits that are shown. */
const shownNumber = (metric, value) =>
  Number(showIn(metric, value).replace(MINUS, "-").replaceAll(",", ""));

/** Metrics of a run by column name, label and short name. */
function metricNames(run) {
  const names = new Map();
  const add = (text, metric) => {
    if (!names.has(simple(text))) names.set(simple(text), metric);
  };
  for (const name of run.tables.heads.names) if (name !== "layer_type") add(name, name);
  for (const [, metrics] of metricGroups(run))
    for (const name of metrics) add(wordsOf(name).label, name);
  for (const [text, name] of Object.entries(shortNames(run)))
    if (run.tables.heads.columns[name]) add(text, name);
  return names;
}

/**
 * Types of layers by name, by words and by the name without its ending: `full_attention`, `full
 * attention`, `full`.
 */
function typeNames() {
  const names = new Map([["sliding window", "sliding_attention"]]);
  const usual = ["full_attention", "sliding_attention", "chunked_attention"].map((name) => ({
    name,
    words: name.replaceAll("_", " "),
  }));
  for (const { name, words } of [...usual, ...state.runs.flatMap(({ types }) => types)]) {
    for (const text of [name, words, name.replace(/_attention$/, "")])
      if (text) names.set(simple(text), name);
  }
  return names;
}

/** Move the types of layers from some words to the set `found`; the other words remain. */
function takeTypes(text, names, found) {
  const words = text.split(" "),
    others = [];
  for (let first = 0; first < words.length; first++) {
    let end = words.length;
    while (end > first && !names.has(words.slice(first, end).join(" "))) end--;
    if (end === first) others.push(words[first]);
    else {
      found.add(names.get(words.slice(first, end).join(" ")));
      first = end - 1;
    }
  }
  return others.join(" ");
}

/**
 * The heads of a search text, as a test of a key. All parts must be met. A text that is not
 * understood has a `problem` instead.
 */
export function parseFilter(run, given) {
  const { rest: text, test: ofRole, problem } = takeRoles(run, given);
  if (problem) return { problem };
  const names = metricNames(run),
    known = typeNames(),
    types = new Set(),
    tests = [],
    places = [];
  let end = 0;
  for (const found of text.matchAll(COMPARISON)) {
    const words = simple(text.slice(end, found.index));
    end = found.index + found[0].length;
    const name = longestName(words, names);
    if (name === null) return { problem: unknownName(run, takeTypes(words, known, types), names) };
    places.push(words.slice(0, words.length - name.length));
    const metric = names.get(name),
      compare = TESTS[OTHER_SIGNS[found[1]] ?? found[1]],
      limit = Number(found[2].replace("−", "-"));
    tests.push((key) => compare(metricOf(run, key, metric), limit, metric));
  }
  places.push(simple(text.slice(end)));
  const parts = places.map((part) => takeTypes(part, known, types));
  const unfinished = parts.find((part) => /[<>=≥≤]/.test(part));
  if (unfinished)
    return {
      problem:
        `“${unfinished.trim()}” needs a name, a sign and a number, ` + "such as plasticity>0.9",
    };
  const wanted = parsePlaces(parts.join(" "));
  if (wanted.problem) return wanted;
  tests.push(wanted.test);
  if (ofRole) tests.push(ofRole);
  if (types.size) tests.push((key) => types.has(typeOf(run, key)));
  return { test: (key) => tests.every((test) => test(key)) };
}

/** The longest name at the end of some words; null if there is none. */
function longestName(words, names) {
  const parts = words.split(" ");
  for (let first = 0; first < parts.length; first++) {
    const name = parts.slice(first).join(" ");
    if (names.has(name)) return name;
  }
  return null;
}

function unknownName(run, words, names) {
  const { level } = kindOf(run);
  const rest = words.replace(new RegExp(`^(${PLACE.source.slice(1)}\\s*)+`), "").trim() || words;
  if (!rest) return "a comparison needs a name before its sign, such as plasticity>0.9";
  const near = [...names.keys()].filter((name) => name.includes(rest)).slice(0, 3);
  const help = near.length
    ? `did you mean ${near.map((name) => `“${name}”`).join(" or ")}?`
    : `give a column such as ${level}, or a name of the menu Colour such as ` +
      `${wordsOf(level).label}`;
  return `“${rest}” is not a metric of this run; ${help}`;
}

const PLACE_FORMS = [
  /(\d+)\.(\d+)/,
  /l(?:ayer)?\s*(\d+)\s*h(?:ead)?\s*(\d+)(?!\s*-)/,
  /(layers?|l|heads?|h)\s*(\d+)(?:\s*-\s*(\d+))?/,
  /(\d+)(?:\s*-\s*(\d+))?/,
  /[qk](?![a-z])/,
];
const PLACE = new RegExp(
  `^(?:${PLACE_FORMS.map((form) => form.source).join("|")})(?=$|[\\sqk])`,
);

/**
 * Layers and heads of a search text without comparisons. A number alone is a layer, a second one a
 * head.
 */
function parsePlaces(text) {
  const ranges = { layer: [], head: [] },
    pairs = new Set();
  let rest = text.trim(),
    list = ""; // after `layers 3-5`, another number is a layer too
  while (rest) {
    const found = PLACE.exec(rest);
    const role = page.roles.names.find((name) => name === rest.split(" ")[0]);
    if (role) return { problem: `“${role}” is a role; did you mean role:${role}?` };
    if (!found)
      return {
        problem:
          `“${rest.split(" ").slice(0, 3).join(" ")}” is not understood; try l12h3, layer ` +
          `3-5, full${state.runs.some(({ tables }) => tables.roles) ? ", role:far" : ""} or ` +
          "plasticity>0.9",
      };
    const [
      all,
      pairLayer,
      pairHead,
      layer,
      head,
      kind,
      first,
      last = first,
      alone,
      aloneLast = alone,
    ] = found;
    if (pairLayer ?? layer) pairs.add(keyOf(Number(pairLayer ?? layer), Number(pairHead ?? head)));
    else if (first ?? alone) {
      const range = [Number(first ?? alone), Number(first ? last : aloneLast)];
      if (range[0] > range[1])
        return { problem: `“${all.trim()}”: the first number is larger than the last` };
      if (kind) list = kind.endsWith("s") ? kind.slice(0, -1) : "";
      const named = kind ? (kind.startsWith("l") ? "layer" : "head") : list;
      ranges[named || (ranges.layer.length ? "head" : "layer")].push(range);
    }
    rest = rest.slice(all.length).trim();
  }
  const within = (wanted, number) =>
    !wanted.length || wanted.some(([first, last]) => first <= number && number <= last);
  return {
    test: (key) => {
      const [layer, head] = key.split(".").map(Number);
      return (
        (!pairs.size || pairs.has(key)) && within(ranges.layer, layer) && within(ranges.head, head)
      );
    },
  };
}

const ROLE_PART = /(?<![\w.])role\s*[:=]\s*([a-z]*)/gi;

/**
 * The parts such as `role:induction` of a search text: the text without them, and a test of a key
 * or a `problem`.
 */
function takeRoles(run, text) {
  const wanted = [...text.matchAll(ROLE_PART)].map(([, name]) => name.toLowerCase()),
    rest = text.replace(ROLE_PART, " ");
  if (!wanted.length) return { rest, test: null };
  if (!run.tables.roles)
    return { problem: "this run has no roles; they need a dump with attention columns" };
  const wrong = wanted.find((name) => !page.roles.names.includes(name));
  if (wrong !== undefined)
    return {
      problem: `“role:${wrong}” is not a role; the roles are ${page.roles.names.join(", ")}`,
    };
  return { rest, test: (key) => wanted.includes(roleOf(run, key)?.role) };
}
