"""Rotary bands of a head and its rotary kernel, as table columns.

Logits are those before a soft-cap. A pair is a query and an earlier key of its text that it sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from attention_plasticity.head.band_rows import BandRows
from attention_plasticity.head.layer import NO_COMMON_TEXT, NO_TEXTS, PRE_ROPE
from attention_plasticity.head.result import Columns
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.values import HeadValues
from attention_plasticity.head.windows import window_of
from attention_plasticity.metrics import BAND_QUANTITY, KERNEL_R2, UNTURNED_QUANTITY
from attention_plasticity.numeric.bands import (
    UNTURNED,
    PairLogits,
    VarianceShares,
    standard_errors,
    variance_shares,
)
from attention_plasticity.numeric.distance_pairs import (
    DistancePairs,
    PlacedRows,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.rotary_kernel import (
    FEWEST_BINS,
    FEWEST_PAIRS,
    KernelBins,
    kernel_bins,
)
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array, Ints

NO_ROPE = "the layer has no rotary embedding"
NO_EARLIER_KEY = "no query has an earlier key of its text that it sees"
CONSTANT = "the mean logit does not vary with distance"
FEW_DISTANCES = f"fewer than {FEWEST_BINS} bins of distance have {FEWEST_PAIRS} pairs"

_SEED = 5  # beside the seed of the key pairs, so that other pairs do not change


@dataclass(frozen=True)
class HeadBands:
    """Rows of the tables of bands and of the kernel, and R² or the reason why it is not known."""

    bands: Columns = field(default_factory=dict)
    kernel: Columns = field(default_factory=dict)
    r2: Estimate | Unknown = field(default_factory=lambda: Unknown(NO_ROPE))
    influences: list[tuple[str, float, Estimate]] = field(default_factory=list)  # of shares


def head_bands(
    rows: HeadRows,
    weights: TokenWeights,
    keys: KeyHead,
    window: int | None,
    exponent: int,
    seed: int,
    group: Ints | None,
    *,
    one_text: bool = False,
) -> HeadBands:
    """Bands and kernel of the queries `rows`, which were divided by two to the `exponent`.

    `seed` is that of the pairs of its key head. `group` (n,) is that of the texts of the queries;
    None: there are no errors. With `one_text` all rows are of one text.
    """
    record = keys.rotation.record
    if record is None:
        return HeadBands(r2=Unknown(keys.rotation.problem or NO_ROPE))
    queries = BandRows.of(rows.vectors, rows.position, keys.rotation, weights.weight, group)
    of_keys = keys.band_rows
    frequency = np.array(record.frequencies)  # (m,)
    unit = _Unit.of(keys, rows.width, exponent + keys.exponent + queries.exponent)
    pairs = _pairs(rows, weights, keys, window, seed, one_text)
    if isinstance(pairs, Unknown):
        bands = _band_columns(frequency, queries, of_keys, None, unit, group)
        return HeadBands(bands, {}, pairs)
    of_pairs = None if group is None else group[pairs.query]
    logits = PairLogits.of(queries.vectors, of_keys.vectors, len(frequency), pairs)
    shares = variance_shares(logits, pairs.weight, of_pairs)
    bins = kernel_bins(pairs, logits, frequency, queries.means, of_keys.means, of_pairs)
    r2: Estimate | Unknown = bins.r2
    if math.isnan(bins.r2.value):
        r2 = Unknown(CONSTANT if bins.enough_bins else FEW_DISTANCES)
    bands = _band_columns(frequency, queries, of_keys, shares, unit, group)
    influences = _share_influences(shares, frequency, rows.width, of_pairs)
    return HeadBands(bands, _kernel_columns(pairs, bins, unit), r2, influences)


def add_kernel(values: HeadValues, found: HeadBands, why_no_errors: str) -> None:
    """The share of the mean logit over distances that the rotary kernel explains."""
    if isinstance(found.r2, Unknown):
        values.add_estimate(KERNEL_R2, math.nan, None, found.r2.reason, found.r2.reason)
        return
    known = found.r2 if found.r2.groups > 0 else None
    values.add_estimate(KERNEL_R2, found.r2.value, known, CONSTANT, why_no_errors)


@dataclass(frozen=True)
class _Unit:
    """The factor from products of scaled vectors to logits: scale · 2^exponent."""

    scale: float
    exponent: int

    @classmethod
    def of(cls, keys: KeyHead, width: int, exponent: int) -> _Unit:
        scale = keys.logits.scale
        scale = 1.0 / math.sqrt(width) if scale is None else scale
        return cls(scale, exponent + keys.band_rows.exponent)

    def logits(self, products: Array) -> list[float]:
        """Logits of products; very large vectors can have infinite ones."""
        with np.errstate(over="ignore", under="ignore"):
            found: list[float] = np.ldexp(products * self.scale, self.exponent).tolist()
        return found


def _pairs(
    rows: HeadRows,
    weights: TokenWeights,
    keys: KeyHead,
    window: int | None,
    seed: int,
    one_text: bool,
) -> DistancePairs | Unknown:
    """Pairs of a query and an earlier key, or the reason why they are not known.

    With `one_text` all rows are of one text.
    """
    problem, visible = keys.logits.problem, window_of(keys, window)
    if problem is not None and problem != PRE_ROPE:
        return Unknown(problem)
    if isinstance(visible, Unknown):
        return visible
    text, key_text = rows.example_id, keys.rows.example_id
    assert key_text is not None
    if one_text:
        text = np.full(len(rows), key_text[0])
    if text is None:
        return Unknown(NO_TEXTS)
    if not np.isin(text, key_text).any():
        return Unknown(NO_COMMON_TEXT)
    queries = PlacedRows(rows.position, text, weights.weight)
    pairs = keys.pairs_with_queries.of(queries, visible, [seed, _SEED])
    return pairs if len(pairs.query) else Unknown(NO_EARLIER_KEY)


def _band_columns(
    frequency: Array,
    queries: BandRows,
    keys: BandRows,
    shares: VarianceShares | None,
    unit: _Unit,
    group: Ints | None,
) -> Columns:
    """Columns of the table of bands."""
    m = len(frequency)
    q, k = queries.means, keys.means
    groups = math.nan if group is None else len(np.unique(group))
    unknown = np.full(m, np.nan)
    share, share_error = unknown, unknown
    if shares is not None:
        share, share_error = shares.share[:m], standard_errors(shares.influences)[:m]
    turning = frequency != 0
    wavelength = np.where(turning, 2.0 * np.pi / np.abs(np.where(turning, frequency, 1.0)), np.nan)
    amplitude = q.mean_length * k.mean_length
    phase = np.angle(np.exp(1j * (q.phase - k.phase)))
    on_product = q.on_length * k.length + q.length * k.on_length  # (g, m)
    q_error, k_error = standard_errors(q.on_concentration), standard_errors(k.on_concentration)
    return {
        "band": list(range(m)),
        "frequency": frequency.tolist(),
        "wavelength": wavelength.tolist(),
        "norm_product": unit.logits(q.length * k.length),
        "norm_product_se": unit.logits(standard_errors(on_product)),
        "variance_share": share.tolist(),
        "variance_share_se": share_error.tolist(),
        "q_concentration": q.concentration.tolist(),
        "q_concentration_se": q_error.tolist(),
        "k_concentration": k.concentration.tolist(),
        "k_concentration_se": (unknown if group is None else k_error).tolist(),
        "kernel_amplitude": unit.logits(amplitude),
        "kernel_phase": np.where(amplitude > 0, phase, np.nan).tolist(),
        "n_groups": [groups] * m,
    }


def _share_influences(
    shares: VarianceShares, frequency: Array, width: int, of_pairs: Ints | None
) -> list[tuple[str, float, Estimate]]:
    """Rows of the table of influences: shares of the variance by eighths of the bands."""
    if of_pairs is None or np.isnan(shares.share).any():
        return []
    groups = len(np.unique(of_pairs))
    found: list[tuple[str, float, Estimate]] = []
    for number, (share, influences) in shares.by_eighth(frequency).items():
        estimate = Estimate(share, math.nan, influences, groups)  # its bias is not computed
        if number != UNTURNED:
            found.append((BAND_QUANTITY, number, estimate))
        elif width > 2 * len(frequency) or (frequency == 0).any():
            found.append((UNTURNED_QUANTITY, math.nan, estimate))
    return found


def _kernel_columns(pairs: DistancePairs, bins: KernelBins, unit: _Unit) -> Columns:
    """Columns of the table of the kernel."""
    return {
        "first_distance": pairs.first.astype(int).tolist(),
        "last_distance": (pairs.end - 1.0).astype(int).tolist(),
        "distance": bins.distance.tolist(),
        "mean_logit": unit.logits(bins.mean),
        "mean_logit_se": unit.logits(bins.error),
        "kernel": unit.logits(bins.kernel),
        "n_pairs": pairs.counts.tolist(),
        "n_groups": [number if math.isnan(number) else int(number) for number in bins.groups],
    }
