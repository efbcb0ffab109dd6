"""The presses of kvpress behind the names of scorers and allocations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kvpress import (
    AdaKVPress,
    BasePress,
    CriticalAdaKVPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    PyramidKVPress,
    ScorerPress,
    SnapKVPress,
)

from attention_plasticity.export.division import PERCENTS
from attention_plasticity.kvpress import BudgetPress
from findings.eviction.budgets import curves_of, windows_of
from findings.eviction.contexts import Contexts, GlobalTop, KnownScores, OneByOne
from findings.eviction.plan import (
    ADAKV,
    CRITICAL,
    EXPECTED,
    FULL,
    KEYDIFF,
    KVZIP,
    OWN,
    PYRAMID,
    REPLAY,
    SNAPKV,
    WINDOW,
    Condition,
    Plan,
)
from findings.eviction.values import Values
from qk_toolkit.arrays import Array

_SCORERS = {SNAPKV: SnapKVPress, EXPECTED: ExpectedAttentionPress, KEYDIFF: KeyDiffPress}


def scores_of(scorer: str, contexts: Contexts, context: int, plan: Plan) -> list[Any]:
    """(texts, key heads, context) scores of every layer; none if the scorer needs none."""
    if scorer in _SCORERS:
        found: ScorerPress = _SCORERS[scorer]()
        return contexts.scores(found, plan.seed)
    return contexts.replayed() if scorer == REPLAY else []


def press_of(
    condition: Condition,
    scores: list[Any],
    values: Mapping[str, Values],
    rule: str,
    file: Path,
    plan: Plan,
) -> BasePress | None:
    """The press of a condition. `scores` are those of its scorer; budgets are written to `file`."""
    ratio, allocation = condition.compression, condition.allocation
    if allocation == FULL:
        return None
    if allocation == KVZIP:
        return GlobalTop(ratio, scores, plan.sink)
    if condition.scorer == WINDOW:
        np.save(file, windows_of(condition, values, plan))
        return BudgetPress(_LastTokens(plan.sink), file, 0.5, sink=0, window=0, any_model=True)
    known = KnownScores(ratio, scores)
    plain: dict[str, Callable[[], BasePress]] = {
        OWN: lambda: known,
        ADAKV: lambda: AdaKVPress(known),
    }
    plain[CRITICAL] = lambda: OneByOne(  # its press adds the budgets of all texts of a batch
        scores, lambda own: CriticalAdaKVPress(KnownScores(ratio, own))
    )
    if allocation in plain:
        return plain[allocation]()
    if allocation == PYRAMID:
        np.save(file, pyramid_curves(condition.context, len(scores), scores[0].shape[1]))
        return BudgetPress(known, file, ratio, sink=0, window=0, any_model=True)
    np.save(file, curves_of(allocation, values, rule, plan))
    return BudgetPress(known, file, ratio, sink=plan.sink, window=plan.window, any_model=True)


class _LastTokens(ScorerPress):  # type: ignore[misc]
    """The first tokens, then the last ones."""

    def __init__(self, sink: int) -> None:
        super().__init__()
        self.sink = sink

    def score(self, _: Any, hidden: Any, keys: Any, *rest: Any) -> Any:
        place = torch.arange(keys.shape[2], device=keys.device, dtype=torch.float32)
        place[: self.sink] = torch.inf
        return place.expand(keys.shape[:3])


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
