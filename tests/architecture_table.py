"""The table of tested architectures in docs/capture.md, made from what the tests run.

python tests/architecture_table.py writes it; a test compares it with what is in the docs.
"""

from __future__ import annotations

from pathlib import Path

from qk_sniffer.model.layout import LayerFacts
from qk_sniffer.model.probing import probe
from tiny_models import ARCHITECTURES, PLAIN_PROJECTIONS, Architecture

DOCS = Path(__file__).parents[1] / "docs" / "capture.md"
BEGIN, END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->"
_TYPES = {"sliding_attention": "window", "chunked_attention": "chunks"}


def table() -> str:
    """One line per architecture, as its probe finds it."""
    lines = [
        "| architecture | layers see | rotary embedding | rotary record | attention run | exact |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(architecture) for architecture in ARCHITECTURES.values()]
    return "\n".join(lines) + "\n"


def _line(architecture: Architecture) -> str:
    layers = probe(architecture.model(architecture.attention[0])).layers
    exact = "yes" if architecture.model_type in PLAIN_PROJECTIONS else ""
    cells = (
        f"`{architecture.model_type}`",
        _sight(layers),
        _rotary(layers),
        _record(layers),
        ", ".join(architecture.attention),
        exact,
    )
    return f"| {' | '.join(cells)} |"


def _sight(layers: tuple[LayerFacts, ...]) -> str:
    kinds = {_TYPES.get(facts.type, "all") for facts in layers}
    return " or ".join(sorted(kinds))


def _rotary(layers: tuple[LayerFacts, ...]) -> str:
    turned = [facts for facts in layers if facts.rope]
    if not turned:
        return "none"
    part = turned[0].q_rotary
    share = "" if part is None or part.width == turned[0].width else ", part of the dimensions"
    where = "every layer" if len(turned) == len(layers) else "some layers"
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


def written(docs: str) -> str:
    """The docs with the table in its place."""
    before, rest = docs.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text()))
