"""What each column of head_metrics.csv is called in figures and on the page, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

FIFTHS = ("ap_first20", "ap_20to40", "ap_40to60", "ap_60to80", "ap_last20")
FIFTH_NAMES = ("0–20 %", "20–40 %", "40–60 %", "60–80 %", "80–100 %")


@dataclass(frozen=True)
class MetricWords:
    """A short label, and one line that a reader outside the field understands."""

    label: str
    meaning: str
    signed: bool = False  # around zero: a map of it needs two colours


METRIC_WORDS = {
    "ap_overall": MetricWords(
        "plasticity",
        "1: the query decides which of two keys wins; 0: the order is fixed in advance",
    ),
    "ap_drop": MetricWords(
        "plasticity drop",
        "first fifth of the context minus the last; positive: the head stiffens with distance",
        signed=True,
    ),
    "ap_first20": MetricWords("plasticity, 0–20 %", "in the first fifth of the observed context"),
    "ap_20to40": MetricWords("plasticity, 20–40 %", "in the second fifth"),
    "ap_40to60": MetricWords("plasticity, 40–60 %", "in the third fifth"),
    "ap_60to80": MetricWords("plasticity, 60–80 %", "in the fourth fifth"),
    "ap_last20": MetricWords("plasticity, 80–100 %", "in the last fifth"),
    "q_R2_total": MetricWords(
        "variance from position",
        "share of the queries' variance that a straight line in position explains, in any basis",
    ),
    "q_R2_pos": MetricWords(
        "R² of position", "the same, as a mean over dimensions of each dimension's own share"
    ),
    "q_R2_scalar": MetricWords(
        "position read from a query",
        "R² of predicting log2(position + 1) from the query's projection on its drift",
    ),
    "q_mae_baseline": MetricWords(
        "error without the query", "mean absolute error of log2(position + 1) by its mean alone"
    ),
    "q_mae_proj": MetricWords(
        "error with the query", "mean absolute error of log2(position + 1) by that prediction"
    ),
    "q_mae_ratio": MetricWords(
        "error ratio", "error with the query over error without; small: position is easily read"
    ),
    "q_beta_norm": MetricWords("drift per token", "length of the mean query's step per token"),
    "q_resid0_skew": MetricWords(
        "skewness along the drift",
        "of what position leaves unexplained; 0 for a Gaussian",
        signed=True,
    ),
    "q_resid0_kurt": MetricWords(
        "kurtosis along the drift", "excess over a Gaussian's, which is 0", signed=True
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
    "n_q_tokens": MetricWords("queries", "rows of queries used"),
    "n_k_tokens": MetricWords("keys", "rows of keys used"),
    "d_model": MetricWords("dimensions", "width of a query or key vector"),
    "q_position_max": MetricWords("context", "largest captured query position"),
    "sliding_window": MetricWords("window", "tokens a query can look back; none: all of them"),
}
