"""Rotary bands of a head, and its rotary kernel.

RoPE turns the dimensions of a vector in pairs; a pair is a band. With means μq and μk before RoPE,
the logit of two means at a distance Δ is the kernel Σ_f |μq_f||μk_f| cos(ω_f Δ + φ_f), and a
constant from the dimensions that do not turn. It is compared with the mean logit of pairs of a
query and an earlier key, in bins of distance. Logits are those before a soft-cap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from attention_plasticity.estimate.blocks import row_blocks
from attention_plasticity.estimate.moments import ROUNDING, Moments
from attention_plasticity.estimate.quantity import (
    Quantity,
    Unknown,
    group_sums,
    leave_one_out,
    present_groups,
    quantity,
    sums_by,
)
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.distance_pairs import DistancePairs, PlacedRows, distance_pairs
from attention_plasticity.measure.found import Found
from attention_plasticity.measure.result import Columns
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.metrics import BAND_QUANTITY, KERNEL_R2, UNTURNED_QUANTITY
from attention_plasticity.read.layer import NO_COMMON_TEXT, NO_TEXTS, PRE_ROPE
from attention_plasticity.read.rows import Keys, Queries, WeightedRows
from qk_dump.layers import RotaryRecord
from qk_dump.rotary import pair_dimensions
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

Logits = Callable[[Array], list[float]]
"""From products of scaled vectors."""

NO_ROPE = "the layer has no rotary embedding"
NO_EARLIER_KEY = "no query has an earlier key of its text that it sees"
CONSTANT = "the mean logit does not vary with distance"
FEWEST_PAIRS = 64  # of a bin that counts in R²
FEWEST_BINS = 3  # of such bins
FEW_DISTANCES = f"fewer than {FEWEST_BINS} bins of distance have {FEWEST_PAIRS} pairs"
EIGHTHS = 8  # parts of the bands whose shares are kept with influences
UNTURNED = -1  # in place of the eighth of a band that does not turn


@dataclass(frozen=True)
class BandRows:
    """Vectors with their dimensions in the order of bands, and means over tokens.

    The order is: the first dimensions of all bands, the second ones, the dimensions that RoPE does
    not turn. Means are those before RoPE: of all groups of texts, then without each.
    """

    after: Vectors  # (n, d)
    mean: Array  # (1 + g, d)
    length: Array  # (1 + g, m) mean length of every band
    present: Bools  # (g,) groups with rows

    @classmethod
    def of(cls, rows: WeightedRows, record: RotaryRecord, moments: Moments) -> BandRows:
        """From queries or keys of a layer whose rotary record is known, and their moments."""
        order = _band_order(record, rows.rows.width)
        few, (first, second) = rows.evenly, pair_dimensions(record)
        assert few.before is not None
        lengths = np.hypot(few.before[:, first], few.before[:, second])  # (n, m)
        group = np.zeros(len(few), np.int64) if few.group is None else few.group
        member = np.zeros((GROUPS, len(few)), np.float32)
        member[group, np.arange(len(few))] = few.weight / few.weight.max()
        sums = leave_one_out((member @ lengths).astype(np.float64))  # (1 + g, m)
        weight = leave_one_out(member.sum(axis=1, dtype=np.float64))[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            length = sums / weight
        in_order = bool((order == np.arange(len(order))).all())
        after = rows.after if in_order else rows.after[:, order]
        return cls(after, moments.means[:, order], length, moments.present)

    @cached_property
    def longest(self) -> float:
        """The length of the longest vector."""
        return math.sqrt(float(np.einsum("nd,nd->n", self.after, self.after).max(initial=0.0)))

    @cached_property
    def concentration(self) -> Array:
        """(1 + g, m) length of the mean / mean length; NaN if all lengths are zero."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return _lengths(self.mean, self.length.shape[1]) / np.where(
                self.length > 0, self.length, np.nan
            )


