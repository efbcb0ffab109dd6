// The selection in the address of the page, so that a link shows the same view again.

import { byId, headName } from "./words.js";
import { keyOf } from "./data.js";
import { otherRun, page, runShown, shownKind, state } from "./state.js";
import { firstHead, isSure, mapGroups, wordsOf } from "./values.js";

const ADDRESS_FIELDS = new Set(["run", "beside", "head", "metric", "sure", "layers"]);

/** Read the selection from the address. What is not found is replaced and named in a notice. */
export function readAddress(address) {
  const fields = new URLSearchParams(new URL(address).hash.slice(1)),
    problems = [];
  const given = (name, find, instead) => {
    if (!fields.has(name)) return null;
    const found = find(fields.get(name));
    if (found === null) problems.push([`${name}=${fields.get(name)}`, instead]);
    return found;
  };
  const runNamed = (label) => state.runs.find((run) => run.label === label)?.number ?? null;
  state.run = given("run", runNamed, () => `the run ${runShown().label}`) ?? 0;
  const opening = [...fields].length === 0; // a link without a second run shows none
  state.beside = opening
    ? page.beside
    : given(
        "beside",
        (label) => (runNamed(label) === state.run ? null : runNamed(label)),
        () => "no second run",
      );
  const has = (names) => (name) => (names.includes(name) ? name : null);
  state.metric =
    given(
      "metric",
      has(mapGroups(runShown()).flatMap(([, names]) => names)),
      () => `the metric ${wordsOf(state.metric).label}`,
    ) ?? shownKind().level;
  state.layers = given("layers", has(runShown().types.map(({ name }) => name)), () => "all layers");
  const sure = given(
    "sure",
    has(["0", "1"]),
    () => `the switch “How sure” ${isSure() ? "on" : "off"}`,
  );
  state.sure = sure === null ? null : sure === "1";
  const key = given(
    "head",
    (text) => (runShown().rowOf.has(text) ? text : null),
    () => headName(state.layer, state.head).toLowerCase(),
  );
  if (key) [state.layer, state.head] = key.split(".").map(Number);
  else Object.assign(state, firstHead());
  state.chosen = Boolean(key);
  for (const name of fields.keys()) if (!ADDRESS_FIELDS.has(name)) problems.push([name, () => ""]);
  showLinkNotice(problems);
}

/** A line that names the parts of a link that were not found, and what is shown instead. */
function showLinkNotice(problems) {
  byId("link-notice").hidden = !problems.length;
  const words = problems.map(
    ([part, instead]) => `“${part}”${instead() && ` (shown instead: ${instead()})`}`,
  );
  byId("link-problem").textContent =
    `This page does not have these parts of the link: ${words.join("; ")}.`;
}

export function writeAddress() {
  const fields = new URLSearchParams({
    run: runShown().label,
    head: keyOf(state.layer, state.head),
    metric: state.metric,
  });
  if (state.beside !== null) fields.set("beside", otherRun().label);
  if (state.layers !== null) fields.set("layers", state.layers);
  if (state.sure !== null) fields.set("sure", Number(state.sure));
  try {
    history.replaceState(null, "", `#${fields}`);
  } catch {
    /* a notebook has no address */
  }
}
