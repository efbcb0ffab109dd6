"""Standard errors, bias and counts of one head, written from the formulas of the specification.

Slow and plain on purpose: float64 loops over pairs, groups and queries. The influence of a group is
computed for every pair by itself and then averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

GROUPS = 16
FIFTHS = ("ap_first20", "ap_20to40", "ap_40to60", "ap_60to80", "ap_last20")
MEANS = ("ap_overall", *FIFTHS, "ap_drop")

Row = dict[str, Any]
Gaussian = tuple[np.ndarray, np.ndarray]
Shares = dict[int, float]  # group -> influence


class Queries(NamedTuple):
    """Rotated queries of a head, and the regression of their first component on position."""

    model: str
    vectors: np.ndarray  # (n, d)
    bucket: np.ndarray
    group: np.ndarray
    position: np.ndarray
    slope: float
    residual: np.ndarray  # (n,) of the first component
    gaussian: Callable[[list[int]], Gaussian]  # mean and covariance of the queries with these rows


class Pair(NamedTuple):
    w: np.ndarray  # first key minus second key
    owner: int  # key bucket
    group: int  # of the text of its keys
    rank: int  # number among the pairs of its owner


class Fit(NamedTuple):
    """A Gaussian, and the influences of the groups on its mean and covariance."""

    sizes: dict[int, int]  # group -> number of queries
    mean: np.ndarray
    covariance: np.ndarray
    on_mean: dict[int, np.ndarray]
    on_covariance: dict[int, np.ndarray]


class Score(NamedTuple):
    """Plasticity of one pair, with what its error and bias need."""

    value: float
    shares: Shares  # influences of the query groups
    kappa: float
    bias: float  # without the part of κ_v
    variance_bias: float  # factor of κ_v


class Estimate(NamedTuple):
    value: float
    bias: float
    shares: list[float]  # (16,)
    groups: int = 0

    @property
    def error(self) -> float:
        return math.sqrt(sum(share**2 for share in self.shares))


class Errors(NamedTuple):
    metrics: Row
    cells: dict[tuple[int, int], Row]
    influences: list[Row]


def errors(
    queries: Queries, pairs: dict[int, list[Pair]], eligible: dict[int, list[int]], fifth_of: Any
) -> Errors:
    """New columns of a head. `pairs` and `eligible` have an entry per query bucket."""
    buckets = {j: Bucket(queries, j, used) for j, used in pairs.items()}
    cells = {}
    for j, key_buckets in eligible.items():
        for c in key_buckets:
            cells[j, c] = buckets[j].cell(c)
    used = [bucket for bucket in buckets.values() if bucket.pairs]
    text_groups = {g for bucket in used for g in bucket.sizes}
    profile = {bucket.j: bucket.estimate for bucket in used}
    sizes = {bucket.j: bucket.sizes for bucket in used}
    estimates = {"ap_overall": mean(profile, sizes, list(profile))}
    for number, name in enumerate(FIFTHS):
        estimates[name] = mean(profile, sizes, [j for j in profile if fifth_of(j) == number])
    estimates["ap_drop"] = minus(estimates["ap_first20"], estimates["ap_last20"])
    counts = {bucket.j: bucket.counted for bucket in used if not math.isnan(bucket.counted.value)}
    gaps = {j: buckets[j].gap for j in counts}
    sampled = {j: buckets[j].sample.sizes for j in counts}
    whole = {j: sum(sizes[j].values()) for j in counts}
    estimates["ap_counted"] = mean(counts, sampled, list(counts), whole)
    estimates["ap_gaussian_gap"] = mean(gaps, sampled, list(gaps), whole)
    metrics: Row = {f"{name}_se": estimates[name].error for name in MEANS}
    metrics |= {f"{name}_bias": estimates[name].bias for name in MEANS}
    metrics |= {f"{name}_corrected": estimates[name].value - estimates[name].bias for name in MEANS}
    for name in ("ap_counted", "ap_gaussian_gap"):
        metrics |= {name: estimates[name].value, f"{name}_se": estimates[name].error}
    metrics["n_text_groups"] = len(text_groups)
    rows = [(name, math.nan, estimate) for name, estimate in estimates.items()]
    for bucket in buckets.values():
        estimate = bucket.estimate
        if len(bucket.sizes) < 3:
            estimate = estimate._replace(shares=[math.nan] * GROUPS)
        groups = len(bucket.sizes) if bucket.pairs else 0
        rows.append(("ap_bucket", float(bucket.j), estimate._replace(groups=groups)))
    return Errors(metrics, cells, [influence_row(*row) for row in rows])


def influence_row(quantity: str, bucket: float, estimate: Estimate) -> Row:
    row: Row = {"quantity": quantity, "q_bucket": bucket}
    row |= {"value": estimate.value, "bias": estimate.bias}
    row["n_groups"] = estimate.groups
    return row | {f"group_{g:02d}": share for g, share in enumerate(estimate.shares)}


class Bucket:
    """One query bucket: its scored pairs, cells, plasticity and count."""

    def __init__(self, queries: Queries, j: int, pairs: list[Pair]) -> None:
        self.j, self.pairs = j, pairs
        rows = [i for i, bucket in enumerate(queries.bucket) if bucket == j]
        fitted = fit(queries, rows)
        self.sizes = fitted.sizes
        self.scores = [score(pair.w, fitted) for pair in pairs]
        self.kappa_v = kappa_v(queries.model, self.scores, fitted.sizes)
        self.estimate = average(pairs, self.scores, self.kappa_v, fitted.sizes)
        by_group = sorted(rows, key=lambda i: queries.group[i])
        size = min(len(rows), 512, max(128, len(rows) // 2))
        by_group = [by_group[i * len(rows) // size] for i in range(size)]
        self.sample = fit(queries, by_group)
        golden = (math.sqrt(5) - 1) / 2
        self.part = [pair for pair in pairs if pair.rank * golden % 1 < 0.25]
        vectors, groups = queries.vectors[by_group], queries.group[by_group]
        self.counts = [counted(pair.w, vectors, groups) for pair in self.part]
        self.counted = average(self.part, self.counts, 0.0, self.sample.sizes)
        self.gap = self._gap(queries.model)

    def _gap(self, model: str) -> Estimate:
        scores = [score(pair.w, self.sample) for pair in self.part]
        shared = kappa_v(model, scores, self.sample.sizes)
        gaps = []
        for gaussian, count in zip(scores, self.counts, strict=True):
            corrected = gaussian.value - gaussian.bias - shared * gaussian.variance_bias
            shares = {g: share - count.shares[g] for g, share in gaussian.shares.items()}
            gaps.append(Score(corrected - count.value, shares, 0.0, 0.0, 0.0))
        return average(self.part, gaps, 0.0, self.sample.sizes)

    def cell(self, c: int) -> Row:
        inside = [i for i, pair in enumerate(self.pairs) if pair.owner == c]
        pairs = [self.pairs[i] for i in inside]
        estimate = average(pairs, [self.scores[i] for i in inside], self.kappa_v, self.sizes)
        known = len(self.sizes) >= 3 and len({pair.group for pair in pairs}) >= 2
        counts = [
            count.value
            for pair, count in zip(self.part, self.counts, strict=True)
            if pair.owner == c
        ]
        return {
            "plasticity_se": estimate.error if known else math.nan,
            "plasticity_bias": estimate.bias,
            "plasticity_counted": float(np.mean(counts)) if counts else math.nan,
        }


def fit(queries: Queries, rows: list[int]) -> Fit:
    """Gaussian of the queries with these rows, with the influence of every group on it."""
    n = len(rows)
    X, group = queries.vectors[rows], queries.group[rows]
    mean, covariance = queries.gaussian(rows)
    y = X - X.mean(axis=0)
    sample_covariance = y.T @ y / (n - 1)
    sizes, on_mean, on_covariance = {}, {}, {}
    for g in sorted(set(queries.group.tolist())):
        own = y[group == g]
        if len(own):
            sizes[g] = len(own)
        on_mean[g] = own.sum(axis=0) / n
        scatter = own.T @ own - len(own) * (n - 1) / n * sample_covariance
        on_covariance[g] = scatter / (n - 1)
        if queries.model == "diagonal":
            on_covariance[g] = np.diag(np.diag(on_covariance[g]))
        if queries.model == "positional":
            on_mean[g][0] = on_first_mean(queries, rows, g)
            on_covariance[g][0, :] = on_covariance[g][:, 0] = 0.0
            on_covariance[g][0, 0] = on_first_variance(queries, g)
    return Fit(sizes, mean, covariance, on_mean, on_covariance)


def on_first_mean(queries: Queries, rows: list[int], g: int) -> float:
    """Influence of a group on `α + βτ`: of all its queries, and of those with these rows."""
    t, e = queries.position, queries.residual
    center, tau = t.mean(), t[rows].mean()
    spread = sum((value - center) ** 2 for value in t)
    on_level = on_slope = on_tau = 0.0
    for i in np.flatnonzero(queries.group == g):
        on_level += e[i] / len(t)
        if spread > 0:
            on_slope += (t[i] - center) * e[i] / spread
    for i in rows:
        if queries.group[i] == g:
            on_tau += (t[i] - tau) / len(rows)
    return float(on_level + (tau - center) * on_slope + queries.slope * on_tau)


def on_first_variance(queries: Queries, g: int) -> float:
    squares = queries.residual**2
    own = squares[queries.group == g]
    return float(sum(own - squares.mean()) / len(squares))


def score(w: np.ndarray, fitted: Fit) -> Score:
    """Plasticity of a pair; all influences and the bias are zero where v is zero."""
    m, v = float(w @ fitted.mean), float(w @ fitted.covariance @ w)
    n, groups = sum(fitted.sizes.values()), len(fitted.sizes)
    kappa = 1 / n
    if v <= 0:
        nothing = dict.fromkeys(fitted.on_mean, 0.0)
        kappa = kappa if groups == 1 else 0.0
        return Score(1.0 if m == 0 else 0.0, nothing, kappa, 0.0, 0.0)
    z = m / math.sqrt(v)
    p, not_p = math.erfc(-z / math.sqrt(2)) / 2, math.erfc(z / math.sqrt(2)) / 2
    density = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    first = 4 * density * (not_p - p)
    second = -z * first - 8 * density**2
    shares = {}
    for g in fitted.on_mean:
        on_m, on_v = w @ fitted.on_mean[g], w @ fitted.on_covariance[g] @ w
        shares[g] = float(first / math.sqrt(v) * on_m - first * z / (2 * v) * on_v)
    if groups > 1:
        squares = sum(float(w @ d) ** 2 for d in fitted.on_mean.values())
        kappa = groups / (groups - 1) * squares / v
    bias = second * kappa / 2 + first * z * (kappa - 1 / n) / 2
    return Score(4 * p * not_p, shares, kappa, bias, (second * z**2 + 3 * first * z) / 4)


def kappa_v(model: str, scores: list[Score], sizes: dict[int, int]) -> float:
    if model == "diagonal" or not scores:
        return 0.0
    n = sum(sizes.values())
    equal_groups = n**2 / sum(size**2 for size in sizes.values())
    mean_kappa = sum(pair.kappa for pair in scores) / len(scores)
    similarity = 0.0
    if n > equal_groups:
        similarity = (mean_kappa - 1 / n) / (1 / equal_groups - 1 / n)
        similarity = min(max(similarity, 0.0), 1.0)
    return similarity**2 / equal_groups + (1 - similarity**2) / n


def counted(w: np.ndarray, vectors: np.ndarray, groups: np.ndarray) -> Score:
    """Plasticity of a pair from queries of different groups, with the influence of every group."""
    prefer: Shares = {}
    size: dict[int, int] = {}
    for q, g in zip(vectors, groups.tolist(), strict=True):
        margin = float(w @ q)
        prefer[g] = prefer.get(g, 0.0) + (0.5 if margin == 0 else float(margin > 0))
        size[g] = size.get(g, 0) + 1
    differing = all_pairs = 0.0
    on_differing, on_all = dict.fromkeys(range(GROUPS), 0.0), dict.fromkeys(range(GROUPS), 0.0)
    for g in size:
        for h in size:
            if g != h:
                differ = prefer[g] * (size[h] - prefer[h])
                differing += differ
                all_pairs += size[g] * size[h]
                for one in (g, h):
                    on_differing[one] += differ
                    on_all[one] += size[g] * size[h]
    if all_pairs == 0:
        return Score(math.nan, dict.fromkeys(range(GROUPS), math.nan), 0.0, 0.0, 0.0)
    value = 4 * differing / all_pairs
    shares = {g: (4 * on_differing[g] - value * on_all[g]) / all_pairs for g in range(GROUPS)}
    return Score(value, shares, 0.0, 0.0, 0.0)


def average(
    pairs: list[Pair], scores: list[Score], shared: float, sizes: dict[int, int]
) -> Estimate:
    """Mean over pairs. Groups influence it through their queries and through their pairs."""
    if not pairs:
        return Estimate(math.nan, math.nan, [math.nan] * GROUPS)
    value = sum(pair.value for pair in scores) / len(pairs)
    bias = sum(pair.bias + shared * pair.variance_bias for pair in scores) / len(pairs)
    shares = []
    for g in range(GROUPS):
        through_queries = sum(pair.shares.get(g, 0.0) for pair in scores) / len(pairs)
        own = [s.value - value for p, s in zip(pairs, scores, strict=True) if p.group == g]
        through_pairs = sum(own) / len(pairs)
        shares.append(
            factor(len(sizes)) * through_queries
            + factor(len({pair.group for pair in pairs})) * through_pairs
        )
    return Estimate(value, bias, shares)


def factor(groups: int) -> float:
    return math.sqrt(groups / (groups - 1)) if groups > 1 else 1.0


def mean(
    profile: dict[int, Estimate],
    sizes: dict[int, dict[int, int]],
    chosen: list[int],
    whole: dict[int, int] | None = None,
) -> Estimate:
    """Mean over query buckets, weighted by their queries, of which `sizes` may be a sample."""
    if not chosen:
        return Estimate(math.nan, math.nan, [math.nan] * GROUPS, 0)
    weight = {j: sum(sizes[j].values()) if whole is None else whole[j] for j in chosen}
    total = sum(weight.values())
    value = sum(weight[j] * profile[j].value for j in chosen) / total
    bias = sum(weight[j] * profile[j].bias for j in chosen) / total
    groups = {g for j in chosen for g in sizes[j]}
    shares = []
    for g in range(GROUPS):
        share = sum(weight[j] * profile[j].shares[g] for j in chosen) / total
        own = sum(sizes[j].get(g, 0) * (profile[j].value - value) for j in chosen) / total
        shares.append(share + factor(len(groups)) * own)
    enough = len(groups) >= 4
    return Estimate(value, bias, shares if enough else [math.nan] * GROUPS, len(groups))


def minus(one: Estimate, two: Estimate) -> Estimate:
    shares = [a - b for a, b in zip(one.shares, two.shares, strict=True)]
    groups = min(one.groups, two.groups)
    return Estimate(one.value - two.value, one.bias - two.bias, shares, groups)