@dataclass(frozen=True)
class Waves:
    """Pairs of a query and an earlier key, and sums of cos(ωΔ) and sin(ωΔ) over them.

    They do not depend on the vectors and are shared by the query heads of a key head.
    """

    pairs: DistancePairs
    group: Ints  # (pairs,) of the text of the query; 0 if it is not known
    known: bool  # whether groups of texts are known
    weight: Array  # (1 + g, bins) sums of the weights of pairs
    cos: Array  # (1 + g, bins, m) means over the pairs of a bin
    sin: Array  # (1 + g, bins, m)
    distance: Array  # (bins,) mean distance

    @classmethod
    def of(cls, pairs: DistancePairs, frequency: Array, group: Ints | None) -> Waves:
        """`group` (n,) is that of all queries; None: not known."""
        own = np.zeros(len(pairs.query), np.int64) if group is None else group[pairs.query]
        distances, place = np.unique(pairs.distance, return_inverse=True)
        turns = distances[:, None] * (frequency / (2.0 * np.pi))  # (distances, m)
        turns -= np.rint(turns)  # whole turns change nothing; the rest is exact in float32
        angle = turns.astype(np.float32) * np.float32(2.0 * np.pi)
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)  # (distances, 2m)
        slot, slots = own * len(distances) + place, GROUPS * len(distances)
        tokens = sums_by(pairs.weight, slot, slots).reshape(GROUPS, -1).astype(np.float32)
        starts = np.searchsorted(distances, pairs.first).tolist()  # a bin has distances of its own
        of_bins = [
            tokens[:, begin:end] @ table[begin:end]
            for begin, end in pairwise([*starts, len(distances)])
        ]
        sums = np.stack(of_bins, axis=1, dtype=np.float64)  # (g, bins, 2m)
        weight = leave_one_out(_bin_sums(pairs, own, pairs.weight))
        with np.errstate(invalid="ignore", divide="ignore"):
            means = leave_one_out(sums) / weight[:, :, None]  # (1 + g, bins, 2m)
        m = len(frequency)
        total = np.bincount(pairs.bin, pairs.weight)
        distance = np.bincount(pairs.bin, pairs.weight * pairs.distance) / total
        return cls(
            pairs=pairs,
            group=own,
            known=group is not None,
            weight=weight,
            cos=means[:, :, :m],
            sin=means[:, :, m:],
            distance=distance,
        )

    def kernel(self, q: Array, k: Array) -> Array:
        """(1 + g, bins) mean product of a mean query and a mean key (1 + g, d) before RoPE."""
        m = self.cos.shape[2]
        qa, qb, qc = q[:, :m], q[:, m : 2 * m], q[:, 2 * m :]
        ka, kb, kc = k[:, :m], k[:, m : 2 * m], k[:, 2 * m :]
        # a query that is Δ further on is turned by ωΔ more than the key
        along, across = qa * ka + qb * kb, qa * kb - qb * ka  # (1 + g, m)
        found = np.einsum("rbm,rm->rb", self.cos, along) + np.einsum("rbm,rm->rb", self.sin, across)
        return np.asarray(found + np.einsum("rd,rd->r", qc, kc)[:, None])

    def means(self, values: Array) -> Array:
        """(1 + g, bins) means of `values` (pairs,) over the pairs of every bin."""
        sums = _bin_sums(self.pairs, self.group, values * self.pairs.weight)
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Array = leave_one_out(sums) / self.weight
        return found


@dataclass(frozen=True)
class PairedKeys:
    """What query heads with queries at the same places share: keys, and pairs of these places."""

    rows: BandRows
    frequency: Array  # (m,)
    waves: Waves | Unknown
    of_pairs: Vectors  # (pairs, d) the keys of the pairs

    @classmethod
    def of(
        cls, queries: Queries, keys: Keys, moments: Moments | None, streams: Streams
    ) -> PairedKeys | Unknown:
        """`moments` are those of the keys before RoPE, `streams` those of the key head."""
        record = keys.layer.rotation.record
        if record is None or moments is None:
            return Unknown(keys.layer.rotation.problem or NO_ROPE)
        rows, frequency = BandRows.of(keys, record, moments), np.array(record.frequencies)
        waves = _waves(queries, keys, frequency, streams)
        none = np.zeros(0, np.int64)
        used = none if isinstance(waves, Unknown) else waves.pairs.key
        return cls(rows, frequency, waves, rows.after[used])


