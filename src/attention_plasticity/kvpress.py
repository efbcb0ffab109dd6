"""`BudgetPress`: a press of kvpress that lets every key head keep its own number of keys.

This file needs kvpress and torch, the extra `kvpress`. No other file of the package imports it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention_plasticity.export.budget_file import (
    PERCENTS,
    read_curves,
    read_provenance,
    require_model,
)
from qk_toolkit.errors import ConfigError, not_installed

try:
    import torch
    from kvpress import (
        BasePress,
        ChunkPress,
        ComposedPress,
        DecodingPress,
        KeyRerotationPress,
        ObservedAttentionPress,
        PrefillDecodingPress,
        ScorerPress,
    )
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ModuleNotFoundError as error:
    raise not_installed(str(error.name), "kvpress") from error

__all__ = ["BudgetPress", "BudgetReport"]

_REFUSED = {
    KeyRerotationPress: "a head that drops a key leaves its place empty, so no key may move",
    ChunkPress: "budgets are shares of the whole context, and it prunes every chunk alike",
    DecodingPress: "kvpress overwrites masked keys, so that they cannot be scored again",
}
"""Wrappers in which budgets cannot hold, and the reasons."""


@dataclass(frozen=True)
class BudgetReport:
    """What the last compression kept. Nothing can attend to a token that no head keeps."""

    tokens: int  # of the context
    kept: Any  # (layers, key heads) keys
    lost: float  # share of the tokens that no key head of the model keeps
    lost_in_layers: Any  # (layers,) share of the tokens that no key head of the layer keeps

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.tokens:,} tokens; key heads keep {self.kept.min():,} to {self.kept.max():,}, "
            f"{self.kept.mean():,.0f} in the mean; no head keeps {100 * self.lost:.3g} % of the "
            f"tokens (in a layer, up to {100 * self.lost_in_layers.max():.3g} %)"
        )


class BudgetPress(ScorerPress):  # type: ignore[misc]
    """Keys of each key head in proportion to its budget, chosen by the scores of another press.

    1. `press` scores the keys of the context.
    2. Every key head keeps the first `sink` and the last `window` tokens.
    3. Of the other tokens, it keeps as many as its budget says, those with the largest scores. The
       other keys are masked: no later query sees them. As with AdaKVPress, they stay in memory.

    The budgets come from `attention-plasticity export RUN OUT --to kvpress-budget`. The mean share
    that heads of layers without a window lose is `compression_ratio`; every head keeps at least one
    key. Between two percents of the file, shares are linear.

    Parameters
    ----------
    press : ScorerPress
        Ranks the keys of a head, such as `SnapKVPress()`. It gets the same compression_ratio.
    file : str or Path
        `OUT/budget.npy`. If PROVENANCE.json is beside it, its sha256 and the model are compared.
    compression_ratio : float
        Share of all keys to prune, from 0 to 0.99.
    sink, window : int
        First and last tokens of the context that every head keeps. They count towards the total;
        the budget divides what is left.
    any_model : bool
        Use the budgets of another model with the same numbers of layers and key heads.

    It works alone, as the last press of a `ComposedPress` whose other presses keep all keys, and as
    `prefilling_press` of a `PrefillDecodingPress` without a decoding press. It is a `ScorerPress`
    so that other wrappers are refused with a reason.
    """

    def __init__(
        self,
        press: ScorerPress,
        file: str | Path,
        compression_ratio: float = 0.0,
        sink: int = 4,
        window: int = 64,
        any_model: bool = False,
    ) -> None:
        """Read the file. Raises a `ConfigError` if a value cannot be used."""
        self.press, self.file, self.compression_ratio = press, file, compression_ratio
        self.sink, self.window, self.any_model = sink, window, any_model
        name = type(self.press).__name__
        if not isinstance(self.press, ScorerPress) or isinstance(self.press, BudgetPress):
            raise ConfigError(f"press: expected a ScorerPress, got {name}")
        if isinstance(self.press, ObservedAttentionPress):
            raise ConfigError(f"press: {name} needs eager attention, in which no key can be masked")
        self._require_ratio()
        for sink in (self.sink, self.window):
            if not isinstance(sink, int) or sink < 0:
                raise ConfigError(
                    "sink and window: expected integers of 0 or more, got "
                    f"{self.sink!r} and {self.window!r}"
                )
        self._facts = read_provenance(Path(self.file), needed=not self.any_model)
        self._curves = read_curves(Path(self.file), self._facts)  # (99, layers, key heads)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of layers, for the report

    def _require_ratio(self) -> None:
        """Kvpress may change the ratio of a press between two uses."""
        ratio: object = self.compression_ratio
        if not (isinstance(ratio, int | float) and 0.0 <= ratio <= PERCENTS / 100):
            raise ConfigError(f"compression_ratio: expected 0 to 0.99, got {ratio!r}")

    def post_init_from_model(self, model: Any) -> None:
        """Check that the budgets are those of the model, and that its attention masks keys."""
        self._require_ratio()
        self.press.compression_ratio = self.compression_ratio  # some scores depend on it
        self.press.post_init_from_model(model)
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        found, own = self._curves.shape[1:], (config.num_hidden_layers, heads)
        if found != own:
            raise ConfigError(
                f"{self.file}: has budgets of {found[0]} layers with {found[1]} key heads; the "
                f"model has {own[0]} layers with {own[1]} key heads. Export the budgets of this "
                "model"
            )
        if not self.any_model:
            commit = getattr(model.config, "_commit_hash", None)
            require_model(Path(self.file), self._facts, str(model.config.name_or_path), commit)
        _require_masks(config._attn_implementation)

    def compress(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attentions: torch.Tensor | None,
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mask the keys of a layer that its heads do not keep."""
        self._require_place(module)
        module.masked_key_indices = None
        n = keys.shape[2]
        kept = self._kept_numbers(module.layer_idx, n).to(keys.device)  # (key heads,)
        if (kept == n).all():
            everything = torch.ones(len(keys), n, dtype=torch.bool, device=keys.device)
            self._kept[module.layer_idx] = kept, everything
            return keys, values
        if n != hidden_states.shape[1]:
            raise ConfigError(
                f"layer {module.layer_idx}: its cache has {n} of {hidden_states.shape[1]} tokens, "
                f"because of a window or of another press, but {self.file} prunes its keys. Export "
                "the budgets of this model: they leave layers with a window as they are"
            )
        scores = self.press.score(module, hidden_states, keys, values, attentions, kwargs)
        order = self._order(scores)  # (texts, key heads, n) keys, the best first
        pruned = torch.arange(n, device=keys.device) >= kept[:, None]  # (key heads, n) by rank
        text, head, rank = pruned.expand_as(order).nonzero(as_tuple=True)
        module.masked_key_indices = (text, head, order[text, head, rank])
        by_head = torch.ones_like(scores, dtype=torch.bool)  # (texts, key heads, n)
        by_head[module.masked_key_indices] = False
        self._kept[module.layer_idx] = kept, by_head.any(dim=1)
        return keys, values

    def score(self, module: Any, *given: Any, **named: Any) -> torch.Tensor:
        """Only other presses call this; the one that was entered is refused."""
        self._require_place(module)
        raise ConfigError("BudgetPress: has no scores of its own; use those of its press")

    def _require_place(self, module: Any) -> None:
        """Raise a `ConfigError` if a press that was entered would undo or misplace the masks."""
        for hook in module._forward_hooks.values():
            outer = getattr(hook, "__self__", None)
            if outer is self or not isinstance(outer, BasePress):
                continue
            name, why = type(outer).__name__, "it prunes the same number of keys in all heads"
            if isinstance(outer, ComposedPress):
                if outer.presses[-1] is self and getattr(module, "masked_key_indices", 0) is None:
                    continue
                why = "it must be the last press, and the only one that drops keys"
            elif isinstance(outer, PrefillDecodingPress):
                if outer.prefilling_press is self and outer.decoding_press is None:
                    continue
                why = _REFUSED[DecodingPress]
            else:
                why = next((_REFUSED[one] for one in _REFUSED if isinstance(outer, one)), why)
            raise ConfigError(f"BudgetPress: cannot be used with {name} in this way: {why}")

    def report(self) -> BudgetReport:
        """What the last compression kept. Raises a `ConfigError` before the first one."""
        layers = self._curves.shape[1]
        if self._kept.keys() != set(range(layers)):
            raise ConfigError("BudgetPress: no text was compressed in all layers yet")
        found = [self._kept[layer] for layer in range(layers)]
        by_layer = torch.stack([kept.cpu() for _, kept in found])  # (layers, texts, n)
        return BudgetReport(
            by_layer.shape[-1],
            torch.stack([numbers.cpu() for numbers, _ in found]).numpy(),
            1.0 - float(by_layer.any(dim=0).float().mean()),
            1.0 - by_layer.float().mean(dim=(1, 2)).numpy(),
        )

    def _kept_numbers(self, layer: int, n: int) -> torch.Tensor:
        """(key heads,) keys that the heads of a layer keep; their sum is rounded once.

        Protected tokens are no part of what is divided: the other keys lose more instead.
        """
        protected = min(self.sink + self.window, n)
        most = 100.0 * (n - protected) / n  # percent of all keys that can be pruned
        percent = 100.0 * self.compression_ratio
        if percent < most:
            share = self._pruned(layer, 100.0 * percent / most)  # (key heads,)
            wanted = protected + (1.0 - share).clamp(0.0, 1.0) * (n - protected)
        else:
            pruned = torch.as_tensor(self._curves[-1, layer] > 0.0)
            wanted = torch.where(pruned, n * (1.0 - self.compression_ratio), float(n))
        kept = wanted.floor().long()
        rest = int(wanted.sum().round()) - int(kept.sum())
        kept[torch.topk(wanted - kept, min(max(rest, 0), len(kept))).indices] += 1
        return kept.clamp(1, n)

    def _pruned(self, layer: int, percent: float) -> torch.Tensor:
        """(key heads,) share that the heads of a layer lose; linear between two percents."""
        curves = self._curves[:, layer]  # (99, key heads)
        low = min(math.floor(percent + 1e-9), PERCENTS)
        rows = np.vstack([np.zeros_like(curves[:1]), curves, curves[-1:] > 0.0])  # (101, key heads)
        share = rows[low] + (percent - low) * (rows[low + 1] - rows[low])
        return torch.as_tensor(share, dtype=torch.float32)

    def _order(self, scores: torch.Tensor) -> torch.Tensor:
        """(texts, key heads, n) keys: sinks, then the last tokens, then by their scores."""
        n = scores.shape[-1]
        first = torch.zeros(n, dtype=torch.long, device=scores.device)  # (n,) 0: by its score
        window = min(self.window, n)
        first[n - window :] = torch.arange(1, window + 1, device=scores.device)
        first[: self.sink] = n + 1
        order = scores.argsort(dim=-1, descending=True, stable=True)
        return order.gather(-1, first[order].argsort(dim=-1, descending=True, stable=True))


def _require_masks(name: str) -> None:
    """Raise a `ConfigError` if kvpress cannot mask keys of single heads in this attention."""
    function = ALL_ATTENTION_FUNCTIONS.get(name)
    if getattr(function, "__qualname__", "").startswith("attention_patch."):
        return
    raise ConfigError(
        f"attention {name!r}: kvpress cannot mask keys of single heads there, and budgets would "
        "have no effect. Load the model with attn_implementation='sdpa'"
    )
