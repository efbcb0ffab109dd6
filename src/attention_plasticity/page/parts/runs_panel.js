// All runs with their means, and the origin of the numbers.

/** The metrics of the table. Those that no run has are left out. */
function runMetrics() {
  const { level, fifths, drop } = page.kinds.position;
  return [level, ...fifths, drop, "ap_phase", page.kinds.bucket.level, "q_R2_total", "q_R2_unrotated"];
}

/** A row per run, and below it a row per type of layers if the run has several. */
function showRunsTable(runs, current, onRun) {
  const metrics = runMetrics().filter((name) => runs.some((run) => spreadOf(run, name)));
  const names = ["run", "heads", "context", ...metrics.map((name) => wordsOf(name).label)];
  const head = make("thead", "", {}, [make("tr", "", {}, names.map((name) => make("th", name, { scope: "col" })))]);
  const rowOf = (first, count, run, type, attributes) => {
    const context = type === null && Number.isFinite(contextOf(run)) ? whole(contextOf(run)) : type === null ? NONE : "";
    const values = [make("td", whole(count)), make("td", context), ...metrics.map((name) => fillEstimate(make("td"), showMean(run, name, type)))];
    values.forEach((cell, i) => cell.setAttribute("data-label", names[i + 1]));
    return make("tr", "", attributes, [make("td", "", {}, first), ...values]);
  };
  const rows = runs.flatMap((run, number) => {
    const line = make("i");
    line.style.borderColor = colourOfRun(number);
    const button = make("button", "", { type: "button" }, [line, run.label]);
    const selection = run.selected ? [make("span", ` ${layersWords(run.selected)} only`, { class: "quiet" })] : [];
    button.addEventListener("click", () => onRun(number));
    const types = hasTypes(run) ? run.types.map(({ name, words, heads }) => rowOf([words], heads, run, name, { class: "type-row" })) : [];
    return [rowOf([button, ...selection], run.counts.shown, run, null, { "aria-current": run === current }), ...types];
  });
  const layers = state.layers === null ? "" : ` (chart: ${typeWords(current, state.layers)})`;
  byId("runs-meaning").textContent = `mean profile over heads, for every run${layers}${runsKindWords()}`;
  byId("runs-table").replaceChildren(head, make("tbody", "", {}, rows));
}

/** What the profiles of the chart show. */
function runsKindWords() {
  const over = runs.filter((run) => !run.at_one_position);
  if (!over.length || over.length === runs.length) return `: ${cellsWords(runs[0])}`;
  return `: plasticity at one position; over a bucket: ${over.map((run) => run.label).join(", ")}`;
}

function showProvenance(shown) {
  const sections = shown.flatMap((run) => run.provenance.map(([title, lines]) => {
    const list = make("dl", "", {}, lines.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
    return make("section", "", {}, [make("h3", shown.length > 1 ? `${run.label}: ${title}` : title), list]);
  }));
  byId("provenance-list").replaceChildren(...sections);
}
