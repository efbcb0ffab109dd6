"""The seeds' columns of one head, written from the formulas of the specification and nothing else.

Slow and plain on purpose: a loop per dimension, pair and bucket, scipy for every statistic, full
d×d matrices. The one thing taken from the package is which key rows form a pair, since that draw
is the package's to define; each pair is checked and scored here, one by one.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from attention_plasticity.measure.seed_pairs import KeyIndex
from reference_groups import layer_facts

Row = dict[str, Any]
Pair = tuple[int, int, int]
"""Two rows of keys, and the bucket that the pair belongs to."""

KS_P = ("q_resid0_ks_p", "q_noise_med_ks_p", "q_noise_frac_ks_p_lt_alpha")


def tolerance(column):
    """Relative and absolute difference that is allowed between the package and this reference."""
    return (0.0, 1e-6) if column in KS_P else (1e-9, 1e-11)


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


class Line(NamedTuple):
    intercept: float
    slope: float
    r2: float


def write_rows(root, name, *, bucket, example_id, position, vectors, **window):
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


def read_rows(root, name, config):
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


def _attention(table, kept):
    if "lse" not in table.schema.names:
        return None
    names = ("lse", "max_logit", "entropy", "sink_mass", "mass_by_distance")
    return {name: table[name].take(kept).to_pylist() for name in names}


def analyse(root, layer, q_head, k_head, config):
    """Rows of the tables for one query head."""
    q = read_rows(root, f"l{layer:02d}h{q_head:02d}q", config)
    k = read_rows(root, f"l{layer:02d}h{k_head:02d}k", config)
    window = k.window if q.window is None else q.window
    facts = layer_facts(root, layer)
    chunked = facts.get("type") == "chunked_attention"
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

    gaussians, eligible = {}, {}
    for j in sorted(set(q.bucket.tolist())):
        members = q.bucket == j
        if j != 0 and members.sum() >= 2:
            tau = q.position[members].mean()
            first_mean = rotated[0].intercept + rotated[0].slope * tau
            gaussians[j] = gaussian(config.query_model, X_q[members], first_mean, variance[0])
            buckets = sorted(set(k.bucket.tolist()))
            eligible[j] = [c for c in buckets if is_eligible(j, c, q, k, window, chunked=chunked)]
    pairs = drawn_pairs(k, config, config.seed + 10007 * layer + 379 * q_head, eligible)
    cells, profile = score(gaussians, pairs, eligible, k, X_k)
    counts = {j: int((q.bucket == j).sum()) for j in gaussians}
    metrics = {
        **ids,
        "n_q_tokens": n,
        "n_k_tokens": len(k.position),
        "d_model": d,
        "q_R2_pos": sum(r2) / d,
        **scalar_predictability(q, beta),
        **normality(residuals, variance, config),
        "ap_overall": mean_by_queries(profile, counts),
        "q_beta_norm": math.sqrt(sum(slope**2 for slope in beta)),
        "q_R2_total": total_r2(q, lines),
        "q_position_max": float(q.last_position),
        "sliding_window": math.nan if window is None else window,
        "layer_type": facts.get("type", "full_attention" if not window else "sliding_attention"),
    }
    table = [
        {
            **ids,
            "q_bucket": j,
            "k_bucket": c,
            "plasticity": float(np.mean(values)) if values else math.nan,
            "n_pairs": len(values),
            "q_position": float(q.position[q.bucket == j].mean()),
            "k_position": float(k.position[k.bucket == c].mean()),
            "n_queries": counts[j],
            "n_texts": len(set(q.example_id[q.bucket == j].tolist())),
        }
        for (j, c), values in cells.items()
    ]
    positive = [max(value, 0.0) for value in r2]
    total = sum(positive)
    components = [
        {**ids, "component": i, "weight": positive[i] / total if total > 0 else 1 / d, "r2": r2[i]}
        for i in range(d)
    ]
    return Tables(metrics, table, components)


def line(t, x):
    """Least squares; nothing is explained by a constant t, nor of a constant x."""
    if len(set(t.tolist())) == 1 or len(set(x.tolist())) == 1:
        return Line(statistics.mean(x.tolist()), 0.0, 0.0)
    fitted = stats.linregress(t, x)
    return Line(fitted.intercept, fitted.slope, fitted.rvalue**2)


def total_r2(q, lines):
    left = sum(
        ((q.vectors[:, i] - f.intercept - f.slope * q.position) ** 2).sum()
        for i, f in enumerate(lines)
    )
    total = sum(((x - x.mean()) ** 2).sum() for x in q.vectors.T)
    return float(1 - left / total) if total > 0 else 0.0


def orientation(k):
    signs = []
    for x in k.vectors.T:
        bucket_means = [x[k.bucket == c].mean() for c in sorted(set(k.bucket.tolist()))]
        signs.append(-1.0 if np.mean(bucket_means) < 0 else 1.0)
    return np.array(signs)


def householder(beta):
    """The reflection of the unit vector along beta to the first axis."""
    identity = np.eye(len(beta))
    length = np.linalg.norm(beta)
    if length == 0:
        return identity
    v = beta / length - identity[0]
    return identity - 2 * np.outer(v, v) / (v @ v) if v.any() else identity


def scalar_predictability(q, beta):
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


def normality(residuals, variance, config):
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


def gaussian(query_model, members, first_mean, first_variance):
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


def drawn_pairs(k, config, seed, eligible):
    """The pairs of every query bucket, as the package draws them."""
    index, rng = KeyIndex(k.position, k.bucket, k.example_id), np.random.default_rng(seed)
    owners, number = sorted(set(k.bucket.tolist())), config.num_pairs_per_bucket
    found, drawn = {}, None
    for j, inside in eligible.items():
        if config.pair_sampling == "context":
            drawn = index.context_pairs(np.isin(owners, inside), number, rng)
        elif drawn is None:
            drawn = index.draw(config.pair_sampling, number, config.max_rel_dist, rng)
        pairs = []
        for one, two, owner in zip(drawn.first, drawn.second, drawn.owner, strict=True):
            assert one != two
            assert k.example_id[one] == k.example_id[two]
            assert owners[owner] in (k.bucket[one], k.bucket[two])
            pairs.append((int(one), int(two), owners[owner]))
        found[j] = pairs
    return found


def is_eligible(j, c, q, k, window, *, chunked):
    if c >= j:
        return False
    if window is None or (c == j - 1 and not chunked):
        return True
    queries, keys = q.position[q.bucket == j], k.position[k.bucket == c]
    if chunked:
        return any(p // window == s // window and s <= p for p in queries for s in keys)
    return any(p - window <= s <= p for p in queries for s in keys)


def score(gaussians, pairs, eligible, k, X_k):
    """Plasticities of the pairs of every eligible cell, and the mean per query bucket."""
    cells = {}
    profile = {}
    for j, (mean, covariance) in gaussians.items():
        for c in eligible[j]:
            cells[j, c] = []
        for one, two, owner in pairs[j]:
            if k.bucket[one] in eligible[j] and k.bucket[two] in eligible[j]:
                value = pair_plasticity(X_k[one] - X_k[two], mean, covariance)
                cells[j, owner].append(value)
        values = [value for c in eligible[j] for value in cells[j, c]]
        profile[j] = float(np.mean(values)) if values else math.nan
    return cells, profile


def pair_plasticity(w, mean, covariance):
    m, v = float(w @ mean), float(w @ covariance @ w)
    if v <= 0:
        return 1.0 if m == 0 else 0.0
    x = m / math.sqrt(2 * v)
    p, not_p = math.erfc(-x) / 2, math.erfc(x) / 2
    return 4 * p * not_p


def mean_by_queries(profile, counts):
    known = [j for j in profile if not math.isnan(profile[j])]
    if not known:
        return math.nan
    return sum(counts[j] * profile[j] for j in known) / sum(counts[j] for j in known)
