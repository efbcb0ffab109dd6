// Which plasticity the page shows first: at one position, or over a bucket.

/** The columns and words of the plasticity that all these runs have. */
const kindOf = (...shown) => (shown.every((run) => run.at_one_position) ? page.kinds.position : page.kinds.bucket);
const shownKind = () => kindOf(...runsShown());

/** Whether a metric is the drop over the context, which exists at one position only. */
const isDrop = (metric) => metric === page.kinds.position.drop;

/** What a part of the positions is called: bins are those of the analysis, buckets those of the capture. */
const partWord = (run) => (run.at_one_position ? "bin" : "bucket");

/** What the profiles and cells of a run show. */
const cellsWords = (run) => `plasticity ${kindOf(run).words}`;

/** Why a run shows plasticity over a bucket, as a list of at most one sentence. It is empty if a warning of the run has the reason. */
function overBucketsNote(run) {
  if (run.at_one_position || run.warnings.some((text) => text.includes(run.why_over_buckets))) return [];
  return [`Plasticity at one position is not known: ${run.why_over_buckets}.`];
}

/** A sentence that names the runs over a bucket beside runs at one position. */
function mixedWords(shown) {
  const over = shown.filter((run) => !run.at_one_position);
  if (!over.length || over.length === shown.length) return "";
  return `. Plasticity over a bucket is compared, because ${over.map((run) => run.label).join(", ")} ${over.length > 1 ? "have" : "has"} none at one position; profiles show what each run has`;
}
