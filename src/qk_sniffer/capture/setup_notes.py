"""What a capture says about its model and settings before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from qk_sniffer.capture.setup import Setup
from qk_sniffer.engines.engine import rotary_problems
from qk_sniffer.engines.hf.loading import LoadedModel
from qk_sniffer.sampling.bucket_counts import TEXTS_LOOKED_AT
from qk_toolkit.formatting import index_ranges
from qk_toolkit.watcher import Watcher


def note_setup(setup: Setup, watcher: Watcher) -> None:
    """Say which model, heads and texts the capture has, and what is special about them."""
    layers = [layer.facts.layer for layer in setup.wanted]
    q = sum(len(layer.q) for layer in setup.wanted)
    k = sum(len(layer.k) for layer in setup.wanted)
    context = f"{setup.max_length:,} tokens" if setup.max_length else "whole texts"
    watcher.note(
        f"{setup.config.model.name} ({setup.loaded.dtype}, {setup.loaded.attention}): "
        f"{q} query and {k} key heads of layers {index_ranges(layers)}; {context}; "
        f"{setup.special_tokens}"
    )
    for note in _notes(setup):
        watcher.note(note)


def _notes(setup: Setup) -> Iterator[str]:
    layout = setup.layout
    if setup.texts.total is not None:
        yield from setup.texts.notes
        cut = setup.encoder.cut(islice(setup.texts, TEXTS_LOOKED_AT))
        if cut is not None:
            yield cut.describe()
    if setup.choice is not None:
        yield setup.choice.describe(setup.config.capture.min_bucket_size)
    slower = setup.loaded.slower_than_float32() if isinstance(setup.loaded, LoadedModel) else 1.0
    if slower > 3:
        yield (
            f"{setup.loaded.dtype} is about {slower:.0f} times slower than float32 on this CPU; "
            "model.dtype: float32 is faster"
        )
    silent, compressed = layout.layers_without_attention, layout.compressed_layers
    selective = [layer.facts.layer for layer in setup.wanted if layer.facts.selective]
    if silent:
        yield f"layers {index_ranges(silent)} have no self-attention and are left out"
    if compressed:
        yield (
            f"layers {index_ranges(compressed)} attend to compressed keys, which are not tokens, "
            "and are left out"
        )
    if selective:
        yield (
            f"layers {index_ranges(selective)} choose by content which keys a query sees; "
            "dump.json records them as selective"
        )
    facts = [layer.facts for layer in setup.wanted]
    for problem, layers in rotary_problems(facts, setup.config.capture.capture_pre_rope).items():
        yield f"layers {index_ranges(layers)} have no rotary record: {problem}"
    unknown = [layer.facts.layer for layer in setup.wanted if layer.facts.logits is None]
    is_eager = setup.loaded.attention == "eager"
    remedy = "" if is_eager else "; try model.attn_implementation: eager"
    if unknown and setup.config.capture.attention:
        yield (
            f"layers {index_ranges(unknown)}: the attention function computes its weights in an "
            f"unknown way ({setup.loaded.attention}), so the attention columns are null{remedy}"
        )
    if setup.batch_size < setup.config.inference.batch_size:
        yield (
            "rotary angles of this model depend on the longest text of a batch; texts are run one "
            "at a time, and inference.batch_size has no effect"
        )
