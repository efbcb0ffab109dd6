"""Every column of every table once: its place, label, meaning, format and group.

The CSV files, the terminal summary, the figures, the words of the page and docs/data-format.md are
made from these tables. The columns of a table are in the order of the CSV file; new columns are
added at its end. This file imports no library.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

from attention_plasticity.estimate.sizes import DISTANCES, GROUPS
from attention_plasticity.metric import (
    ATTENTION,
    DATA,
    FIRST,
    HOW_SURE,
    METRIC_GROUPS,
    PLASTICITY,
    POSITION,
    RESIDUALS,
    Metric,
    Table,
    with_errors,
)

_plasticity = partial(
    Metric, group=PLASTICITY, format="share", error=True, averaged=True, optional=True
)
_change = partial(
    Metric,
    group=PLASTICITY,
    format="difference",
    signed=True,
    error=True,
    averaged=True,
    optional=True,
)
_position = partial(Metric, group=POSITION, error=True, averaged=True, optional=True)
_attention = partial(Metric, group=ATTENTION, error=True, averaged=True, optional=True)

ALIGNED, ALIGNED_COUNTED, ALIGNED_DROP = "ap_aligned", "ap_aligned_counted", "ap_aligned_drop"
ALIGNED_FIRST, ALIGNED_LAST = "ap_aligned_first20", "ap_aligned_last20"
"""RoPE-aligned plasticity in the first and in the last fifth of the longest text."""
DROP_POSITION, DROP_DISTANCE = "ap_aligned_drop_position", "ap_aligned_drop_distance"
"""The parts of the drop: at equal distances of keys, and from other distances. Their sum is it."""
POOLED, PHASE, ATTENDED = "ap_pooled", "ap_phase", "ap_attended"
NEAR, NEAR_DROP, PHASE_DROP = "ap_aligned_near", "ap_aligned_near_drop", "ap_phase_drop"
"""Values of parts of the context, which no table has: RoPE-aligned plasticity with keys at the
distances of the first fifth alone, its drop, and the drop of the rotary phase."""
ATTENTION_MEANS = (
    *("attn_entropy", "attn_sink_mass", "attn_distant_mass", "attn_max_logit", "attn_far_mass"),
)
"""Means over tokens of the attention columns of a dump."""
UNROTATED = ("q_R2_unrotated", "k_R2_unrotated", "q_mean_share")
"""Position in queries and keys before RoPE."""
KERNEL_R2 = "kernel_R2"
BEFORE_ROPE = "_unrotated"
"""Ending of the columns of vectors before RoPE."""
TOKEN_MEANS = (ALIGNED, POOLED, *ATTENTION_MEANS, *UNROTATED)
"""Columns that are means over tokens: captured rows have weights."""

_IDS = (
    Metric("layer", "layer", "number of the layer, from 0", format="index"),
    Metric("q_head", "head", "number of the query head", format="index"),
    Metric("k_head", "key head", "number of the key head that it uses", format="index"),
)
IDS = tuple(metric.column for metric in _IDS)
HEAD = ["layer", "q_head"]
"""The columns that name a query head."""

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
CHUNKED_ATTENTION = "chunked_attention"
"""Types of layers, with the names that transformers uses. A dump can have others."""

# fmt: off
HEAD_METRICS = Table(
    "head_metrics.csv",
    "query head",
    with_errors(
        *_IDS,
        Metric("n_q_tokens", "queries", "number of queries used", DATA, "count"),
        Metric("n_k_tokens", "keys", "number of keys used", DATA, "count"),
        Metric("d_model", "dimensions", "width of a query or key vector", DATA, "count"),
        Metric("q_R2_pos", "R² of position", "share of the variance of queries that position explains, mean over dimensions", POSITION),
        Metric("q_R2_scalar", "position read from a query", "R² of log2(position + 1), predicted by the projection on the drift", POSITION),
        Metric("q_mae_baseline", "error without the query", "mean absolute error when the mean predicts log2(position + 1)", POSITION, shown_after="q_mae_proj"),
        Metric("q_mae_proj", "error with the query", "mean absolute error when the projection on the drift predicts it", POSITION, shown_after="q_mae_ratio"),
        Metric("q_mae_ratio", "error ratio", "error with the query / error without; small: queries predict position", POSITION, shown_after="q_R2_scalar"),
        Metric("q_resid0_skew", "skewness along the drift", "skewness of residuals; 0 for a Gaussian", RESIDUALS, signed=True),
        Metric("q_resid0_kurt", "kurtosis along the drift", "excess kurtosis of residuals; 0 for a Gaussian", RESIDUALS, signed=True),
        Metric("q_resid0_ks_p", "normality p along the drift", "Kolmogorov–Smirnov p-value; small: not Gaussian", RESIDUALS),
        Metric("q_noise_med_abs_skew", "skewness elsewhere", "median |skewness| over the other dimensions", RESIDUALS),
        Metric("q_noise_med_abs_kurt", "kurtosis elsewhere", "median |excess kurtosis| over the other dimensions", RESIDUALS),
        Metric("q_noise_med_ks_p", "normality p elsewhere", "median Kolmogorov–Smirnov p-value over the other dimensions", RESIDUALS),
        Metric("q_noise_frac_ks_p_lt_alpha", "dimensions not Gaussian", "share of tested dimensions with a p-value below p_alpha", RESIDUALS),
        Metric("ap_overall", "plasticity over a bucket", "plasticity of the queries of a bucket as captured, with the rotation of RoPE; 1: the query decides; 0: the order of keys is fixed", PLASTICITY, "share", averaged=True, short="plasticity", note="the **attention plasticity** of the original definition"),
        Metric("q_beta_norm", "drift per token", "length of the mean query's change per token", POSITION, shown_after="q_mae_baseline", any_scale=True),
        Metric("q_R2_total", "variance from position", "share of the variance of queries as captured that a line in position explains", POSITION, shown_after=FIRST),
        Metric("q_position_max", "last position", "largest captured query position, from 0", DATA, "count"),
        Metric("sliding_window", "window", "tokens that a query can attend back to", DATA, "count", nan="full attention"),
        Metric("layer_type", "type of the layer", "type of the layer, such as full_attention", format="text"),
        Metric("n_text_groups", "groups of texts", "number of groups behind standard errors", HOW_SURE, "count", optional=True, note="a value can have fewer"),
        _plasticity(ALIGNED, "RoPE-aligned plasticity", "RoPE-aligned plasticity: every query of a bin is de-rotated to one position, so that RoPE does not count; 1: the query decides which of two keys scores higher; 0: the order of keys is fixed", shown_after=FIRST, short="plasticity"),
        _plasticity(ALIGNED_FIRST, "RoPE-aligned plasticity, first fifth", "in the first fifth of the longest text", short="first fifth", shown_after=DROP_DISTANCE),
        _plasticity(ALIGNED_LAST, "RoPE-aligned plasticity, last fifth", "in the last fifth of the longest text", short="last fifth", shown_after=ALIGNED_FIRST),
        _change(ALIGNED_DROP, "drop", "the first fifth of the longest text minus the last; much of it can come from distance", shown_after=ALIGNED),
        _plasticity(ALIGNED_COUNTED, "counted RoPE-aligned plasticity", "from counts of queries, without a Gaussian", shown_after=ALIGNED_LAST),
        _plasticity(POOLED, "plasticity over a bin", "the same pairs with the queries as captured", shown_after=PHASE),
        _change(PHASE, "rotary phase", "plasticity over a bin minus RoPE-aligned plasticity: what RoPE inside a bin adds", shown_after=ALIGNED_COUNTED),
        _plasticity(ATTENDED, "attended plasticity", "RoPE-aligned plasticity of keys drawn in proportion to the attention that they receive", note="without the first four tokens"),
        _position("q_R2_unrotated", "variance from position before RoPE", "share of the variance that a line in position explains: how far the content of queries drifts", shown_after="q_R2_total"),
        _position("k_R2_unrotated", "variance of keys from position before RoPE", "the same for the keys", shown_after="q_R2_unrotated"),
        _position("q_mean_share", "share of the mean query", "squared length of the mean query / mean squared length, before RoPE; 1: all queries are equal", format="share", shown_after="k_R2_unrotated"),
        _position(KERNEL_R2, "R² of the rotary kernel", "how much of the mean logit by distance the mean query and the mean key explain", signed=True, shown_after="q_mean_share"),
        _attention("attn_entropy", "attention entropy", "mean attention entropy of a query, in nats", shown_after="attn_distant_mass"),
        _attention("attn_sink_mass", "attention on sinks", "mean attention on sinks, the first four tokens", format="share"),
        _attention("attn_distant_mass", "distant attention", "mean distant attention: on keys distant_from tokens (256 by default) or more before the query", format="share"),
        _attention("attn_max_logit", "largest logit", "mean over queries of the largest logit", shown_after="attn_entropy"),
        _attention("attn_far_mass", "far attention", "mean far attention: on keys distant_from tokens (256 by default) or more before the query, without the first four tokens", format="share", shown_after="attn_sink_mass"),
        _change(DROP_POSITION, "drop from position", "part of the drop at equal distances from query to key; positive: the query decides less at later positions", shown_after=ALIGNED_DROP),
        _change(DROP_DISTANCE, "drop from distance", "the rest of the drop, because queries of the last fifth have farther keys", shown_after=DROP_POSITION),
    ),
)

_QUERY_BUCKET = Metric("q_bucket", "query bucket", "number of the query bucket", format="index")
_PAIRS = Metric("n_pairs", "pairs", "number of pairs", format="count")

BUCKET_PLASTICITY = Table(
    "head_bucket_plasticity.csv",
    "head, query bucket and eligible key bucket",
    (
        *_IDS,
        _QUERY_BUCKET,
        Metric("k_bucket", "key bucket", "an eligible, earlier key bucket", format="index"),
        Metric("plasticity", "plasticity", "mean plasticity of the pairs of the cell", format="share"),
        _PAIRS,
        Metric("q_position", "query position", "mean query position", format="count"),
        Metric("k_position", "key position", "mean key position", format="count"),
        Metric("n_queries", "queries", "number of queries", format="count"),
        Metric("n_texts", "texts", "number of texts that these queries come from", format="count"),
    ),
)
BIN_PLASTICITY = Table(
    "head_bin_plasticity.csv",
    "head, query bin and key bin, if RoPE-aligned plasticity is known",
    (
        *_IDS,
        Metric("q_bin", "query bin", "number of the bin", format="index"),
        Metric("k_bin", "key bin", "number of the bin", format="index"),
        Metric("plasticity", "plasticity", "RoPE-aligned plasticity, a mean over the pairs of the cell", format="share"),
        _PAIRS,
        Metric("q_position", "query position", "mean query position, to which queries are de-rotated", format="count"),
        Metric("k_position", "key position", "mean key position", format="count"),
        Metric("n_queries", "queries", "number of queries", format="count"),
        Metric("n_texts", "texts", "number of texts that these queries come from", format="count"),
        Metric("plasticity_se", "error", "standard error of the cell", format="error"),
        Metric("pooled", "plasticity over the bin", "the same pairs with the queries as captured", format="share"),
        Metric("pooled_se", "error over the bin", "its standard error", format="error"),
        Metric("q_start", "first query position", "first and last position of both bins", format="count"),
        Metric("q_end", "last query position", "first and last position of both bins", format="count"),
        Metric("k_start", "first key position", "first and last position of both bins", format="count"),
        Metric("k_end", "last key position", "first and last position of both bins", format="count"),
        Metric("q_weight", "tokens", "tokens that these queries stand for: the weight of the bin in means", format="count"),
    ),
)
COMPONENT_WEIGHTS = Table(
    "head_component_weights.csv",
    "head and dimension",
    (
        *_IDS,
        Metric("component", "dimension", "dimension of the captured vector", format="index"),
        Metric("weight", "weight", "share of positional information in this dimension", format="share", note="the weights of a head sum to 1"),
        Metric("r2", "R²", "R² of predicting this dimension from position"),
    ),
)
DISTANCES_OF_KEYS = Table(
    "head_distance.csv",
    "head and distance, if RoPE-aligned plasticity is known",
    (
        *_IDS,
        Metric("distance_bin", "distance in bins", "query bin minus key bin", format="index"),
        Metric("first_distance", "first distance", "smallest and largest distance from a query to the nearer key of a pair", format="count"),
        Metric("last_distance", "last distance", "smallest and largest distance from a query to the nearer key of a pair", format="count"),
        Metric("distance", "distance", "mean distance from the query to the middle of both keys", format="count"),
        Metric("plasticity", "plasticity", "RoPE-aligned plasticity of the cells at this distance", format="share"),
        Metric("plasticity_se", "error", "its standard error", format="error"),
        Metric("pooled", "plasticity over the bin", "the same pairs with the queries as captured", format="share"),
        Metric("pooled_se", "error over the bin", "its standard error", format="error"),
        Metric("first20", "first fifth", "the same for queries of the first fifth of the longest text", format="share", nan="no such query sees keys at this distance"),
        Metric("first20_se", "error of the first fifth", "its standard error", format="error", nan="as before, or fewer than 4 groups of texts"),
        Metric("first20_share", "share of the first fifth", "weight of this distance in the mean of the first fifth", format="share", nan="the first fifth has no value"),
        Metric("last20", "last fifth", "the same for queries of the last fifth", format="share", nan="no such query sees keys at this distance"),
        Metric("last20_se", "error of the last fifth", "its standard error", format="error", nan="as before, or fewer than 4 groups of texts"),
        Metric("last20_share", "share of the last fifth", "weight of this distance in the mean of the last fifth", format="share", nan="the last fifth has no value"),
        _PAIRS,
        Metric("n_groups", "groups", "groups of texts behind the value", format="count"),
    ),
)
BIN_QUANTITY, POOLED_BIN_QUANTITY = "ap_bin", "ap_bin_pooled"
"""Plasticity of one bin of queries, at one position and over the bin, in the table of influences."""
NEAR_BIN_QUANTITY, DISTANCE_QUANTITY = "ap_bin_near", "ap_distance"
"""The same at one position, with keys at the distances of the first fifth alone; plasticity of
`head_distance.csv`."""
BAND_QUANTITY, UNTURNED_QUANTITY = "band_share", "unturned_share"
"""Shares of the variance of the logit, in the table of influences: of one eighth of the rotary
bands, and of the dimensions that RoPE does not turn."""
GROUP_COLUMNS = tuple(f"group_{group:02d}" for group in range(GROUPS))

INFLUENCES = Table(
    "head_influences.csv",
    "head and quantity",
    (
        *_IDS,
        Metric("quantity", "quantity", "a column of another table; ap_bin, ap_bin_near, ap_bin_pooled: plasticity of one bin, RoPE-aligned, the same at the distances of the first fifth, and over the bin; ap_distance: of one distance; band_share: share of an eighth of the rotary bands in the variance of the logit; unturned_share: of dimensions that RoPE does not turn", format="text"),
        Metric("bin", "bin", "bin of ap_bin…; distance in bins of ap_distance; eighth of band_share, from 0 (the fastest bands) to 7", format="index", nan="a quantity of the whole head"),
        Metric("value", "value", "value of the quantity, without its bias"),
        Metric("n_groups", "groups", "groups of texts behind the value", format="count"),
        *(
            Metric(name, f"influence of group {group}", "influence of a group of texts", signed=True, note="0 for a group without texts")
            for group, name in enumerate(GROUP_COLUMNS)
        ),
    ),
)
BUCKET_MEANS = ("entropy", "sink_mass", "max_logit")
MASS_COLUMNS = tuple(f"mass_{distance}" for distance in DISTANCES)

ATTENTION_BY_BUCKET = Table(
    "head_attention.csv",
    "head and query bucket with a query of known attention",
    with_errors(
        *_IDS,
        _QUERY_BUCKET,
        Metric("q_position", "query position", "mean query position", format="count"),
        Metric("n_queries", "queries", "queries with known attention", format="count"),
        Metric("n_groups", "groups", "groups of texts of these queries", format="count"),
        Metric("entropy", "entropy", "mean entropy of the attention, in nats", error=True),
        Metric("sink_mass", "attention on sinks", "mean attention on sinks, the first four tokens", format="share", error=True),
        Metric("max_logit", "largest logit", "mean of the largest logit", error=True),
        *(
            Metric(name, f"attention at distance {distance}", "mean weight at the distances of a bin", format="share", error=True, note="0, 1, 2–3, 4–7 and so on; the last also has all larger distances")
            for name, distance in zip(MASS_COLUMNS, DISTANCES, strict=True)
        ),
        Metric("n_tokens", "tokens", "tokens that these queries stand for", format="count"),
    ),
)
_role = partial(Metric, format="share", error=True)

ROLES = Table(
    "head_roles.csv",
    "head with known attention of its queries",
    with_errors(
        *_IDS,
        Metric("role", "role", "what the head does, by thresholds; unsure if an interval that decides contains one or is not known", format="text"),
        Metric("likely_role", "likely role", "the role by the values alone", format="text"),
        Metric("n_queries", "queries", "queries with known attention", format="count"),
        Metric("n_groups", "groups", "groups of texts of these queries", format="count"),
        _role("self_mass", "attention on itself", "mean attention on itself"),
        _role("previous_mass", "attention on the previous token", "mean attention on the previous token"),
        _role("local_mass", "local attention", "mean attention on tokens 2 to 7 before the query"),
        _role("first_mass", "attention on the first token", "mean attention on the first token"),
        _role("sink_rate", "sink rate", "share of queries with more than .3 of their attention on token 0"),
        _role("far_mass", "far attention", "attn_far_mass of head_metrics.csv"),
        _role("duplicate_mass", "attention on the same token", "mean attention on the same token at earlier positions"),
        _role("duplicate_chance", "chance of the same token", "the same if all visible keys had equal weight"),
        _role("duplicate_excess", "same token over chance", "attention on the same token minus its chance", format="difference", signed=True),
        _role("induction_mass", "attention after the same token", "mean attention on keys whose previous token is the token of the query"),
        _role("induction_chance", "chance after the same token", "the same if all visible keys had equal weight"),
        _role("induction_excess", "induction over chance", "attention after the same token minus its chance", format="difference", signed=True),
        _role("top_weight", "largest weight", "mean of the largest attention weight of a query"),
        _role("effective_keys", "effective keys", "mean of exp(entropy): as many keys with equal weights have this entropy", format="number"),
        _role("repeated_induction", "induction score", "on random tokens that come twice, mean attention on the token after the first occurrence"),
        _role("repeated_duplicate", "duplicate score", "on random tokens that come twice, mean attention on the first occurrence"),
        _role("repeated_previous", "previous-token score", "on random tokens that come twice, mean attention on the previous token"),
        Metric("repeated_groups", "groups of repeated texts", "groups of texts behind these three scores", format="count"),
    ),
)
WORDS = Table(
    "head_words.csv",
    "head and query that is shown as an example, if the dump has tokens",
    (
        *_IDS,
        Metric("kind", "kind", "strongest: one of the largest weights, not on token 0; typical: at a quantile", format="text"),
        Metric("example_id", "text", "number of the text", format="index"),
        Metric("q_position", "query position", "position of the query", format="count"),
        Metric("k_position", "key position", "position of the key with the largest weight", format="count"),
        Metric("distance", "distance", "tokens from this key to the query", format="count"),
        Metric("weight", "weight", "attention weight of this key", format="share"),
        Metric("query_token", "token of the query", "text of the token", format="text"),
        Metric("key_token", "token of the key", "text of the token", format="text"),
    ),
)
_GROUPS_OF_ROW = Metric("n_groups", "groups", "groups of texts behind the value", format="count")

BANDS = Table(
    "head_bands.csv",
    "head and pair of dimensions that RoPE turns with one frequency",
    with_errors(
        *_IDS,
        Metric("band", "band", "number of the frequency, from 0", format="index"),
        Metric("frequency", "frequency", "radians by which RoPE turns the pair per token"),
        Metric("wavelength", "wavelength", "tokens per turn", nan="the pair does not turn"),
        Metric("norm_product", "size", "mean length of queries times mean length of keys, in logits", error=True, any_scale=True),
        Metric("variance_share", "share of the variance", "share of the variance of the logit over pairs", format="difference", signed=True, error=True),
        Metric("q_concentration", "concentration of queries", "length of the mean query / mean length, before RoPE; 1: all have one direction", format="share", error=True),
        Metric("k_concentration", "concentration of keys", "the same for keys", format="share", error=True),
        Metric("kernel_amplitude", "amplitude of the kernel", "length of the mean query times length of the mean key, in logits", any_scale=True),
        Metric("kernel_phase", "phase of the kernel", "angle from the mean key to the mean query before RoPE, in radians", signed=True, nan="the amplitude is zero"),
        _GROUPS_OF_ROW,
    ),
)
KERNEL = Table(
    "head_kernel.csv",
    "head and bin of distances of a query and an earlier key",
    with_errors(
        *_IDS,
        Metric("first_distance", "first distance", "first and last distance of the bin", format="index"),
        Metric("last_distance", "last distance", "first and last distance of the bin", format="index"),
        Metric("distance", "distance", "mean distance of the pairs", format="count"),
        Metric("mean_logit", "mean logit", "mean logit of the pairs, before a soft-cap", error=True, any_scale=True),
        Metric("kernel", "rotary kernel", "logit of the mean query and the mean key, rotated to the positions of the pairs", any_scale=True),
        Metric("n_pairs", "pairs", "number of pairs of a query and an earlier key", format="count"),
        _GROUPS_OF_ROW,
    ),
)
_of_group = partial(Metric, format="share", error=True, averaged=True)

KEY_HEADS = Table(
    "key_head_metrics.csv",
    "key head, if the texts of its rows are known",
    with_errors(
        _IDS[0],
        Metric("k_head", "key head", "number of the key head", format="index"),
        Metric("n_q_heads", "query heads", "number of query heads of the group", format="count"),
        Metric("layer_type", "type of the layer", "type of the layer, such as full_attention", format="text"),
        Metric("sliding_window", "window", "tokens that a query can attend back to", format="count", nan="full attention"),
        Metric("n_pairs", "pairs", "number of tokens with two earlier keys", format="count"),
        Metric("n_queries", "queries per pair", "mean number of queries of the group in the bin of the token", format="count"),
        Metric("n_groups", "groups", "groups of texts behind the value", format="count"),
        _of_group("aligned_plasticity", "RoPE-aligned plasticity of the key head", "RoPE-aligned plasticity of the key head: of two keys that a token sees, from counts of the queries of the group in its bin", short="RoPE-aligned plasticity"),
        _of_group("static_error", "static error", "share of these queries whose preferred key the queries of other texts do not predict: the error that a ranking without a query cannot avoid"),
        _of_group("far_mass", "far attention of the group", "attn_far_mass of head_metrics.csv, as a mean over the group", short="far"),
        _of_group("received_gini", "concentration of received attention", "Gini coefficient of the attention that keys receive; 0: all the same, near 1: one key receives all", short="Gini"),
        _of_group("received_half", "keys with half of the attention", "smallest share of the keys of a text that receives half of it"),
    ),
)

_VECTORS = {"q": "queries", "k": "keys"}
_OTHERS = {"q": "mean key", "k": "mean query"}
_FRAMES = {"": "", BEFORE_ROPE: ", before RoPE"}


def _drift_column(kind: str, ending: str) -> Metric:
    """The column of queries or keys in one frame."""
    name, frame = _VECTORS[kind], _FRAMES[ending]
    where = " before RoPE" * bool(ending)
    return Metric(f"{kind}_logit_drift{ending}", f"logit drift of {name}{where}", f"change of the mean logit over the longest text by the drift of {name}, with the {_OTHERS[kind]}{frame}", signed=True, error=True, any_scale=True)


DRIFT = Table(
    "head_drift.csv",
    "head, if texts are known",
    with_errors(
        *_IDS,
        *(_drift_column(kind, ending) for ending in _FRAMES for kind in _VECTORS),
        Metric("n_groups", "groups", "groups of texts behind the value", format="count"),
    ),
)
# fmt: on

TableKind = Literal[
    "head_metrics",
    "bucket_plasticity",
    "component_weights",
    "influences",
    "attention",
    "bins",
    "distances",
    "roles",
    "words",
    "bands",
    "kernel",
    "key_heads",
    "drift",
]
TABLES: dict[TableKind, Table] = {
    "head_metrics": HEAD_METRICS,
    "bucket_plasticity": BUCKET_PLASTICITY,
    "component_weights": COMPONENT_WEIGHTS,
    "influences": INFLUENCES,
    "attention": ATTENTION_BY_BUCKET,
    "bins": BIN_PLASTICITY,
    "distances": DISTANCES_OF_KEYS,
    "roles": ROLES,
    "words": WORDS,
    "bands": BANDS,
    "kernel": KERNEL,
    "key_heads": KEY_HEADS,
    "drift": DRIFT,
}

_OF_PARTS = (
    Metric(
        NEAR,
        "RoPE-aligned plasticity, near keys",
        "with keys at the distances of the first fifth",
        format="share",
    ),
    Metric(
        NEAR_DROP,
        "drop, near keys",
        "its value in the first part minus that in a later part",
        format="difference",
        signed=True,
    ),
    Metric(
        PHASE_DROP,
        "drop of rotary phase",
        "rotary phase in the first part minus that in a later part",
        format="difference",
        signed=True,
    ),
)
ORIGINAL_TABLES: tuple[TableKind, ...] = ("bucket_plasticity", "component_weights")
ORIGINAL_COLUMNS = (
    *("q_R2_pos", "q_R2_scalar", "q_mae_baseline", "q_mae_proj", "q_mae_ratio"),
    *("q_resid0_skew", "q_resid0_kurt", "q_resid0_ks_p"),
    *("q_noise_med_abs_skew", "q_noise_med_abs_kurt", "q_noise_med_ks_p"),
    *("q_noise_frac_ks_p_lt_alpha", "ap_overall", "q_beta_norm", "q_R2_total"),
)
"""Columns of the table of heads that an analysis with `original_columns: false` leaves out."""
LEFT_OUT = "original_columns is false"


def written_columns(kind: TableKind, *, original: bool) -> tuple[str, ...]:
    """The columns of the CSV file of a table, with or without those of the original definition."""
    left_out = ORIGINAL_COLUMNS if kind == "head_metrics" and not original else ()
    return tuple(name for name in TABLES[kind].names if name not in left_out)


METRICS = {metric.column: metric for metric in (*HEAD_METRICS.columns, *_OF_PARTS)}
"""The columns of the table of heads, and values of parts of the context."""


def label_of(column: str) -> str:
    """A column of the table of heads in words; its name if it is not known."""
    return METRICS[column].label if column in METRICS else column


HEAD_NUMBERS = tuple(metric.column for metric in HEAD_METRICS.columns if metric.format != "text")


def shown_groups() -> Iterator[tuple[str, list[str]]]:
    """Headings of the page, each with its columns of the table of heads in reading order."""
    for group in METRIC_GROUPS:
        members = [metric for metric in HEAD_METRICS.columns if metric.group == group]
        names = [metric.column for metric in members if metric.shown_after is None]
        waiting = [metric for metric in members if metric.shown_after is not None]
        while waiting:
            metric = next(one for one in waiting if one.shown_after in (FIRST, *names))
            waiting.remove(metric)
            place = 0 if metric.shown_after == FIRST else names.index(metric.shown_after or "") + 1
            names.insert(place, metric.column)
        yield group, names
