"""The analysis of one head, written from the formulas of the specification and from nothing else.

Slow and plain on purpose: a loop per dimension, pair and bucket, scipy for every statistic, full
d×d matrices. The one thing taken from the package is which key rows form a pair, since that draw
is the package's to define; each pair is checked and scored here, one by one.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from attention_plasticity.config import RunnerConfig
from attention_plasticity.numeric.key_pairs import KeyIndex
from reference_attention import AttentionTables, Head, attention_tables, layer_facts
from reference_drift import drift_tables
from reference_errors import Errors, Pair, Queries, errors

Row = dict[str, Any]

KS_P = ("q_resid0_ks_p", "q_noise_med_ks_p", "q_noise_frac_ks_p_lt_alpha")


def tolerance(column: str) -> tuple[float, float]:
    """Relative and absolute difference that is allowed between the package and this reference.

    The package computes influences, standard errors and bias from float32 products.
    """
    if column in KS_P:
        return 0.0, 4e-6  # scipy has an expansion from 141 values on
    if column.startswith(("attn_", "entropy", "sink_mass", "max_logit", "mass_")):
        return 1e-9, 1e-12
    if column in ("q_R2_unrotated", "k_R2_unrotated", "q_mean_share"):  # rotated in float32
        return 1e-6, 1e-8
    if column in ("ap_attended", "ap_attended_corrected"):  # of bins, in float32
        return 1e-5, 1e-7
    if column in ("ap_attended_ess", "n_later_queries"):  # float32 logits
        return 1e-5, 0.0
    if column.endswith("_se") or column.startswith("group_"):
        return 1e-5, 1e-7
    if column in ("plasticity_bias", "bias"):  # of a few pairs, with queries in one plane
        return 2e-5, 1e-7
    if (
        "bias" in column
        or "corrected" in column
        or "gap" in column
        or "counted" in column
        or column == "value"
    ):
        return 1e-6, 1e-7
    return 1e-9, 1e-11


class Rows(NamedTuple):
    """The rows of one head's file."""

    bucket: np.ndarray
    example_id: np.ndarray
    position: np.ndarray
    vectors: np.ndarray
    window: int | None
    last_position: float  # of the whole file
    attention: dict[str, list[Any]] | None = None  # columns with None for null


class Tables(NamedTuple):
    """What the tables should hold for one query head."""

    metrics: Row
    buckets: list[Row]
    components: list[Row]
    influences: list[Row]
    attention: list[Row]


class Line(NamedTuple):
    intercept: float
    slope: float
    r2: float


def write_rows(
    root: Path,
    name: str,
    *,
    bucket: Any,
    example_id: Any,
    position: Any,
    vectors: Any,
    **window: Any,
) -> None:
    """A head's file in the types given, float64 included; without a `sliding_window`, no column."""
    values = np.ascontiguousarray(vectors)
    columns = {
        "bucket": pa.array(np.asarray(bucket)),
        "example_id": pa.array(np.asarray(example_id)),
        "position": pa.array(np.asarray(position)),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]),
    }
    if window:
        columns["sliding_window"] = pa.array([window["sliding_window"]] * len(values), pa.int32())
    (root / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), root / name / "data.parquet")


def read_rows(root: Path, name: str, config: RunnerConfig) -> Rows:
    table = pq.read_table(root / name / "data.parquet")
    kept = np.arange(table.num_rows)
    if table.num_rows > config.max_tokens_per_head:
        rng = np.random.default_rng(config.seed)
        kept = np.sort(rng.choice(table.num_rows, config.max_tokens_per_head, replace=False))
    windows = table["sliding_window"].to_pylist() if "sliding_window" in table.schema.names else []
    positions = np.array(table["position"].to_pylist(), float)
    return Rows(
        bucket=np.array(table["bucket"].to_pylist())[kept],
        example_id=np.array(table["example_id"].to_pylist())[kept],
        position=positions[kept],
        vectors=np.array(table["vector"].to_pylist(), float)[kept],
        window=windows[0] if windows else None,
        last_position=positions.max(),
        attention=_attention(table, kept),
    )


def _attention(table: pa.Table, kept: np.ndarray) -> dict[str, list[Any]] | None:
    if "lse" not in table.schema.names:
        return None
    names = ("lse", "max_logit", "entropy", "sink_mass", "mass_by_distance")
    return {name: table[name].take(kept).to_pylist() for name in names}


