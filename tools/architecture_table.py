"""The table of tested architectures in docs/capture.md, made from what the tests run.

`make architectures` writes it; a test compares it with what is in the docs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from qk_dump.columns import ATTENTION_UNITS, INCLUSION, RECEIVED, TOKEN_ID, UNITS, VALUE_NORM
from qk_sniffer import Tap, tap
from qk_sniffer.engines.engine import LayerFacts
from qk_sniffer.engines.hf.layout import HfLayout, decoder_of, run_backbone
from tiny_models import ARCHITECTURES, PLAIN_PROJECTIONS, Architecture

DOCS = Path(__file__).parents[1] / "docs" / "capture.md"
BEGIN, END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->"
_TYPES = {"sliding_attention": "window", "chunked_attention": "chunks"}
_LENGTH = 12  # tokens of the text whose columns are looked at


def table() -> str:
    """A line per kind of architecture, as its probe finds it, and columns that are not known."""
    alike: dict[str, list[str]] = {}  # cells → architectures
    unknown = []
    for architecture in ARCHITECTURES.values():
        tapped = _tapped(architecture.model(architecture.attention[0]))
        name = f"`{architecture.model_type}`"
        alike.setdefault(_cells(architecture, tapped), []).append(name)
        parts = ", ".join(_unknown_columns(tapped))
        unknown += [f"{name} ({parts})"] if parts else []
    lines = [
        "| architecture | layers see | rotary embedding | rotary record | exact |",
        "|---|---|---|---|---|",
        *(f"| {', '.join(names)} | {cells} |" for cells, names in alike.items()),
        "",
        f"Columns that are not known in every layer: {', '.join(unknown) or 'none'}.",
    ]
    return "\n".join(lines) + "\n"


def _cells(architecture: Architecture, tapped: Tap) -> str:
    layers = tapped.layout.layers
    exact = "yes" if architecture.model_type in PLAIN_PROJECTIONS else ""
    cells = (
        _sight(layers),
        _rotary(tapped.layout),
        _record(layers),
        exact,
    )
    return " | ".join(cells)


def _sight(layers: tuple[LayerFacts, ...]) -> str:
    kinds = {_TYPES.get(facts.type, "all") for facts in layers}
    return " or ".join(sorted(kinds))


def _rotary(layout: HfLayout) -> str:
    turned = [facts for facts in layout.layers if facts.rope]
    if not turned:
        return "none"
    part = layout.places[turned[0].layer].q_rotary
    share = "" if part is None or part.width == turned[0].width else ", part of the dimensions"
    where = "every layer" if len(turned) == len(layout.layers) else "some layers"
    return where + share


def _record(layers: tuple[LayerFacts, ...]) -> str:
    """The pairing of rotary dimensions, and which they are; the reason where there is no record."""
    found = {_record_of(facts) for facts in layers if facts.rope}
    return " or ".join(sorted(found))


def _record_of(facts: LayerFacts) -> str:
    record = facts.rotations.after.record
    if record is None:
        return f"none: {facts.rotations.after.problem}"
    if record.dimensions == facts.width:
        return record.pairing
    place = "first" if record.start == 0 else "last"
    return f"{record.pairing}, {place} {record.dimensions} of {facts.width}"


def _tapped(model: Any) -> Tap:
    """A text with everything that a capture takes."""
    with torch.inference_mode(), tap(model, sampler="all", attended_keys=3) as tapped:
        run_backbone(decoder_of(model), torch.arange(3, 3 + _LENGTH)[None])
    return tapped


def _unknown_columns(tapped: Tap) -> list[str]:
    """The parts of the columns that are not known in some row of some layer."""
    found = [_columns(tapped, facts.layer) for facts in tapped.layout.layers]
    return [part for part in found[0] if not all(_are_known(layer[part]) for layer in found)]


def _columns(tapped: Tap, layer: int) -> dict[str, list[Any]]:
    """The columns of the first query head and key head of a layer."""
    queries, keys = tapped.queries(layer, 0), tapped.keys(layer, 0)
    first, second, by_token = (UNITS[unit] for unit in ATTENTION_UNITS)
    return {
        "attention": [*(queries[name] for name in (*first, *second)), keys[VALUE_NORM]],
        "tokens": [*(queries[name] for name in by_token), queries[TOKEN_ID], keys[TOKEN_ID]],
        "received": [keys[RECEIVED], keys[INCLUSION]],
    }


def _are_known(columns: list[Any]) -> bool:
    """Without NaN, and without −1 in whole numbers."""
    return all(
        (values >= 0).all() if values.dtype.kind == "i" else np.isfinite(values).all()
        for values in columns
    )


def written(docs: str) -> str:
    """The docs with the table in its place."""
    before, rest = docs.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text()))
