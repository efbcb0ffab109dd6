"""The heads that a file must have, and those that it lacks: what all formats share.

Files of other tools have one entry per head of the model, in the order of heads, and no place to
say that a head is not known. So the numbers of layers and heads must be known, and a head without a
value is refused, with its reason, or filled by a rule that the user chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attention_plasticity.config import RunnerConfig
from attention_plasticity.export.settings import Missing
from attention_plasticity.read.layout import HeadLayout, head_layout
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.layout import Dump
from qk_toolkit.errors import ConfigError

Head = tuple[int, int]  # layer, and number of the head in it
_SIZES = ("num_layers", "num_q_heads", "num_k_heads")


def layout_of_dump(dump: Dump) -> HeadLayout:
    """The numbers of layers and heads of the model of a dump."""
    for name in _SIZES:
        if getattr(dump.manifest, name, None) is None:
            raise ConfigError(
                f"{dump.path}: dump.json does not have {name}, so a file could lack heads of the "
                "model. Add it to dump.json, or capture again"
            )
    return head_layout(dump, RunnerConfig())


def layout_of_run(run: FinishedRun) -> tuple[tuple[int, int], int]:
    """Layers and key heads of a layer, and query heads of a key head, of the model of a run."""
    layout = run.layout
    if len(layout) < len(_SIZES) or (run.info.get("head_layout") or {}).get("guessed"):
        raise ConfigError(
            f"{run.place}: the numbers of layers and heads of the model are not known; give the "
            "output_dir of an analysis with its run.json, or analyze again with --num_layers, "
            "--num_q_heads and --num_k_heads"
        )
    heads = layout["num_k_heads"]
    return (layout["num_layers"], heads), layout["num_q_heads"] // heads


@dataclass(frozen=True)
class Filled:
    """Heads that have the mean of others."""

    heads: list[Head] = field(default_factory=list)
    rule: str = ""

    def rules(self) -> dict[str, Any]:
        """What `PROVENANCE.json` says about them; nothing if there are none."""
        heads = [list(head) for head in self.heads]
        return {"missing": {"rule": self.rule, "heads": heads}} if heads else {}


def refuse_or_fill(
    place: object,
    lacking: list[Head],
    told: str,
    rule: str,
    *,
    remedy: str,
    missing: Missing,
    others: bool,
    note: Callable[[str], None],
) -> Filled:
    """Heads that are filled by a rule, after a note that tells them.

    Raises a `ConfigError` if the user did not choose this, or if there are no `others`.
    """
    if not lacking:
        return Filled()
    if missing == "refuse" or not others:
        way_out = ", or give --missing mean" if others else ""
        raise ConfigError(f"{place}: {told}. {remedy}{way_out}")
    note(f"{told}. {rule.capitalize()}")
    return Filled(lacking, rule)


def entries(rows: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """Rows of heads for `PROVENANCE.json`; null: not known."""
    return [{str(name): _known(value) for name, value in row.items()} for row in rows]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
