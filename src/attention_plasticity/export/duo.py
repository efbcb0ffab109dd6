"""Gates per key head for DuoAttention: 1 keeps full attention, 0 sees first and recent tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.export.content import (
    CONFIG,
    Content,
    entries_of,
    json_file,
    text_file,
)
from attention_plasticity.export.order import UNIFORM, OrderedHeads, is_share
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError

FILE = "full_attention_heads.tsv"
_EVIDENCE = "How well gates from these values keep the output of a model was not measured."


@dataclass(frozen=True)
class DuoOptions:
    """Choices of the format."""

    threshold: float | None = None
    share: float | None = None
    sink_size: int = SINK_TOKENS
    recent_size: int = 256


def require_gates(order: str, options: DuoOptions) -> None:
    """Raise a `ConfigError` if gates cannot be made from the values of an order."""
    if order == UNIFORM:
        raise ConfigError(f"--order: {UNIFORM} has no values, and --to duo needs them")
    if options.threshold is not None and options.share is not None:
        raise ConfigError("--threshold: cannot be used together with --share; choose one")
    if options.threshold is None and options.share is None and not is_share(order):
        raise ConfigError(
            f"--order: values of {order} are not from 0 to 1, as gates are; give --share or "
            "--threshold"
        )


def duo(heads: OrderedHeads, options: DuoOptions) -> Content:
    """`full_attention_heads.tsv`, one row per layer and one column per key head.

    Heads of layers with a window or chunks have the gate 1: they stay as they are.
    """
    gate = np.ones(len(heads.value))  # (n,)
    gate[heads.counted] = gates(heads.value[heads.counted], options.threshold, options.share)
    rows = gate.reshape(heads.shape)  # (layers, key heads)
    text = "".join("\t".join(f"{one:.6g}" for one in row) + "\n" for row in rows)
    config = {"sink_size": options.sink_size, "recent_size": options.recent_size}
    rules = {
        **heads.rules(),
        "gates": _gate_rule(options),
        "full_attention_heads": int(np.count_nonzero(gate == 1.0)),
    }
    files = {FILE: text_file(text), CONFIG: json_file(config)}
    return Content(files, entries_of(heads.table(gate=gate)), rules, _EVIDENCE)


def gates(values: Array, threshold: float | None, share: float | None) -> Array:
    """(n,) gates from 0 to 1, of values of which larger ones need full attention.

    With `threshold`, 1 for values of at least this size, else 0. With `share`, 1 for this share of
    key heads, those with the largest values; of equal values the first in the order of layers and
    heads. With neither, the values themselves, limited to 0 to 1.
    """
    if threshold is not None:
        return np.where(values >= threshold, 1.0, 0.0)
    if share is None:
        return np.clip(values, 0.0, 1.0)
    found = np.zeros(len(values))
    found[np.argsort(-values, kind="stable")[: round(share * len(values))]] = 1.0
    return found


def _gate_rule(options: DuoOptions) -> str:
    windows = "1 for heads of layers with a window or chunks"
    if options.threshold is not None:
        return f"1 for values of {options.threshold:g} or more, else 0; {windows}"
    if options.share is not None:
        return f"1 for the share {options.share:g} of the others with the largest values; {windows}"
    return f"the values themselves, limited to 0 to 1; {windows}"
