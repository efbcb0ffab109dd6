// Whether the heads of two runs correspond: the architecture of their models is compared.

const gridWords = ({ grid }) => `${grid[0]} layers × ${grid[1]} heads`;

/**
 * The first difference between the architectures of two runs, as text; empty if their heads
 * correspond. Layers of one run alone are not compared, nor is what a run does not record.
 */
function architectureDifference(run, other) {
  if (gridWords(run) !== gridWords(other)) return `${run.label} has ${gridWords(run)} and ${other.label} ${gridWords(other)}`;
  const differ = (a, b) => a != null && b != null && a !== b;
  if (differ(run.key_heads, other.key_heads)) return `${run.label} has ${plural(run.key_heads, "key head")} per layer and ${other.label} ${whole(other.key_heads)}`;
  const layers = Object.keys(run.layer_types).filter((layer) => layer in other.layer_types);
  if (!layers.length) return `${run.label} and ${other.label} have no layer in common`;
  const wide = layers.find((layer) => differ(run.head_dims[layer], other.head_dims[layer]));
  if (wide !== undefined) return `heads of layer ${wide} have ${plural(run.head_dims[wide], "dimension")} in ${run.label} and ${whole(other.head_dims[wide])} in ${other.label}`;
  if (run.has_layer_type !== other.has_layer_type) return ""; // the types of one run are not recorded
  const layer = layers.find((number) => run.layer_types[number] !== other.layer_types[number]);
  if (layer === undefined) return "";
  return `layer ${layer} has the type ${typeWords(run, run.layer_types[layer])} in ${run.label} and ${typeWords(other, other.layer_types[layer])} in ${other.label}`;
}

const sameArchitecture = (run, other) => architectureDifference(run, other) === "";
