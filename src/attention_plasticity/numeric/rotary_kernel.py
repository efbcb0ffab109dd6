"""The rotary kernel: the logit of the mean query and the mean key, as a function of distance.

Arrays in, arrays out; numpy only. With means μq and μk before RoPE, the logit of two means at a
distance Δ is Σ_f |μq_f||μk_f| cos(ω_f Δ + φ_f), and a constant from the dimensions that do not
turn. It is compared with the mean logit of pairs of queries and keys, in bins of distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.numeric.bands import BandMeans, PairLogits
from attention_plasticity.numeric.distance_pairs import DistancePairs
from attention_plasticity.numeric.errors.text_groups import (
    MIN_BUCKET_GROUPS,
    MIN_GROUPS,
    jackknife_factor,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints

FEWEST_PAIRS = 64  # of a bin that counts in R²
FEWEST_BINS = 3  # of such bins


@dataclass(frozen=True)
class KernelBins:
    """Mean logit and kernel in bins of distance, and R²; in units of the products q·k."""

    distance: Array  # (bins,) mean over pairs
    mean: Array  # (bins,) mean product
    error: Array  # (bins,) its standard error; NaN if it is not known
    kernel: Array  # (bins,) mean of the kernel over the same pairs
    groups: Array  # (bins,) groups of texts of the pairs; NaN if they are not known
    r2: Estimate  # NaN if the mean does not vary, or if there are too few bins
    enough_bins: bool


def kernel_bins(
    pairs: DistancePairs,
    logits: PairLogits,
    frequency: Array,
    queries: BandMeans,
    keys: BandMeans,
    group: Ints | None,
) -> KernelBins:
    """Compare the kernel with the products of `pairs`; `group` (pairs,): None if not known.

    Influences of a group go through its pairs, its queries in μq, and its keys in μk.
    """
    bins = len(pairs.first)
    slot = pairs.bin * GROUPS + (0 if group is None else group)
    sums = _GroupSums(slot, pairs.weight, bins)
    waves = _Waves(pairs, frequency, bins)
    kernel_of_pairs = waves.kernel(queries.mean, keys.mean)  # (pairs,)
    mean, on_mean = sums.mean(logits.total)
    kernel, on_kernel = sums.mean(kernel_of_pairs)
    distance, _ = sums.mean(pairs.distance)
    on_kernel = on_kernel + waves.mean_kernels(queries.on_mean, keys.mean)
    on_kernel = on_kernel + waves.mean_kernels(keys.on_mean, queries.mean, swapped=True)
    known = group is not None
    error = np.sqrt((on_mean**2).sum(axis=1))  # (bins,)
    if not known:
        error[:] = np.nan
    error[sums.groups < MIN_BUCKET_GROUPS] = np.nan
    counted = np.flatnonzero(pairs.counts >= FEWEST_PAIRS)
    r2 = Estimate(np.nan, 0.0, np.full(GROUPS, np.nan), 0)
    if len(counted) >= FEWEST_BINS:
        found = _explained(
            mean[counted], kernel[counted], on_mean[counted], on_kernel[counted], logits.noise
        )
        number = int(np.count_nonzero(sums.counts[counted].sum(axis=0))) if known else 0
        influences = found[1] if number >= MIN_GROUPS else np.full(GROUPS, np.nan)
        r2 = Estimate(found[0], 0.0, influences, number)
    groups = sums.groups if known else np.full(bins, np.nan)
    return KernelBins(distance, mean, error, kernel, groups, r2, len(counted) >= FEWEST_BINS)


def _explained(
    mean: Array, kernel: Array, on_mean: Array, on_kernel: Array, noise: float
) -> tuple[float, Array]:
    """1 − Σ(residual²)/Σ(mean²) over bins, both centred, and the influences (g,) on it."""
    centred = mean - mean.mean()  # (bins,)
    residual = (mean - kernel) - (mean - kernel).mean()
    total, rest = float(centred @ centred), float(residual @ residual)
    if total <= len(mean) * noise**2:
        return np.nan, np.full(GROUPS, np.nan)
    on_rest = 2.0 * residual @ (on_mean - on_kernel)  # (g,)
    on_total = 2.0 * centred @ on_mean
    return 1.0 - rest / total, (rest / total * on_total - on_rest) / total


class _GroupSums:
    """Weighted sums over the pairs of every bin and group."""

    def __init__(self, slot: Ints, weight: Array, bins: int) -> None:
        self._slot, self._weight, self._size = slot, weight, bins * GROUPS
        self.counts = np.bincount(slot, minlength=self._size).reshape(bins, GROUPS)
        self._weights = self._sums(np.ones(len(slot)))  # (bins, g)
        self._total = self._weights.sum(axis=1)  # (bins,)

    @property
    def groups(self) -> Array:
        """(bins,) numbers of groups with pairs."""
        return np.asarray(np.count_nonzero(self.counts, axis=1), np.float64)

    def mean(self, values: Array) -> tuple[Array, Array]:
        """Mean of `values` (pairs,) in every bin, and the influences (bins, g) of the groups."""
        sums = self._sums(values)
        mean = sums.sum(axis=1) / self._total
        influences = (sums - self._weights * mean[:, None]) / self._total[:, None]
        return mean, np.asarray(influences * jackknife_factor(self.counts)[:, None])

    def _sums(self, values: Array) -> Array:
        found = np.bincount(self._slot, self._weight * values, self._size)
        return np.asarray(found.reshape(-1, GROUPS), np.float64)


class _Waves:
    """cos(ωΔ) and sin(ωΔ) at the distances of pairs, and their means over the pairs of a bin."""

    def __init__(self, pairs: DistancePairs, frequency: Array, bins: int) -> None:
        distance, self._place = np.unique(pairs.distance, return_inverse=True)  # (u,)
        turns = distance[:, None] * (frequency / (2.0 * np.pi))  # (u, m)
        turns -= np.rint(turns)  # whole turns change nothing; the rest is exact enough in float32
        angle = turns.astype(np.float32) * np.float32(2.0 * np.pi)
        self._cos, self._sin = np.cos(angle), np.sin(angle)
        weight = np.bincount(self._place, pairs.weight)  # (u,)
        bin_of = np.zeros(len(distance), np.int64)
        bin_of[self._place] = pairs.bin  # a distance is in one bin
        starts = np.searchsorted(bin_of, np.arange(bins))
        share = (weight / np.add.reduceat(weight, starts)[bin_of])[:, None] if bins else weight
        self._mean_cos, self._mean_sin = (
            np.add.reduceat(share * wave, starts, axis=0) if bins else wave
            for wave in (self._cos, self._sin)
        )  # (bins, m)

    def kernel(self, q: Array, k: Array) -> Array:
        """(pairs,) the product of a query `q` (d,) and a key `k` (d,) before RoPE."""
        cos, sin, constant = self._parts(q, k)
        found: Array = self._cos @ cos + self._sin @ sin + constant  # (u,)
        return found[self._place]

    def mean_kernels(self, vectors: Array, other: Array, *, swapped: bool = False) -> Array:
        """(bins, g) means over the pairs of a bin for queries (g, d) and one key (d,).

        With `swapped` for keys and one query.
        """
        parts = (self._parts(other, one) if swapped else self._parts(one, other) for one in vectors)
        cos, sin, constant = (np.array(values) for values in zip(*parts, strict=True))
        return np.asarray(self._mean_cos @ cos.T + self._mean_sin @ sin.T + constant)

    def _parts(self, q: Array, k: Array) -> tuple[Array, Array, float]:
        """Factors (m,) of cos(ωΔ) and sin(ωΔ), and the constant."""
        m = self._cos.shape[1]
        qa, qb, ka, kb = q[:m], q[m : 2 * m], k[:m], k[m : 2 * m]
        # a query that is Δ further on is turned by ωΔ more than the key
        return qa * ka + qb * kb, qa * kb - qb * ka, float(q[2 * m :] @ k[2 * m :])
