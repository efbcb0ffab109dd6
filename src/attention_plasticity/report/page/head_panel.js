// Texts and tables: cards, the selected head, all runs, and provenance.

const CARDS = [
  ["Plasticity", ["ap_overall"], "mean over heads; 1: the query decides which of two keys scores higher; 0: the order is fixed"],
  ["Drop over the context", ["ap_drop"], "first fifth minus last fifth; near 0: plasticity does not change with position"],
  ["Variance from position", ["q_R2_total", "q_R2_pos"], "fraction of the variance of queries that a linear function of position explains"],
];

function showCards(run, other) {
  const cards = CARDS.map(([title, metrics, meaning]) => {
    const metric = metrics.find((name) => run.tables.heads.columns[name]);
    const shown = (of) => showMean(of, metric);
    const known = metric && Number.isFinite(meanOf(run, metric).error);
    return card(title, shown(run), other && shown(other), known ? meaning.replace("mean over heads", "mean over heads ± standard error over texts") : meaning, other);
  });
  const { shown, not_captured: missing, failed } = run.counts;
  const notes = [missing && `${whole(missing)} not captured`, failed && `${whole(failed)} failed`].filter(Boolean);
  const context = spreadOf(run, "q_position_max");
  if (context) notes.push(`context of ${plural(context.high + 1, "token")}`);
  notes.push(`${run.grid[0]} layers × ${run.grid[1]} heads`);
  cards.push(card("Heads", whole(shown), other && whole(other.counts.shown), notes.join(" · "), other));
  byId("cards").replaceChildren(...cards);
}

function showMean(run, metric) {
  if (!metric) return NONE;
  const { mean, error } = meanOf(run, metric);
  return withError(showIn("ap_", mean), error);
}

function card(title, number, otherNumber, meaning, other) {
  const big = fillEstimate(make("div", "", { class: "number" }), number);
  if (other) big.append(make("span", otherNumber, { class: "other", title: other.label }));
  return make("div", "", { class: "card" }, [make("h2", title), big, make("p", meaning)]);
}

function showWarnings(runs) {
  const lines = runs.flatMap((run) => run.warnings.map((text) => (runs.length > 1 ? `${run.label}: ${text}` : text)));
  byId("warnings").replaceChildren(...lines.map((text) => make("li", text)));
  byId("warnings").hidden = lines.length === 0;
}

function showSubtitle(run, other) {
  const subtitle = "Plasticity: how much the query decides between two keys, for each attention head and along the context";
  byId("subtitle").textContent = other ? `${run.label} compared with ${other.label} (numbers in orange)${uncorrectedWords([run, other])}` : subtitle;
}

function showHead(run, other, { layer, head }) {
  const key = keyOf(layer, head);
  byId("head-title").textContent = headName(layer, head);
  const facts = [];
  const value = (name) => metricOf(run, key, name);
  if (Number.isFinite(errorOf(run, key, "ap_overall"))) facts.push(`plasticity ${showHeadValue(run, key, "ap_overall")}`);
  if (Number.isFinite(value("k_head"))) facts.push(`key head ${value("k_head")}`);
  if (run.tables.heads.columns.sliding_window) {
    facts.push(Number.isFinite(value("sliding_window")) ? `window of ${whole(value("sliding_window"))} tokens` : "full attention");
  }
  if (Number.isFinite(value("n_q_tokens"))) facts.push(`${whole(value("n_q_tokens"))} queries, ${whole(value("n_k_tokens"))} keys`);
  if (Number.isFinite(value("d_model"))) facts.push(`${value("d_model")} dimensions`);
  if (gapIsLarge(run, key)) facts.push(`${GAP_MARK} ${gapText(run, key)}`);
  byId("head-facts").textContent = facts.join(" · ");
  const metric = wordsOf(state.metric).label;
  const faded = isFaded(run, key) ? `; ${FADED_WORDS}` : "";
  byId("announcement").textContent = `${headName(layer, head)}: ${metric} ${showHeadValue(run, key, state.metric)}${faded}`;
  showMetrics(run, other, key);
}

/** The table of metrics. It is rebuilt for other runs and filled for another head. */
const metricsTable = { run: null, other: null, rows: [] };