def analyse(root: Path, layer: int, q_head: int, k_head: int, config: RunnerConfig) -> Tables:
    """Rows of the tables for one query head."""
    q = read_rows(root, f"l{layer:02d}h{q_head:02d}q", config)
    k = read_rows(root, f"l{layer:02d}h{k_head:02d}k", config)
    window = k.window if q.window is None else q.window
    ids = {"layer": layer, "q_head": q_head, "k_head": k_head}
    n, d = q.vectors.shape

    lines = [line(q.position, q.vectors[:, i]) for i in range(d)]
    r2 = [fitted.r2 for fitted in lines]
    beta = np.array([fitted.slope for fitted in lines])
    signs = orientation(k)
    H = householder(signs * beta)
    X_q = (q.vectors * signs) @ H
    X_k = (k.vectors * signs) @ H
    rotated = [line(q.position, X_q[:, i]) for i in range(d)]
    residuals = [X_q[:, i] - f.intercept - f.slope * q.position for i, f in enumerate(rotated)]
    variance = [float(r @ r) / (n - 2) for r in residuals]

    gaussians = {}
    for j in sorted(set(q.bucket.tolist())):
        members = q.bucket == j
        if j != 0 and members.sum() >= 2:
            tau = q.position[members].mean()
            first_mean = rotated[0].intercept + rotated[0].slope * tau
            gaussians[j] = gaussian(config.query_model, X_q[members], first_mean, variance[0])
    seed = config.seed + 10007 * layer + 379 * q_head
    pairs = drawn_pairs(k, config, seed)
    cells, profile = score(gaussians, pairs, q, k, X_k, window)

    def gaussian_of(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        first_mean = rotated[0].intercept + rotated[0].slope * q.position[rows].mean()
        return gaussian(config.query_model, X_q[rows], first_mean, variance[0])

    grouped = Queries(
        config.query_model,
        X_q,
        q.bucket,
        q.example_id % 16,
        q.position,
        rotated[0].slope,
        residuals[0],
        gaussian_of,
    )
    counts = {j: int((q.bucket == j).sum()) for j in gaussians}
    tau = {j: float(q.position[q.bucket == j].mean()) for j in gaussians}
    context = float(q.last_position)
    in_fifth: list[list[int]] = [[] for _ in range(5)]

    def fifth_of(j: int) -> int:
        return min(4, math.floor(5 * tau[j] / context)) if context > 0 else 0

    for j in gaussians:
        in_fifth[fifth_of(j)].append(j)
    fifths = [mean_by_queries(profile, counts, members) for members in in_fifth]
    found = head_errors(grouped, pairs, cells, k, X_k, fifth_of)
    eligible = {j: [c for bucket, c in cells if bucket == j] for j in gaussians}
    head = Head(root, (layer, q_head, k_head), q, k, X_k, grouped, eligible, window)
    attention = attention_tables(head, config, seed)
    drift = drift_tables(root, layer, q, k)
    by_window = "full_attention" if window is None else "sliding_attention"
    metrics = {
        **ids,
        "n_q_tokens": n,
        "n_k_tokens": len(k.position),
        "d_model": d,
        "q_R2_pos": sum(r2) / d,
        **scalar_predictability(q, beta),
        **normality(residuals, variance, config),
        "ap_overall": mean_by_queries(profile, counts, list(gaussians)),
        "q_beta_norm": math.sqrt(sum(slope**2 for slope in beta)),
        "q_R2_total": total_r2(q, lines),
        "ap_first20": fifths[0],
        "ap_last20": fifths[4],
        "ap_drop": fifths[0] - fifths[4],
        "ap_20to40": fifths[1],
        "ap_40to60": fifths[2],
        "ap_60to80": fifths[3],
        "q_position_max": context,
        "sliding_window": math.nan if window is None else window,
        "layer_type": layer_facts(root, layer).get("type", by_window),
        **found.metrics,
        **attention.metrics,
        **drift[0],
    }
    buckets = [
        {
            **ids,
            "q_bucket": j,
            "k_bucket": c,
            "plasticity": float(np.mean(values)) if values else math.nan,
            "n_pairs": len(values),
            "q_position": tau[j],
            "k_position": float(k.position[k.bucket == c].mean()),
            "n_queries": counts[j],
            "n_texts": len(set(q.example_id[q.bucket == j].tolist())),
            **found.cells[j, c],
        }
        for (j, c), values in cells.items()
    ]
    positive = [max(value, 0.0) for value in r2]
    total = sum(positive)
    components = [
        {**ids, "component": i, "weight": positive[i] / total if total > 0 else 1 / d, "r2": r2[i]}
        for i in range(d)
    ]
    return Tables(metrics, buckets, components, *_with_attention(ids, found, attention, drift[1]))


def _with_attention(
    ids: Row, found: Errors, attention: AttentionTables, drift: list[Row]
) -> tuple[list[Row], list[Row]]:
    """Rows of the table of influences, means first, and of the table of attention."""
    means = [row for row in found.influences if row["quantity"] != "ap_bucket"]
    buckets = [row for row in found.influences if row["quantity"] == "ap_bucket"]
    influences = [*means, *attention.influences, *drift, *buckets]
    return [{**ids, **row} for row in influences], [{**ids, **row} for row in attention.buckets]


def head_errors(
    queries: Queries,
    pairs: list[tuple[int, int, int]],
    cells: dict[tuple[int, int], list[float]],
    k: Rows,
    X_k: np.ndarray,
    fifth_of: Any,
) -> Errors:
    """Standard errors, bias and counts, from the pairs that each query bucket uses."""
    numbered = []
    ranks: dict[int, int] = {}
    for one, two, owner in pairs:
        rank = ranks[owner] = ranks.get(owner, -1) + 1
        group = int(k.example_id[one]) % 16
        both = {k.bucket[one], k.bucket[two]}
        numbered.append((both, Pair(X_k[one] - X_k[two], owner, group, rank)))
    eligible: dict[int, list[int]] = {}
    for j in sorted(set(queries.bucket.tolist())):
        if j != 0 and (queries.bucket == j).sum() >= 2:
            eligible[j] = [c for bucket, c in cells if bucket == j]
    used = {
        j: [pair for both, pair in numbered if both <= set(inside)]
        for j, inside in eligible.items()
    }
    return errors(queries, used, eligible, fifth_of)


def line(t: np.ndarray, x: np.ndarray) -> Line:
    """Least squares; nothing is explained by a constant t, nor of a constant x."""
    if len(set(t.tolist())) == 1 or len(set(x.tolist())) == 1:
        return Line(statistics.mean(x.tolist()), 0.0, 0.0)
    fitted = stats.linregress(t, x)
    return Line(fitted.intercept, fitted.slope, fitted.rvalue**2)


def total_r2(q: Rows, lines: list[Line]) -> float:
    left = sum(
        ((q.vectors[:, i] - f.intercept - f.slope * q.position) ** 2).sum()
        for i, f in enumerate(lines)
    )
    total = sum(((x - x.mean()) ** 2).sum() for x in q.vectors.T)
    return float(1 - left / total) if total > 0 else 0.0


def orientation(k: Rows) -> np.ndarray:
    signs = []
    for x in k.vectors.T:
        bucket_means = [x[k.bucket == c].mean() for c in sorted(set(k.bucket.tolist()))]
        signs.append(-1.0 if np.mean(bucket_means) < 0 else 1.0)
    return np.array(signs)


def householder(beta: np.ndarray) -> np.ndarray:
    """The reflection of the unit vector along beta to the first axis."""
    identity = np.eye(len(beta))
    length = np.linalg.norm(beta)
    if length == 0:
        return identity
    v = beta / length - identity[0]
    return identity - 2 * np.outer(v, v) / (v @ v) if v.any() else identity


def scalar_predictability(q: Rows, beta: np.ndarray) -> Row:
    length = np.linalg.norm(beta)
    score = q.vectors @ (beta / length) if length > 0 else np.zeros(len(q.position))
    y = np.log2(q.position + 1)
    fitted = line(score, y)
    baseline = np.abs(y - statistics.mean(y.tolist())).mean()  # exact: equal values have no error
    error = np.abs(y - fitted.intercept - fitted.slope * score).mean()
    return {
        "q_R2_scalar": fitted.r2,
        "q_mae_baseline": baseline,
        "q_mae_proj": error,
        "q_mae_ratio": error / baseline if baseline > 0 else math.nan,
    }


def normality(residuals: list[np.ndarray], variance: list[float], config: RunnerConfig) -> Row:
    n, d = len(residuals[0]), len(residuals)
    tested = np.arange(1, d)
    if len(tested) > config.normality_max_dims:
        rng = np.random.default_rng(config.seed)
        tested = np.sort(rng.choice(tested, config.normality_max_dims, replace=False))
    standardised = [r / math.sqrt(v) for r, v in zip(residuals, variance, strict=True)]
    skew = [stats.skew(z, bias=False) for z in standardised]
    kurt = [stats.kurtosis(z, bias=False) if n > 3 else math.nan for z in standardised]
    p = [stats.kstest(standardised[i], "norm").pvalue for i in tested]
    return {
        "q_resid0_skew": skew[0],
        "q_resid0_kurt": kurt[0],
        "q_resid0_ks_p": stats.kstest(standardised[0], "norm").pvalue,
        "q_noise_med_abs_skew": np.median(np.abs(skew[1:])) if d > 1 else math.nan,
        "q_noise_med_abs_kurt": np.median(np.abs(kurt[1:])) if d > 1 else math.nan,
        "q_noise_med_ks_p": np.median(p) if d > 1 else math.nan,
        "q_noise_frac_ks_p_lt_alpha": (
            sum(value < config.p_alpha for value in p) / len(p) if d > 1 else math.nan
        ),
    }


def gaussian(
    query_model: str, members: np.ndarray, first_mean: float, first_variance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a bucket's queries under one of the three models."""
    d = members.shape[1]
    mean = members.mean(axis=0)
    covariance = np.cov(members, rowvar=False).reshape(d, d)
    if query_model == "full":
        return mean, covariance
    if query_model == "diagonal":
        return mean, np.diag(np.diag(covariance))
    positional = np.zeros((d, d))
    positional[0, 0] = first_variance
    if d > 1:
        semantic = covariance[1:, 1:]
        mean_variance = np.trace(semantic) / (d - 1)
        positional[1:, 1:] = semantic + 1e-12 * mean_variance * np.eye(d - 1)
    return np.concatenate([[first_mean], mean[1:]]), positional


def drawn_pairs(k: Rows, config: RunnerConfig, seed: int) -> list[tuple[int, int, int]]:
    """(row, row, bucket the pair belongs to), as the package draws them."""
    index = KeyIndex(k.position, k.bucket, k.example_id)
    drawn = index.draw(
        config.pair_sampling,
        config.num_pairs_per_bucket,
        config.max_rel_dist,
        np.random.default_rng(seed),
    )
    owners = sorted(set(k.bucket.tolist()))
    pairs = []
    for one, two, owner in zip(drawn.first, drawn.second, drawn.owner, strict=True):
        assert one != two
        assert k.example_id[one] == k.example_id[two]
        assert owners[owner] in (k.bucket[one], k.bucket[two])
        pairs.append((int(one), int(two), owners[owner]))
    return pairs


def is_eligible(j: int, c: int, q: Rows, k: Rows, window: int | None) -> bool:
    if c >= j:
        return False
    if window is None or c == j - 1:
        return True
    queries, keys = q.position[q.bucket == j], k.position[k.bucket == c]
    return any(p - window <= s <= p for p in queries for s in keys)


def score(
    gaussians: dict[int, tuple[np.ndarray, np.ndarray]],
    pairs: list[tuple[int, int, int]],
    q: Rows,
    k: Rows,
    X_k: np.ndarray,
    window: int | None,
) -> tuple[dict[tuple[int, int], list[float]], dict[int, float]]:
    """Plasticities of the pairs of every eligible cell, and the mean per query bucket."""
    cells: dict[tuple[int, int], list[float]] = {}
    profile = {}
    for j, (mean, covariance) in gaussians.items():
        key_buckets = sorted(set(k.bucket.tolist()))
        eligible = [c for c in key_buckets if is_eligible(j, c, q, k, window)]
        for c in eligible:
            cells[j, c] = []
        for one, two, owner in pairs:
            if k.bucket[one] in eligible and k.bucket[two] in eligible:
                value = pair_plasticity(X_k[one] - X_k[two], mean, covariance)
                cells[j, owner].append(value)
        values = [value for c in eligible for value in cells[j, c]]
        profile[j] = float(np.mean(values)) if values else math.nan
    return cells, profile


def pair_plasticity(w: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    m, v = float(w @ mean), float(w @ covariance @ w)
    if v <= 0:
        return 1.0 if m == 0 else 0.0
    x = m / math.sqrt(2 * v)
    p, not_p = math.erfc(-x) / 2, math.erfc(x) / 2
    return 4 * p * not_p


def mean_by_queries(profile: dict[int, float], counts: dict[int, int], members: list[int]) -> float:
    known = [j for j in members if not math.isnan(profile[j])]
    if not known:
        return math.nan
    return sum(counts[j] * profile[j] for j in known) / sum(counts[j] for j in known)
