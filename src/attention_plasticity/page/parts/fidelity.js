// Scores that rank keys without a query: means over key heads, and the key head of the selected head.

function showFidelity(run, key) {
  const found = run.fidelity;
  byId("fidelity-panel").hidden = !found;
  if (!found) return;
  byId("fidelity-caution").textContent = found.caution;
  const own = keyHeadOf(run, key), values = own === null ? undefined : found.heads[own];
  const wide = { scope: "colgroup", colspan: found.headings.length };
  const [layer, head] = own === null ? [] : own.split(".");
  const top = [make("th"), make("th", found.of, wide), ...(values ? [make("th", `layer ${layer}, key head ${head}`, wide)] : [])];
  const names = found.headings.map(([name, meaning]) => () => make("th", name, { scope: "col", title: meaning }));
  const headings = [make("th", "score", { scope: "col" }), ...names.map((one) => one()), ...(values ? names.map((one) => one()) : [])];
  const cells = (texts) => texts.map((text) => fillEstimate(make("td"), text));
  const rows = found.scores.map((score, place) => make("tr", "", { "data-score": score.id }, [
    make("th", score.label, { scope: "row" }), ...cells(found.means[place]), ...(values ? cells(values[place]) : []),
  ]));
  byId("fidelity-table").replaceChildren(make("thead", "", {}, [make("tr", "", {}, top), make("tr", "", {}, headings)]), make("tbody", "", {}, rows));
}
