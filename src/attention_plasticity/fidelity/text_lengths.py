"""The number of tokens of every text of a dump."""

from __future__ import annotations

from qk_dump.examples import read_examples
from qk_dump.layout import Dump
from qk_dump.limits import MOST_POSITIONS
from qk_toolkit.errors import DumpError


def lengths_of_texts(dump: Dump) -> dict[int, int]:
    """Tokens by the id of a text, as far as `examples.parquet` has them."""
    try:
        table = read_examples(dump.path)
    except DumpError:
        return {}
    names = ("example_id", "num_tokens")
    if table is None or any(table.schema.names.count(name) != 1 for name in names):
        return {}
    pairs = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return {
        text: tokens
        for text, tokens in pairs
        if isinstance(text, int) and isinstance(tokens, int) and 0 < tokens <= MOST_POSITIONS
    }
