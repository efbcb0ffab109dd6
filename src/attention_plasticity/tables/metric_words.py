"""Labels and explanations of the columns of head_metrics.csv, for figures and the page."""

from __future__ import annotations

from dataclasses import dataclass

from attention_plasticity.columns import (
    ATTENDED,
    ATTENDED_COUNTED,
    ATTENTION_MEANS,
    MEAN_COLUMNS,
)

FIFTH_NAMES = ("0–20 %", "20–40 %", "40–60 %", "60–80 %", "80–100 %")


@dataclass(frozen=True)
class MetricWords:
    """A short label and a one-line explanation for readers outside the field."""

    label: str
    meaning: str
    signed: bool = False  # a map needs two colours, with zero in the middle


METRIC_WORDS = {
    "ap_overall": MetricWords(
        "plasticity",
        "1: the query decides which of two keys scores higher; 0: the order of keys is fixed",
    ),
    "ap_drop": MetricWords(
        "plasticity drop",
        "first fifth of the context minus last fifth; positive: plasticity falls with position",
        signed=True,
    ),
    "ap_first20": MetricWords("plasticity, 0–20 %", "in the first fifth of the observed context"),
    "ap_20to40": MetricWords("plasticity, 20–40 %", "in the second fifth"),
    "ap_40to60": MetricWords("plasticity, 40–60 %", "in the third fifth"),
    "ap_60to80": MetricWords("plasticity, 60–80 %", "in the fourth fifth"),
    "ap_last20": MetricWords("plasticity, 80–100 %", "in the last fifth"),
    "q_R2_total": MetricWords(
        "variance from position",
        "fraction of the variance of queries that a linear function of position explains",
    ),
    "q_R2_pos": MetricWords(
        "R² of position",
        "fraction of the variance of queries explained by position, as a mean over dimensions",
    ),
    "q_R2_scalar": MetricWords(
        "position read from a query",
        "R² of predicting log2(position + 1) from the projection of a query on the drift",
    ),
    "q_mae_baseline": MetricWords(
        "error without the query", "mean absolute error when the mean predicts log2(position + 1)"
    ),
    "q_mae_proj": MetricWords(
        "error with the query", "mean absolute error of that prediction of log2(position + 1)"
    ),
    "q_mae_ratio": MetricWords(
        "error ratio", "error with the query / error without; small: queries predict position"
    ),
    "q_beta_norm": MetricWords("drift per token", "length of the mean query's change per token"),
    "q_resid0_skew": MetricWords(
        "skewness along the drift",
        "skewness of the residuals of the regression; 0 for a Gaussian",
        signed=True,
    ),
    "q_resid0_kurt": MetricWords(
        "kurtosis along the drift", "excess kurtosis of residuals; 0 for a Gaussian", signed=True
    ),
    "q_resid0_ks_p": MetricWords(
        "normality p along the drift", "Kolmogorov–Smirnov p-value; small: not Gaussian"
    ),
    "q_noise_med_abs_skew": MetricWords(
        "skewness elsewhere", "median |skewness| over the other dimensions"
    ),
    "q_noise_med_abs_kurt": MetricWords(
        "kurtosis elsewhere", "median |excess kurtosis| over the other dimensions"
    ),
    "q_noise_med_ks_p": MetricWords(
        "normality p elsewhere", "median Kolmogorov–Smirnov p-value over the other dimensions"
    ),
    "q_noise_frac_ks_p_lt_alpha": MetricWords(
        "dimensions not Gaussian", "share of tested dimensions whose p-value is below p_alpha"
    ),
    "ap_counted": MetricWords(
        "counted plasticity", "from counts of queries that prefer each key, without a Gaussian"
    ),
    "ap_gaussian_gap": MetricWords(
        "Gaussian minus counted",
        "plasticity by the Gaussian model, corrected for bias, minus counted plasticity",
        signed=True,
    ),
    "attn_entropy": MetricWords(
        "attention entropy", "mean entropy of the attention of a query, in nats"
    ),
    "attn_sink_mass": MetricWords(
        "attention on sinks", "mean share of the attention of a query on the first four tokens"
    ),
    "attn_distant_mass": MetricWords(
        "distant attention",
        "mean share of the attention of a query on keys that are distant_from tokens (256 by "
        "default) or more before it",
    ),
    "attn_max_logit": MetricWords("largest logit", "mean over queries of the largest logit"),
    "ap_attended": MetricWords(
        "attended plasticity",
        "plasticity of two earlier keys, drawn in proportion to the attention that they receive",
    ),
    "ap_attended_counted": MetricWords(
        "counted attended plasticity",
        "attended plasticity from counts of queries, without a Gaussian",
    ),
    "ap_attended_ess": MetricWords(
        "effective attended pairs",
        "number of equally probable pairs with the same sum of squared probabilities",
    ),
    "n_later_queries": MetricWords(
        "later queries", "mean number of later queries per key from which its attention is known"
    ),
    "n_text_groups": MetricWords(
        "groups of texts", "number of groups from which standard errors are computed"
    ),
    "n_q_tokens": MetricWords("queries", "number of queries used"),
    "n_k_tokens": MetricWords("keys", "number of keys used"),
    "d_model": MetricWords("dimensions", "width of a query or key vector"),
    "q_position_max": MetricWords("context", "largest captured query position"),
    "sliding_window": MetricWords("window", "tokens that a query can attend back to; none: all"),
}

for _name in (
    *MEAN_COLUMNS,
    *("ap_counted", "ap_gaussian_gap"),
    *(*ATTENTION_MEANS, ATTENDED, ATTENDED_COUNTED),
):
    _label = METRIC_WORDS[_name].label
    METRIC_WORDS[f"{_name}_se"] = MetricWords(f"error of {_label}", "standard error over texts")
for _name in (*MEAN_COLUMNS, ATTENDED):
    METRIC_WORDS[f"{_name}_bias"] = MetricWords(
        f"bias of {METRIC_WORDS[_name].label}",
        "expected error of the value; the corrected value is the value minus the bias",
        signed=True,
    )

PAIR_WORDS = {
    "bucket": "two keys of one text and one key bucket",
    "local": "two nearby keys of one text",
    "context": "any two earlier keys of one text",
    "attended": (
        "two earlier keys of one text, drawn in proportion to the attention that they receive"
    ),
}
"""The key pairs of each `pair_sampling`."""