def band_columns(
    queries: Queries, keys: Keys, moments: Moments | None, paired: PairedKeys | Unknown
) -> Found:
    """Rows of the tables of bands and of the kernel, and R².

    `moments` are those of the queries before RoPE.
    """
    found = Found()
    if isinstance(paired, Unknown):
        found.add_unknown((KERNEL_R2,), paired.reason)
        return found
    record = keys.layer.rotation.record
    assert record is not None
    assert moments is not None
    q, k = BandRows.of(queries, record, moments), paired.rows
    frequency, waves = paired.frequency, paired.waves
    logits_of = _unit(keys, queries.exponent + keys.exponent)
    if isinstance(waves, Unknown):
        found.add_unknown((KERNEL_R2,), waves.reason)
        found.tables["bands"] = _band_rows(frequency, q, k, None, logits_of, queries)
        return found
    logits, sums = _pair_logits(q.after, paired.of_pairs, len(frequency), waves)
    noise = ROUNDING * float(np.finfo(q.after.dtype).eps) * q.longest * k.longest
    shares = _variance_shares(sums, noise, waves)  # (1 + g, m + 1)
    found.tables["bands"] = _band_rows(frequency, q, k, (shares, waves), logits_of, queries)
    if waves.known and not np.isnan(shares[0]).any():
        found.quantities += _share_quantities(shares, frequency, queries.rows.width, waves)
    _add_kernel(found, waves, logits, noise, (q, k), logits_of, queries)
    return found


def _waves(queries: Queries, keys: Keys, frequency: Array, streams: Streams) -> Waves | Unknown:
    """Pairs of a query and an earlier key, or the reason why they are not known."""
    problem = keys.layer.logit_problem
    if problem is not None and problem != PRE_ROPE:
        return Unknown(problem)
    if isinstance(queries.visible, Unknown):
        return queries.visible
    if queries.text is None:
        return Unknown(NO_TEXTS)
    if not np.isin(queries.text, keys.text).any():
        return Unknown(NO_COMMON_TEXT)
    pairs = distance_pairs(
        PlacedRows(queries.position, queries.text, queries.weight),
        PlacedRows(keys.position, keys.text, keys.weight),
        queries.visible,
        streams.rng(Purpose.DISTANCE_PAIRS),
    )
    if not len(pairs.query):
        return Unknown(NO_EARLIER_KEY)
    return Waves.of(pairs, frequency, queries.group)


def _unit(keys: Keys, exponent: int) -> Logits:
    """Logits of products of scaled vectors; very large vectors can have infinite ones."""
    scale = keys.layer.scale
    scale = 1.0 / math.sqrt(keys.rows.width) if scale is None else scale

    def logits(products: Array) -> list[float]:
        with np.errstate(over="ignore", under="ignore"):
            found: list[float] = np.ldexp(products * scale, exponent).tolist()
        return found

    return logits


def _pair_logits(Q: Vectors, K: Vectors, m: int, waves: Waves) -> tuple[Array, Array]:
    """(pairs,) products of queries and keys, and (2, g, m + 1) sums over the pairs of every group.

    A product is the sum of those of m bands and of the other dimensions. The sums are those of the
    parts about a point near their mean: weighted, and weighted and times the whole product. `Q` are
    all queries, `K` the keys of the pairs.
    """
    pairs, share = waves.pairs, waves.pairs.weight / waves.pairs.weight.sum()
    logits, sums = np.empty(len(share)), np.zeros((2 * GROUPS, m + 1))
    origin = None
    for rows in row_blocks(len(share), Q.shape[1]):
        products = Q[pairs.query[rows]]  # (b, d)
        products *= K[rows]
        products[:, :m] += products[:, m : 2 * m]
        parts = products[:, : m + 1].astype(np.float64)
        parts[:, m] = products[:, 2 * m :].sum(axis=1)
        logits[rows] = parts @ np.ones(m + 1)
        origin = parts.mean(axis=0) if origin is None else origin  # (m + 1,)
        parts -= origin
        own = share[rows]
        factors = np.zeros((2, GROUPS, len(own)))
        weights = own, own * (logits[rows] - origin.sum())
        factors[:, waves.group[rows], np.arange(len(own))] = weights
        sums += factors.reshape(2 * GROUPS, -1) @ parts
    return logits, sums.reshape(2, GROUPS, -1)


