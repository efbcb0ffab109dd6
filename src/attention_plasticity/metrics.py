"""Every column of every table once: its place, label, meaning, unit, format and group.

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
"""Plasticity at one position in the first and in the last fifth of the longest text."""
POOLED, PHASE, ATTENDED = "ap_pooled", "ap_phase", "ap_attended"
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
        Metric("q_R2_pos", "R² of position", "fraction of the variance of queries explained by position, as a mean over dimensions", POSITION),
        Metric("q_R2_scalar", "position read from a query", "R² of predicting log2(position + 1) from the projection of a query on the drift", POSITION),
        Metric("q_mae_baseline", "error without the query", "mean absolute error when the mean predicts log2(position + 1)", POSITION, shown_after="q_mae_proj"),
        Metric("q_mae_proj", "error with the query", "mean absolute error when the projection of a query on the drift predicts log2(position + 1)", POSITION, shown_after="q_mae_ratio"),
        Metric("q_mae_ratio", "error ratio", "error with the query / error without; small: queries predict position", POSITION, shown_after="q_R2_scalar"),
        Metric("q_resid0_skew", "skewness along the drift", "skewness of the residuals of the regression; 0 for a Gaussian", RESIDUALS, signed=True),
        Metric("q_resid0_kurt", "kurtosis along the drift", "excess kurtosis of residuals; 0 for a Gaussian", RESIDUALS, signed=True),
        Metric("q_resid0_ks_p", "normality p along the drift", "Kolmogorov–Smirnov p-value; small: not Gaussian", RESIDUALS),
        Metric("q_noise_med_abs_skew", "skewness elsewhere", "median |skewness| over the other dimensions", RESIDUALS),
        Metric("q_noise_med_abs_kurt", "kurtosis elsewhere", "median |excess kurtosis| over the other dimensions", RESIDUALS),
        Metric("q_noise_med_ks_p", "normality p elsewhere", "median Kolmogorov–Smirnov p-value over the other dimensions", RESIDUALS),
        Metric("q_noise_frac_ks_p_lt_alpha", "dimensions not Gaussian", "share of tested dimensions whose p-value is below p_alpha", RESIDUALS),
        Metric("ap_overall", "plasticity over a bucket", "plasticity of the queries of a bucket as captured, with the rotation of RoPE; 1: the query decides which of two keys scores higher; 0: the order of keys is fixed", PLASTICITY, "share", averaged=True, note="the **attention plasticity** of the head as the original definition has it, a mean over its queries; without an error"),
        Metric("q_beta_norm", "drift per token", "length of the mean query's change per token", POSITION, shown_after="q_mae_baseline", any_scale=True, note="it has the scale of the queries"),
        Metric("q_R2_total", "variance from position", "fraction of the variance of queries that a linear function of position explains, as captured; with RoPE this is mostly the rotation of the mean query", POSITION, shown_after=FIRST, note="the same in any basis"),
        Metric("q_position_max", "last position", "largest captured query position, counted from 0", DATA, "count", "tokens", note="the end of the observed context"),
        Metric("sliding_window", "window", "tokens that a query can attend back to", DATA, "count", "tokens", nan="full attention"),
        Metric("layer_type", "type of the layer", "full_attention, sliding_attention, chunked_attention, or another name in dump.json", format="text", note="without dump.json it follows from sliding_window"),
        Metric("n_text_groups", "groups of texts", "number of groups from which standard errors are computed", HOW_SURE, "count", optional=True, note="at most 16; the interval of a value has the groups of this value, `n_groups` in head_influences.csv, and one degree of freedom less"),
        _plasticity(ALIGNED, "plasticity at one position", "plasticity of queries at one position: every query of a bin is turned to one position, so that the rotation of RoPE does not count; 1: the query decides which of two keys scores higher; 0: the order of keys is fixed", shown_after=FIRST, note="a mean over tokens"),
        _plasticity(ALIGNED_FIRST, "at one position, first fifth", "plasticity at one position in the first fifth of the longest text", shown_after=ALIGNED_DROP),
        _plasticity(ALIGNED_LAST, "at one position, last fifth", "plasticity at one position in the last fifth of the longest text", shown_after=ALIGNED_FIRST),
        _change(ALIGNED_DROP, "drop at one position", "plasticity at one position in the first fifth of the longest text minus the last fifth; positive: plasticity falls with position", shown_after=ALIGNED),
        _plasticity(ALIGNED_COUNTED, "counted at one position", "plasticity at one position from counts of queries, without a Gaussian", shown_after=ALIGNED_LAST),
        _plasticity(POOLED, "plasticity over a bin", "the same pairs, bins and weights with the queries as captured", shown_after=PHASE),
        _change(PHASE, "rotary phase", "plasticity over a bin minus plasticity at one position: what the rotation of RoPE inside a bin adds", shown_after=ALIGNED_COUNTED),
        _plasticity(ATTENDED, "attended plasticity", "plasticity at one position of two earlier keys, drawn in proportion to the attention that they receive", note="without the first four tokens"),
        _position("q_R2_unrotated", "variance from position before RoPE", "fraction of the variance of queries that a linear function of position explains, before RoPE: how far the content of queries drifts with position", shown_after="q_R2_total"),
        _position("k_R2_unrotated", "variance of keys from position before RoPE", "the same for the keys of its key head: how far the content of keys drifts with position", shown_after="q_R2_unrotated"),
        _position("q_mean_share", "share of the mean query", "squared length of the mean query / mean squared length of a query, before RoPE; 1: all queries are equal", format="share", shown_after="k_R2_unrotated"),
        _position(KERNEL_R2, "R² of the rotary kernel", "share of the variance of the mean logit over distances that the rotary kernel explains: the logit of the mean query and the mean key; 1: distance acts through these means alone", signed=True, shown_after="q_mean_share", note="it is below 0 if the kernel is further from the mean logit than a constant is"),
        _attention("attn_entropy", "attention entropy", "mean entropy of the attention of a query, in nats", unit="nats", shown_after="attn_distant_mass"),
        _attention("attn_sink_mass", "attention on sinks", "mean share of the attention of a query on the first four tokens", format="share"),
        _attention("attn_distant_mass", "distant attention", "mean share of the attention of a query on keys that are distant_from tokens (256 by default) or more before it", format="share"),
        _attention("attn_max_logit", "largest logit", "mean over queries of the largest logit", shown_after="attn_entropy"),
        _attention("attn_far_mass", "far attention", "mean share of the attention of a query on keys that are distant_from tokens (256 by default) or more before it, without the first four tokens of the text", format="share", shown_after="attn_sink_mass"),
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
        Metric("plasticity", "plasticity", "mean over the pairs of the cell", format="share", note="`nan` if the cell has no pair"),
        _PAIRS,
        Metric("q_position", "query position", "mean position of the queries of the query bucket", format="count", unit="tokens"),
        Metric("k_position", "key position", "mean position of the keys of the key bucket", format="count", unit="tokens"),
        Metric("n_queries", "queries", "number of queries of the query bucket", format="count"),
        Metric("n_texts", "texts", "number of texts that these queries come from", format="count", note="`nan` if the texts are not known"),
    ),
)
BIN_PLASTICITY = Table(
    "head_bin_plasticity.csv",
    "head, bin of queries and bin of keys that they see, if plasticity at one position is known",
    (
        *_IDS,
        Metric("q_bin", "query bin", "number of the bin of the queries", format="index"),
        Metric("k_bin", "key bin", "number of a bin of keys that the queries see", format="index"),
        Metric("plasticity", "plasticity", "plasticity at one position, mean over the pairs of the cell", format="share", note="`nan` if the cell has no pair"),
        _PAIRS,
        Metric("q_position", "query position", "mean position of the queries of the bin, to which they are turned", format="count", unit="tokens"),
        Metric("k_position", "key position", "mean position of the keys of the bin", format="count", unit="tokens"),
        Metric("n_queries", "queries", "number of queries of the bin", format="count"),
        Metric("n_texts", "texts", "number of texts that these queries come from", format="count", note="`nan` if the texts are not known"),
        Metric("plasticity_se", "error", "standard error of the cell", format="error"),
        Metric("pooled", "plasticity over the bin", "the same pairs with the queries as captured", format="share"),
        Metric("pooled_se", "error over the bin", "its standard error", format="error"),
        Metric("q_start", "first query position", "first position of the bin of queries", format="count", unit="tokens"),
        Metric("q_end", "last query position", "last position of the bin of queries", format="count", unit="tokens"),
        Metric("k_start", "first key position", "first position of the bin of keys", format="count", unit="tokens"),
        Metric("k_end", "last key position", "last position of the bin of keys", format="count", unit="tokens"),
        Metric("q_weight", "tokens", "number of tokens that the queries of the bin stand for: the sum of 1/π", format="count", note="the weight of the bin in means over tokens"),
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
BIN_QUANTITY, POOLED_BIN_QUANTITY = "ap_bin", "ap_bin_pooled"
"""Plasticity of one bin of queries, at one position and over the bin, in the table of influences."""
BAND_QUANTITY, UNTURNED_QUANTITY = "band_share", "unturned_share"
"""Shares of the variance of the logit, in the table of influences: of one eighth of the rotary
bands, and of the dimensions that RoPE does not turn."""
GROUP_COLUMNS = tuple(f"group_{group:02d}" for group in range(GROUPS))

INFLUENCES = Table(
    "head_influences.csv",
    "head and quantity",
    (
        *_IDS,
        Metric("quantity", "quantity", "a column with a standard error of head_metrics.csv, head_drift.csv or head_roles.csv; ap_bin: plasticity at one position of one bin of queries; ap_bin_pooled: plasticity over this bin; band_share: share of the variance of the logit of one eighth of the rotary bands; unturned_share: that of the dimensions that RoPE does not turn", format="text"),
        Metric("bin", "bin", "bin of ap_bin and ap_bin_pooled, or eighth of band_share, from 0 (the fastest bands) to 7", format="index", nan="a quantity of the whole head"),
        Metric("value", "value", "value of the quantity, without its bias"),
        Metric("n_groups", "groups", "number of groups of texts behind the value", format="count", note="its interval has one degree of freedom less"),
        *(
            Metric(name, f"influence of group {group}", "influence of a group of texts", signed=True, note="0 for a group without texts; `nan` if there are too few groups")
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
        Metric("q_position", "query position", "mean position of these queries", format="count", unit="tokens"),
        Metric("n_queries", "queries", "number of queries with known attention", format="count"),
        Metric("n_groups", "groups", "number of groups of texts of these queries", format="count", note="`nan` if texts are not known"),
        Metric("entropy", "entropy", "mean entropy of the attention", unit="nats", error=True),
        Metric("sink_mass", "attention on sinks", "mean weight of the first four tokens", format="share", error=True),
        Metric("max_logit", "largest logit", "mean of the largest logit", error=True),
        *(
            Metric(name, f"attention at distance {distance}", "mean weight at the distances of a bin", format="share", error=True, note="bins 0, 1, 2–3, 4–7 and so on; the last also has all larger distances")
            for name, distance in zip(MASS_COLUMNS, DISTANCES, strict=True)
        ),
        Metric("n_tokens", "tokens", "number of tokens that these queries stand for: sum of 1 / keep probability", format="count", note="equals `n_queries` if the probabilities are not known"),
    ),
)
_role = partial(Metric, format="share", error=True)

ROLES = Table(
    "head_roles.csv",
    "head with known attention of its queries",
    with_errors(
        *_IDS,
        Metric("role", "role", "what the head does, by thresholds; unsure if an interval contains a threshold that decides", format="text", note="roles and thresholds are in the method"),
        Metric("likely_role", "likely role", "the role by the values alone", format="text"),
        Metric("n_queries", "queries", "number of queries with known attention", format="count"),
        Metric("n_groups", "groups", "number of groups of texts of these queries", format="count", note="`nan` if texts are not known"),
        _role("self_mass", "attention on itself", "mean share of attention of a query on its own token"),
        _role("previous_mass", "attention on the previous token", "mean share of attention on the token before the query", note="over queries from position 1 on"),
        _role("local_mass", "local attention", "mean share of attention on tokens 2 to 7 before the query", note="over queries from position 2 on"),
        _role("first_mass", "attention on the first token", "mean share of attention on token 0", note="over queries from position 1 on that see token 0"),
        _role("sink_rate", "sink rate", "share of queries with more than .3 of their attention on token 0", note="over queries from position 1 on that see token 0"),
        _role("far_mass", "far attention", "mean share of attention on keys that are distant_from tokens (256 by default) or more before the query, without the first four tokens of the text"),
        _role("duplicate_mass", "attention on the same token", "mean share of attention on earlier keys with the token of the query", note="over queries that see such a key"),
        _role("duplicate_chance", "chance of the same token", "the same if all visible keys had equal weight"),
        _role("duplicate_excess", "same token over chance", "attention on the same token minus its chance", format="difference", signed=True),
        _role("induction_mass", "attention after the same token", "mean share of attention on keys whose previous token is the token of the query", note="over queries that see such a key"),
        _role("induction_chance", "chance after the same token", "the same if all visible keys had equal weight"),
        _role("induction_excess", "induction over chance", "attention after the same token minus its chance", format="difference", signed=True),
        _role("top_weight", "largest weight", "mean of the largest attention weight of a query"),
        _role("effective_keys", "effective keys", "mean over queries of exp(entropy): the number of keys with equal weights that have the same entropy", format="number"),
        _role("repeated_induction", "induction score", "on random tokens that come twice: mean attention of a token of the second half on the token after its first occurrence"),
        _role("repeated_duplicate", "duplicate score", "on random tokens that come twice: mean attention of a token of the second half on its first occurrence"),
        _role("repeated_previous", "previous-token score", "on random tokens that come twice: mean attention on the previous token"),
        Metric("repeated_groups", "groups of repeated texts", "number of groups of texts behind these three scores", format="count", note="`nan` without a dump of repeated tokens"),
    ),
)
WORDS = Table(
    "head_words.csv",
    "head and query that is shown as an example, if the dump has tokens",
    (
        *_IDS,
        Metric("kind", "kind", "strongest: a query with one of the largest weights, on a key that is not token 0; typical: a query at one of five quantiles of the largest weight", format="text"),
        Metric("example_id", "text", "number of the text", format="index"),
        Metric("q_position", "query position", "position of the query", format="count", unit="tokens"),
        Metric("k_position", "key position", "position of the key with the largest weight", format="count", unit="tokens"),
        Metric("distance", "distance", "query position minus key position", format="count", unit="tokens"),
        Metric("weight", "weight", "attention weight of this key", format="share"),
        Metric("query_token", "token of the query", "its text", format="text"),
        Metric("key_token", "token of the key", "its text", format="text"),
    ),
)
_GROUPS_OF_ROW = Metric("n_groups", "groups", "number of groups of texts behind the standard errors", format="count", note="`nan` if texts are not known")

BANDS = Table(
    "head_bands.csv",
    "head and pair of dimensions that RoPE turns with one frequency",
    with_errors(
        *_IDS,
        Metric("band", "band", "number of the frequency, from 0", format="index"),
        Metric("frequency", "frequency", "angle by which RoPE turns the pair per token", unit="radians"),
        Metric("wavelength", "wavelength", "tokens per turn", unit="tokens", nan="the pair does not turn"),
        Metric("norm_product", "size", "mean length of queries in this pair times mean length of keys, in logits", error=True, any_scale=True),
        Metric("variance_share", "share of the variance", "share of the variance of the logit over pairs of a query and an earlier key that it sees", format="difference", signed=True, error=True, note="the shares of a head sum to 1 with that of the dimensions that RoPE does not turn; a share can be negative"),
        Metric("q_concentration", "concentration of queries", "length of the mean query / mean length of a query in this pair, before RoPE; 1: all queries have one direction", format="share", error=True),
        Metric("k_concentration", "concentration of keys", "the same for keys", format="share", error=True),
        Metric("kernel_amplitude", "amplitude of the kernel", "length of the mean query times length of the mean key in this pair, in logits", any_scale=True),
        Metric("kernel_phase", "phase of the kernel", "angle from the mean key to the mean query before RoPE", unit="radians", signed=True, nan="the amplitude is zero"),
        _GROUPS_OF_ROW,
    ),
)
KERNEL = Table(
    "head_kernel.csv",
    "head and bin of distances of a query and an earlier key that it sees",
    with_errors(
        *_IDS,
        Metric("first_distance", "first distance", "first distance of the bin", format="index", unit="tokens"),
        Metric("last_distance", "last distance", "last distance of the bin", format="index", unit="tokens"),
        Metric("distance", "distance", "mean distance of the pairs", format="count", unit="tokens"),
        Metric("mean_logit", "mean logit", "mean logit of the pairs, before a soft-cap", error=True, any_scale=True),
        Metric("kernel", "rotary kernel", "mean logit of the mean query and the mean key, turned by RoPE to the positions of the pairs", any_scale=True),
        Metric("n_pairs", "pairs", "number of pairs of a query and an earlier key that were used", format="count"),
        _GROUPS_OF_ROW,
    ),
)
_of_group = partial(Metric, format="share", error=True, averaged=True)
_OF_HEADS = "the same with the queries of one query head, as a mean over the query heads of the group"

KEY_HEADS = Table(
    "key_head_metrics.csv",
    "key head, if the texts of its rows are known",
    with_errors(
        _IDS[0],
        Metric("k_head", "key head", "number of the key head", format="index"),
        Metric("n_q_heads", "query heads", "number of query heads of the group that were analysed", format="count"),
        Metric("layer_type", "type of the layer", "full_attention, sliding_attention, chunked_attention, or another name in dump.json", format="text"),
        Metric("sliding_window", "window", "tokens that a query can attend back to", format="count", unit="tokens", nan="full attention"),
        Metric("n_pairs", "pairs", "number of pairs of any two keys of one text that two or more later queries of every query head see", format="count"),
        Metric("n_attended_pairs", "attended pairs", "the same for pairs in proportion to attention", format="count"),
        Metric("n_queries", "queries per pair", "mean number of later queries of the group that are counted for a pair", format="count", note="at most 64 of every query head"),
        Metric("n_groups", "groups", "number of groups of texts behind the standard errors", format="count", note="`nan` if texts are not known"),
        _of_group("plasticity", "plasticity of the key head", "plasticity of any two keys of one text, from counts of the later queries of all query heads of the group; 1: half of the queries prefer each key"),
        _of_group("plasticity_heads", "plasticity of its query heads alone", _OF_HEADS),
        _of_group("static_error", "static error", "share of later queries of the group whose preferred key the majority of the other queries does not predict: the error that a ranking without a query cannot avoid"),
        _of_group("static_error_heads", "static error of its query heads alone", _OF_HEADS),
        _of_group("attended_plasticity", "attended plasticity of the key head", "plasticity of the key head for keys in proportion to the attention that they receive from the group, without the first four tokens"),
        _of_group("attended_plasticity_heads", "attended plasticity of its query heads alone", _OF_HEADS),
        _of_group("attended_static_error", "static error, attended pairs", "static error of these attended pairs"),
        _of_group("attended_static_error_heads", "static error of its query heads alone, attended pairs", _OF_HEADS),
        _of_group("aligned_plasticity", "plasticity of the key head at one position", "plasticity of two keys that a token sees, from counts of the queries of all query heads of the group in the bin of the token, turned to its position"),
        _of_group("aligned_plasticity_heads", "plasticity of its query heads alone at one position", _OF_HEADS),
        _of_group("far_mass", "far attention of the group", "attn_far_mass of head_metrics.csv, as a mean over the query heads of the group"),
        _of_group("received_gini", "concentration of received attention", "Gini coefficient of the attention that the keys of a text receive from the group; 0: all keys receive the same, near 1: one key receives all", note="without the first four tokens; a mean over texts by tokens"),
        _of_group("received_half", "keys with half of the attention", "smallest share of the keys of a text that together receive half of the attention of the group", note="without the first four tokens; a mean over texts by tokens"),
    ),
)
_fidelity = partial(Metric, error=True, averaged=True)

FIDELITY = Table(
    "head_fidelity.csv",
    "key head and score",
    with_errors(
        _IDS[0],
        Metric("k_head", "key head", "number of the key head", format="index"),
        Metric("layer_type", "type of the layer", "full_attention, sliding_attention, chunked_attention, or another name in dump.json", format="text"),
        Metric("n_q_heads", "query heads", "number of query heads of the group that were used", format="count"),
        Metric("score", "score", "name of the score, or best_static or best_per_query for the two limits", format="text", note="the scores are in the method"),
        Metric("value_norm", "times the value", "1: the weight is multiplied by the length of the value", format="index", note="only for scores that are logarithms of a weight, and if the dump has `value_norm`"),
        _fidelity("spearman", "rank correlation", "Spearman correlation over the keys of a text of the score and of the attention that a key receives per later query; mean over texts", format="difference", signed=True, note="`nan` for best_per_query, which is not one ranking; scores that are sums over queries depend on the number of queries, too, and so have lower values"),
        _fidelity("kept_50", "attention kept with half of the keys", "share of the attention on distant keys that stays if the half of them with the largest scores is kept; mean over texts", format="share"),
        _fidelity("kept_25", "attention kept with a quarter of the keys", "the same for a quarter", format="share"),
        _fidelity("kept_10", "attention kept with a tenth of the keys", "the same for a tenth", format="share"),
        Metric("n_keys", "keys", "number of captured keys that are ranked, of all texts", format="count"),
        Metric("n_queries", "queries", "number of captured queries whose attention is counted, of all query heads and texts", format="count"),
        Metric("n_texts", "texts", "number of texts", format="count"),
        Metric("n_groups", "groups", "number of groups of texts behind the standard errors", format="count"),
    ),
)

_VECTORS = {"q": "queries", "k": "keys of its key head"}
_OTHERS = {"q": "mean key", "k": "mean query"}
_FRAMES = {"": ", as they enter the attention", BEFORE_ROPE: ", before RoPE"}


def _drift_columns(kind: str, ending: str) -> Iterator[Metric]:
    """The columns of queries or keys in one frame."""
    vectors, frame = _VECTORS[kind], _FRAMES[ending]
    name, where = vectors.split(" ")[0], " before RoPE" * bool(ending)
    yield Metric(f"{kind}_drift_r{ending}", f"drift of {name}{where}", f"correlation with position of the projection on the axis of the drift, of the {vectors}{frame}; the axis comes from the other groups of texts, so that it is 0 on average without drift", format="difference", signed=True, error=True, averaged=True)
    yield Metric(f"{kind}_logit_drift{ending}", f"logit drift of {name}{where}", f"change of the mean logit over the length of the longest text that the drift of the {vectors} causes, with the {_OTHERS[kind]}{frame}", signed=True, error=True, any_scale=True, note="before a soft-cap")
    for number, which in enumerate(("first", "second")):
        yield Metric(f"{kind}_pc{number}_share{ending}", f"component {number} of {name}{where}", f"share of the variance of the {vectors} on their {which} principal component{frame}", format="share")
        yield Metric(f"{kind}_pc{number}_r{ending}", f"position in component {number} of {name}{where}", f"absolute correlation with position of the {which} principal component of the {vectors}{frame}", format="share")


DRIFT = Table(
    "head_drift.csv",
    "head, if texts are known",
    with_errors(
        *_IDS,
        *(metric for ending in _FRAMES for kind in _VECTORS for metric in _drift_columns(kind, ending)),
        Metric("n_groups", "groups", "number of groups of texts behind the standard errors", format="count"),
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
    "roles",
    "words",
    "bands",
    "kernel",
    "key_heads",
    "drift",
    "fidelity",
]
TABLES: dict[TableKind, Table] = {
    "head_metrics": HEAD_METRICS,
    "bucket_plasticity": BUCKET_PLASTICITY,
    "component_weights": COMPONENT_WEIGHTS,
    "influences": INFLUENCES,
    "attention": ATTENTION_BY_BUCKET,
    "bins": BIN_PLASTICITY,
    "roles": ROLES,
    "words": WORDS,
    "bands": BANDS,
    "kernel": KERNEL,
    "key_heads": KEY_HEADS,
    "drift": DRIFT,
    "fidelity": FIDELITY,
}

METRICS = {metric.column: metric for metric in HEAD_METRICS.columns}
"""The columns of the table of heads."""
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
