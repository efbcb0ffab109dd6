// The table of key heads: a row per key head, with the queries of all query heads of its group.

function showKeyHeads(run) {
  const found = run.key_head_rows;
  byId("key-heads-panel").hidden = !found;
  if (!found) return;
  const names = [["key head", "layer and number of the key head"], ["query heads", "number of query heads of the group that were analysed"], ...found.headings];
  const head = make("thead", "", {}, [make("tr", "", {}, names.map(([name, meaning]) => make("th", name, { scope: "col", title: meaning })))]);
  const shown = found.rows.filter(([layer]) => state.layers === null || run.layer_types[layer] === state.layers);
  const rows = shown.map(([layer, head, heads, ...values]) => make("tr", "", { "data-key": keyOf(layer, head) }, [
    make("td", `layer ${layer}, key head ${head}`), make("td", whole(heads)), ...values.map((text) => fillEstimate(make("td"), text)),
  ]));
  byId("key-heads-table").replaceChildren(head, make("tbody", "", {}, rows));
}

/** The key head of a query head, as `layer.head`; null if it is not known. */
function keyHeadOf(run, key) {
  const columns = run.tables.heads.columns, row = run.rowOf.get(key);
  return row === undefined || !columns.k_head ? null : keyOf(columns.layer[row], columns.k_head[row]);
}

/** Mark the key head of the selected query head. */
function markKeyHead(run, key) {
  const own = keyHeadOf(run, key);
  for (const line of byId("key-heads-table").querySelectorAll("tbody tr")) line.setAttribute("aria-current", line.dataset.key === own);
}