def _variance_shares(sums: Array, noise: float, waves: Waves) -> Array:
    """(1 + g, m + 1) Cov(l_f, logit) / Var(logit) over pairs, from `sums` (2, g, m + 1).

    They sum to 1. NaN if the logit does not vary.
    """
    share = waves.pairs.weight / waves.pairs.weight.sum()
    weights = leave_one_out(group_sums(share, waves.group))[:, None]  # (1 + g, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        first, second = (leave_one_out(part) / weights for part in sums)
        own = second - first * first.sum(axis=1, keepdims=True)  # (1 + g, m + 1)
        found: Array = own / own.sum(axis=1, keepdims=True)
    if own[0].sum() <= noise**2:
        found[:] = np.nan
    return found


def _share_quantities(
    shares: Array, frequency: Array, width: int, waves: Waves
) -> list[tuple[str, float, Quantity]]:
    """Shares of the variance by eighths of the bands, with influences."""
    eighths = np.append(band_eighths(frequency), UNTURNED)  # (m + 1,)
    present = present_groups(waves.group)
    found: list[tuple[str, float, Quantity]] = []
    for number in np.unique(eighths).tolist():
        one = quantity(shares[:, eighths == number].sum(axis=1), present)
        if number != UNTURNED:
            found.append((BAND_QUANTITY, number, one))
        elif width > 2 * len(frequency) or (frequency == 0).any():
            found.append((UNTURNED_QUANTITY, math.nan, one))
    return found


