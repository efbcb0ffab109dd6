"""The key pairs of each `pair_sampling` in words."""

from __future__ import annotations

PAIR_WORDS = {
    "bucket": "two keys of one text and one key bucket",
    "local": "two nearby keys of one text",
    "context": "any two earlier keys of one text",
    "attended": (
        "two earlier keys of one text, drawn in proportion to the attention that they receive"
    ),
}