function showMetrics(run, other, key) {
  if (metricsTable.run !== run || metricsTable.other !== other) makeMetrics(run, other);
  byId("metrics-title").textContent = `Every metric of ${headName(...key.split(".")).toLowerCase()}`;
  for (const { name, mine, theirs, dot, otherDot } of metricsTable.rows) {
    const value = metricOf(run, key, name);
    fillEstimate(mine, showHeadValue(run, key, name));
    mine.title = `${name}: ${run.tables.heads.columns[name][run.rowOf.get(key)]}${estimatesOf(run)[name] ? "; shown minus its bias" : ""}`;
    placeDot(dot, run, name, value);
    if (!other) continue;
    const otherValue = metricOf(other, key, name);
    fillEstimate(theirs, showHeadValue(other, key, name));
    placeDot(otherDot, run, name, otherValue);
  }
}

function makeMetrics(run, other) {
  const rows = [];
  byId("metrics-key").textContent = "bar: range over heads; shaded: middle half; line: mean; dot: this head" + (other ? `; orange: ${other.label}` : "");
  byId("metrics").replaceChildren(...metricGroups(run).map(([title, names]) => {
    const made = names.map((name) => metricRow(run, other, name));
    rows.push(...made);
    const body = make("tbody", "", {}, made.map(({ row }) => row));
    return make("section", "", { class: "metric-group" }, [make("h3", title), make("table", "", {}, [body])]);
  }));
  Object.assign(metricsTable, { run, other, rows });
}

function metricRow(run, other, name) {
  const { label, meaning } = wordsOf(name);
  const dot = make("i", "", { class: "dot" }), otherDot = make("i", "", { class: "dot other" });
  const mine = make("td", "", { class: "value", "data-metric": name });
  const theirs = make("td", "", { class: "value other", title: other?.label ?? "" });
  const words = make("td", "", { title: name }, [capital(label), make("span", meaning, { class: "meaning" })]);
  const where = make("td", "", { class: "where" }, [strip(run, name, other ? [otherDot, dot] : [dot])]);
  return { name, mine, theirs, dot, otherDot, row: make("tr", "", {}, [words, where, mine, ...(other ? [theirs] : [])]) };
}

/** A bar with the range, middle half and mean over heads, and a dot for the selected head. */
function strip(run, name, dots) {
  const spread = spreadOf(run, name);
  if (!spread || spread.high === spread.low) return "";
  const middle = make("i", "", { class: "middle" }), mean = make("i", "", { class: "mean" });
  middle.style.left = `${percentOf(spread, spread.q1)}%`;
  middle.style.right = `${100 - percentOf(spread, spread.q3)}%`;
  mean.style.left = `${percentOf(spread, spread.mean)}%`;
  const words = `heads: ${showIn(name, spread.low)} to ${showIn(name, spread.high)}, mean ${showIn(name, spread.mean)}`;
  return make("span", "", { class: "strip", role: "img", "aria-label": words, title: words }, [middle, mean, ...dots]);
}

const percentOf = ({ low, high }, value) => Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)));

function placeDot(dot, run, name, value) {
  const spread = spreadOf(run, name);
  dot.hidden = !spread || !Number.isFinite(value);
  if (!dot.hidden) dot.style.left = `${percentOf(spread, value)}%`;
}

function showRunsTable(runs, current, onRun) {
  const metrics = ["ap_overall", "ap_first20", "ap_last20", "ap_drop", "q_R2_total"].filter((name) => runs.some((run) => spreadOf(run, name)));
  const names = ["run", "heads", ...metrics.map((name) => wordsOf(name).label)];
  const head = make("thead", "", {}, [make("tr", "", {}, names.map((name) => make("th", name, { scope: "col" })))]);
  const rows = runs.map((run, number) => {
    const line = make("i");
    line.style.borderColor = colourOfRun(number);
    const button = make("button", "", { type: "button" }, [line, run.label]);
    button.addEventListener("click", () => onRun(number));
    const cells = metrics.map((name) => fillEstimate(make("td"), showMean(run, name)));
    return make("tr", "", { "aria-current": run === current }, [make("td", "", {}, [button]), make("td", whole(run.counts.shown)), ...cells]);
  });
  byId("runs-meaning").textContent = `mean profile over heads, for every run${uncorrectedWords(runs)}`;
  byId("runs-table").replaceChildren(head, make("tbody", "", {}, rows));
}

function showProvenance(runs) {
  const sections = runs.flatMap((run) => run.provenance.map(([title, lines]) => {
    const list = make("dl", "", {}, lines.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
    return make("section", "", {}, [make("h3", runs.length > 1 ? `${run.label}: ${title}` : title), list]);
  }));
  byId("provenance-list").replaceChildren(...sections);
}