def band_eighths(frequency: Array) -> Ints:
    """(m,) number of the eighth of the bands, from 0 to 7; `UNTURNED` for frequency 0.

    The number depends on the place of a band alone. So a band keeps it if RoPE is scaled.
    """
    m = len(frequency)
    return np.where(frequency != 0, np.arange(m) * EIGHTHS // max(m, 1), UNTURNED)


def _band_rows(
    frequency: Array,
    q: BandRows,
    k: BandRows,
    shares: tuple[Array, Waves] | None,
    logits_of: Logits,
    queries: Queries,
) -> Columns:
    """Columns of the table of bands."""
    m = len(frequency)
    share = Quantity(np.full(m, np.nan), np.full((GROUPS, m), np.nan), np.zeros(m))
    if shares is not None:
        values, waves = shares
        share = quantity(values[:, :m], present_groups(waves.group) & waves.known)
    turning = frequency != 0
    wavelength = np.where(turning, 2.0 * np.pi / np.abs(np.where(turning, frequency, 1.0)), np.nan)
    size = quantity(q.length * k.length, q.present | k.present)
    of_queries = quantity(q.concentration, q.present)
    of_keys = quantity(k.concentration, k.present)
    amplitude = _lengths(q.mean[:1], m)[0] * _lengths(k.mean[:1], m)[0]  # (m,)
    phase = np.angle(np.exp(1j * (_phase(q.mean[0], m) - _phase(k.mean[0], m))))
    groups = math.nan if queries.group is None else len(np.unique(queries.group))
    return {
        "band": list(range(m)),
        "frequency": frequency.tolist(),
        "wavelength": wavelength.tolist(),
        "norm_product": logits_of(size.value),
        "norm_product_se": logits_of(size.standard_error),
        "variance_share": share.value.tolist(),
        "variance_share_se": share.standard_error.tolist(),
        "q_concentration": of_queries.value.tolist(),
        "q_concentration_se": of_queries.standard_error.tolist(),
        "k_concentration": of_keys.value.tolist(),
        "k_concentration_se": of_keys.standard_error.tolist(),
        "kernel_amplitude": logits_of(amplitude),
        "kernel_phase": np.where(amplitude > 0, phase, np.nan).tolist(),
        "n_groups": [groups] * m,
    }


def _add_kernel(
    found: Found,
    waves: Waves,
    logits: Array,
    noise: float,
    rows: tuple[BandRows, BandRows],
    logits_of: Logits,
    queries: Queries,
) -> None:
    """The table of the kernel, and the share of the mean logit that the kernel explains."""
    pairs = waves.pairs
    mean = waves.means(logits)  # (1 + g, bins)
    kernel = waves.kernel(rows[0].mean, rows[1].mean)  # (1 + g, bins)
    present = (_bin_sums(pairs, waves.group, np.ones(len(pairs.query))) > 0) & waves.known
    of_bins = quantity(mean, present)
    groups = [int(n) if waves.known else math.nan for n in present.sum(axis=0)]
    found.tables["kernel"] = {
        "first_distance": pairs.first.astype(int).tolist(),
        "last_distance": (pairs.end - 1.0).astype(int).tolist(),
        "distance": waves.distance.tolist(),
        "mean_logit": logits_of(of_bins.value),
        "mean_logit_se": logits_of(of_bins.standard_error),
        "kernel": logits_of(kernel[0]),
        "n_pairs": pairs.counts.tolist(),
        "n_groups": groups,
    }
    counted = np.flatnonzero(pairs.counts >= FEWEST_PAIRS)
    if len(counted) < FEWEST_BINS:
        found.add_unknown((KERNEL_R2,), FEW_DISTANCES)
        return
    values = _explained(mean[:, counted], kernel[:, counted], noise)
    r2 = quantity(values, present[:, counted].any(axis=1) & ~np.isnan(values[0]))
    found.add_quantity(KERNEL_R2, r2, CONSTANT, queries.no_errors)


def _explained(mean: Array, kernel: Array, noise: float) -> Array:
    """(1 + g,) 1 − Σ(residual²)/Σ(mean²) over bins, both centred; NaN if the mean is constant."""
    known = ~np.isnan(mean) & ~np.isnan(kernel)  # (1 + g, bins)
    number = np.maximum(known.sum(axis=1, keepdims=True), 1)

    def centred(values: Array) -> Array:
        values = np.where(known, values, 0.0)
        return np.where(known, values - values.sum(axis=1, keepdims=True) / number, 0.0)

    total = (centred(mean) ** 2).sum(axis=1)
    rest = (centred(mean - kernel) ** 2).sum(axis=1)
    varies = total > number[:, 0] * noise**2
    return np.where(varies, 1.0 - rest / np.where(varies, total, 1.0), np.nan)


def _bin_sums(pairs: DistancePairs, group: Ints, values: Array) -> Array:
    """(g, bins) sums of `values` (pairs,) over the pairs of every bin and group."""
    bins = len(pairs.first)
    sums = sums_by(values, pairs.bin * GROUPS + group, bins * GROUPS)
    return sums.reshape(bins, GROUPS).T


def _band_order(record: RotaryRecord, width: int) -> Ints:
    """(d,) the dimensions in the order of `BandRows`."""
    dimensions = np.arange(width)
    first, second = pair_dimensions(record)
    turned = np.concatenate([dimensions[first], dimensions[second]])
    return np.concatenate([turned, np.setdiff1d(dimensions, turned)])


def _lengths(X: Vectors, m: int) -> Array:
    """(n, m) the length of every band of vectors (n, d)."""
    return np.asarray(np.hypot(X[:, :m], X[:, m : 2 * m]), np.float64)


def _phase(mean: Array, m: int) -> Array:
    """(m,) the angle of the mean of every band."""
    return np.arctan2(mean[m : 2 * m], mean[:m])
