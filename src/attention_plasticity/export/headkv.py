"""Far attention of query heads as scores, for HeadKV."""

from __future__ import annotations

import json

from attention_plasticity.export.content import Content, text_file
from attention_plasticity.export.far_attention import far_attention, far_rule
from attention_plasticity.export.source import ExportSource

FILE = "head_scores.json"


def headkv(source: ExportSource, recent_size: int) -> Content:
    """One line of JSON: `layer-head` of every query head with a list of one score."""
    table, heads = far_attention(source, recent_size)
    scores = {
        f"{layer}-{head}": [float(score)]
        for layer, row in enumerate(table)
        for head, score in enumerate(row)
    }
    rules = {**source.rules(), "value": far_rule(recent_size)}
    return Content({FILE: text_file(json.dumps(scores) + "\n")}, heads, rules)
