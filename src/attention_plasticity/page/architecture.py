"""The shape of the model on the page: by it, heads of two runs correspond or not."""

from __future__ import annotations

import pandas as pd

from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.limits import MOST_HEADS, MOST_HEADS_IN_ALL
from qk_toolkit.formatting import index_ranges


def grid(run: FinishedRun, heads: pd.DataFrame) -> list[int]:
    """Number of layers and query heads of the model."""
    layout = run.layout
    found = [int(heads["layer"].max()) + 1, int(heads["q_head"].max()) + 1]
    recorded = [layout.get("num_layers") or 0, layout.get("num_q_heads") or 0]
    if recorded[0] * recorded[1] > MOST_HEADS_IN_ALL or max(recorded) > MOST_HEADS:
        return found
    return [max(pair) for pair in zip(found, recorded, strict=True)]


def key_heads(run: FinishedRun, heads: pd.DataFrame) -> int | None:
    """Number of key heads per layer: as recorded, or by the table; None if it is not known."""
    layout = run.layout
    if recorded := layout.get("num_k_heads"):
        return int(recorded)
    known = heads.reindex(columns=["k_head"])["k_head"].dropna()
    return int(known.max()) + 1 if len(known) else None


def head_dims(heads: pd.DataFrame) -> dict[str, int]:
    """Dimensions of the heads of every layer, without the layers where they are not known."""
    if "d_model" not in heads:
        return {}
    known = heads.groupby("layer")["d_model"].max().dropna()
    return {str(layer): int(width) for layer, width in known.items()}


def selected_words(run: FinishedRun, layers: int) -> str | None:
    """The layers of a run of selected layers, such as `0-3,8`; None if all `layers` are shown."""
    if run.layers is None or len(run.layers) >= layers:
        return None
    return index_ranges(run.layers)


def counts(run: FinishedRun, shown: int) -> dict[str, int]:
    """Numbers of heads: shown, not captured and failed; those of the selected layers only."""
    found = {"shown": shown}
    if run.layers is None:
        recorded = run.info.get("heads") or {}
        known = {name: recorded.get(name) for name in ("not_captured", "failed")}
        return found | {name: n for name, n in known.items() if isinstance(n, int)}
    missing = [head[0] for head in run.info.get("not_captured") or [] if head]
    failed = [failure["layer"] for failure in run.info.get("failures") or []]
    found["not_captured"] = sum(layer in run.layers for layer in missing)
    found["failed"] = sum(layer in run.layers for layer in failed)
    return found
