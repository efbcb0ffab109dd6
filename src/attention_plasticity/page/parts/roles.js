// Roles of heads: names, colours, and the role in the map, in the table and in the search.

const ROLE = "role"; // in the place of a metric: in the menu "Colour", in the table and in links
const UNSURE = "unsure";

/** The role and the likely role of a head, and whether repeated tokens decide; null if they are not known. */
function roleOf(run, key) {
  const range = run.ranges.roles.get(key);
  if (!range) return null;
  const { role, likely, repeated_decide: decide } = run.tables.roles.columns, { names } = page.roles, [row] = range;
  return { role: names[role[row]], likely: names[likely[row]], decide: Boolean(decide[row]) };
}

/** `induction`, `unsure, likely induction` or `unsure: repeated tokens decide, likely far`. */
function roleWords(run, key) {
  const found = roleOf(run, key);
  if (!found) return NONE;
  return found.role === UNSURE ? `${found.decide ? page.roles.decide : UNSURE}, likely ${found.likely}` : found.role;
}

const isUnsureRole = (run, key) => roleOf(run, key)?.role === UNSURE;

/** What maps can show, by group: the role, and all metrics without standard errors. */
const mapGroups = (run) => [...(run.roles ? [["What heads do", [ROLE]]] : []), ...metricGroups(run).map(([title, names]) => [title, names.filter((name) => !wordsOf(name).error_of)])];

/** Whether a run can show something on its map. */
const canShow = (run, metric) => (metric === ROLE ? Boolean(run.roles) : run.tables.heads.names.includes(metric));

/** One colour per likely role of a head, and a legend that counts roles. The numbers of the map are places in `classes`. */
function roleScale(shown) {
  const found = shown.flatMap((run) => [...run.rowOf.keys()].map((key) => roleOf(run, key))).filter(Boolean);
  const classes = page.roles.names.filter((name) => found.some(({ likely }) => likely === name));
  const counted = (name) => `${name} (${whole(found.filter(({ role }) => role === name).length)})`;
  const unsure = found.some(({ role }) => role === UNSURE) ? [`${counted(UNSURE)}, in the colour of the likely role`] : [];
  return { ...classScale(classes, classes.map((name) => theme.roles[name]), classes.map(counted)), unsure };
}

/** A swatch in the colour of the likely role, and the role; `unsure (far)` in a narrow place. */
function roleMark(run, key, narrow = false) {
  const { role, likely, decide } = roleOf(run, key), swatch = make("i", "", { class: role === UNSURE ? "swatch unsure" : "swatch", "aria-hidden": "true" });
  swatch.style.background = theme.roles[likely];
  return make("span", "", { class: "role", title: roleMeaning(role, likely, decide) }, [swatch, narrow && role === UNSURE ? `${UNSURE} (${likely})` : roleWords(run, key)]);
}

function roleMeaning(role, likely, decide) {
  const meaning = page.roles.meanings[likely] ? `the head attends to ${page.roles.meanings[likely]}` : "no score reaches its threshold";
  return role === UNSURE ? `${decide ? page.roles.decide : "a 95 % interval contains a threshold"}; by the values alone: ${meaning}` : meaning;
}

/** The column of the table of heads. Unsure heads come after the others of their likely role. */
const roleColumn = (run) => ({
  id: ROLE, label: "role", title: page.words[ROLE].meaning,
  value: (key) => { const found = roleOf(run, key); return found ? page.roles.names.indexOf(found.likely) + 0.5 * (found.role === UNSURE) : NaN; },
  cell: (key) => make("td", roleOf(run, key) ? "" : NONE, { class: "role-cell" }, roleOf(run, key) ? [roleMark(run, key, true)] : []),
});

const ROLE_PART = /(?<![\w.])role\s*[:=]\s*([a-z]*)/gi;

/** The parts such as `role:induction` of a search text: the text without them, and a test of a key or a `problem`. */
function takeRoles(run, text) {
  const wanted = [...text.matchAll(ROLE_PART)].map(([, name]) => name.toLowerCase()), rest = text.replace(ROLE_PART, " ");
  if (!wanted.length) return { rest, test: null };
  if (!run.roles) return { problem: "this run has no roles; they need a dump with attention columns" };
  const wrong = wanted.find((name) => !page.roles.names.includes(name));
  if (wrong !== undefined) return { problem: `“role:${wrong}” is not a role; the roles are ${page.roles.names.join(", ")}` };
  return { rest, test: (key) => wanted.includes(roleOf(run, key)?.role) };
}
