// Baselines of a run: the same heads with random weights and with shuffled tokens, as reference values and lines.

const BASELINE_DASHES = ["dash", "dot"];

/** The baselines of a run, with tables under the names of those of a run. */
function openBaselines(about, tables) {
  return about.map((baseline, number) => {
    const prefix = `baseline_${number}`, own = { mean: tables[prefix] };
    for (const name of Object.keys(tables)) if (name.startsWith(`${prefix}_`)) own[name.slice(prefix.length + 1)] = tables[name];
    return { ...baseline, tables: own };
  });
}

const baselineColour = ({ look }) => [theme.runs[2], theme.runs[1]][look];

/** The mean of a metric over the heads of a baseline, of the chosen layers, as text; null if it is not known. */
function baselineMean(baseline, metric) {
  const means = state.layers === null || !hasTypes(baseline) ? baseline.means : typeNamed(baseline, state.layers)?.means;
  const found = means?.[metric];
  return found ? withHalf(showShare(found[0]), found[1]) : null;
}

/** Lines of a card: the values of the baselines. */
function baselineLines(run, metric) {
  const known = run.baselines.map((baseline) => [baseline, metric && baselineMean(baseline, metric)]).filter(([, text]) => text);
  if (!known.length) return [];
  const title = ({ texts, draws }) => (texts ? { title: `baseline, ${plural(texts, "text")}${draws > 1 ? `, mean of ${draws} draws` : ""}` } : {});
  return [make("dl", "", { class: "types baselines" }, known.map(([baseline, text]) =>
    make("div", "", title(baseline), [make("dt", baseline.words), fillEstimate(make("dd"), text)])))];
}

/** The baselines with a mean profile of the chosen layers. */
const drawnBaselines = (run) => run.baselines.filter((baseline) => meanProfile(baseline));

/** Thin lines with bands in the profile of a head. */
function baselineTraces(run, shown) {
  return drawnBaselines(run).flatMap((baseline) => {
    const mean = meanProfile(baseline), x = placesOf(run, mean, shown), color = baselineColour(baseline);
    return [
      ...intervalTraces(`interval, ${baseline.words}`, x, mean, color, "26"),
      {
        x, y: Array.from(mean.plasticity), mode: "lines", line: { color, width: 1.5, dash: BASELINE_DASHES[baseline.look] }, name: `${baseline.words}${bandWords(mean)}`,
        text: intervalTexts(mean), hovertemplate: `%{y:.3f} mean of heads, ${baseline.words}%{text}<extra></extra>`,
      },
    ];
  });
}
