"""The presses of kvpress behind the names of scorers and allocations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from kvpress import (
    AdaKVPress,
    BasePress,
    ExpectedAttentionPress,
    KeyDiffPress,
    PyramidKVPress,
    RandomPress,
    ScorerPress,
    SnapKVPress,
    TOVAPress,
)

from attention_plasticity.export.division import PERCENTS
from attention_plasticity.kvpress import BudgetPress
from findings.eviction.contexts import KnownScores
from findings.eviction.plan import (
    ADAKV,
    EXPECTED,
    FULL,
    KEYDIFF,
    OWN,
    PYRAMID,
    RANDOM_KEYS,
    SNAPKV,
    STREAMING,
    TOVA,
    Condition,
    Plan,
)
from qk_toolkit.arrays import Array

_SCORERS = {
    SNAPKV: SnapKVPress,
    EXPECTED: ExpectedAttentionPress,
    KEYDIFF: KeyDiffPress,
    TOVA: TOVAPress,
    RANDOM_KEYS: RandomPress,
    STREAMING: RandomPress,  # the budget keeps the last tokens, whatever the scores
}


def scorer_of(name: str) -> ScorerPress:
    """The press of kvpress with its default settings."""
    return _SCORERS[name]()


def press_of(
    condition: Condition, scores: list[Any], budgets: Path, plan: Plan
) -> BasePress | None:
    """The press of a condition. `scores` are those of its scorer, of every layer."""
    ratio, allocation = condition.compression, condition.allocation
    if allocation == FULL:
        return None
    known = KnownScores(ratio, scores)
    if allocation == OWN:
        return known
    if allocation == ADAKV:
        return AdaKVPress(known)
    if allocation == PYRAMID:
        file = budgets / f"{PYRAMID}-{condition.context}.npy"
        np.save(file, pyramid_curves(condition.context, len(scores), scores[0].shape[1]))
        return BudgetPress(known, file, ratio, sink=0, window=0, any_model=True)
    file = budgets / f"{allocation}.npy"
    window = condition.context if condition.scorer == STREAMING else plan.window
    return BudgetPress(known, file, ratio, sink=plan.sink, window=window, any_model=True)


def pyramid_curves(context: int, layers: int, heads: int, **how: int) -> Array:
    """(99, layers, key heads) shares that PyramidKVPress prunes.

    Its own compression gives layers caches of different lengths. Then transformers can read only
    one token at a time. As a budget, which masks the same keys, it reads many.
    """
    config = SimpleNamespace(num_hidden_layers=layers)
    kept = [
        [
            PyramidKVPress(ratio, **how).get_layer_budget(
                SimpleNamespace(config=config, layer_idx=i), context
            )
            for i in range(layers)
        ]
        for ratio in PERCENTS
    ]  # (99, layers) keys
    shares = 1.0 - np.array(kept) / context
    return np.repeat(shares[..., None], heads, axis=2)
