"""The rotary records of a dump, from the config of its model.

A model of the same shape with random weights is probed. Its layout must be that of the dump.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from qk_dump.examples import read_examples
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME, DumpManifest
from qk_dump.parquet import opened_parquet, vector_width_of
from qk_sniffer.config import ModelSettings
from qk_sniffer.model.layout import LayerFacts, ModelLayout, text_config
from qk_sniffer.model.loading import quiet_transformers
from qk_sniffer.model.probing import probe
from qk_sniffer.model.stand_in import stand_in_model
from qk_sniffer.pipeline.description import layer_record, rope_parameters, rotary_entry
from qk_toolkit.errors import ConfigError

_COPIED = ("layer", "type", "rope", "head_dim", "window")
_ROTARY = ("rotary", "rotary_problem")


def rotary_entries(
    dump: Dump, model: ModelSettings, note: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """One entry per layer, as in `dump.json`. Raises a `ConfigError` if the model does not fit."""
    manifest = dump.manifest or DumpManifest()
    model = _with_recorded_overrides(model, manifest, note)
    with quiet_transformers():
        built = stand_in_model(model)
        layout = probe(built)
    _require_fit(dump, manifest, layout, rope_parameters(text_config(built)))
    pre_rope, lengths = bool(manifest.pre_rope), _lengths(dump)
    return [_entry(facts, pre_rope, lengths) for facts in layout.layers]


def _entry(facts: LayerFacts, pre_rope: bool, lengths: Collection[int] | None) -> dict[str, Any]:
    known = {name: value for name, value in layer_record(facts).items() if name in _COPIED}
    if lengths is None and facts.rotation(pre_rope).table is not None:
        return known | {
            "rotary": None,
            "rotary_problem": "the frequencies depend on the length of a text, and the dump has no "
            "examples.parquet with the lengths",
        }
    return known | rotary_entry(facts, pre_rope, lengths or ())


def with_records(manifest: DumpManifest, entries: list[dict[str, Any]]) -> DumpManifest:
    """The manifest with the records in its `layers`."""
    new = {entry["layer"]: entry for entry in entries}
    layers = []
    for entry in manifest.layers or []:
        kept = {name: value for name, value in entry.items() if name not in _ROTARY}
        found = new.get(entry.get("layer", -1), {})
        layers.append(kept | {name: found[name] for name in _ROTARY if name in found})
    return manifest.model_copy(update={"layers": layers})


def _with_recorded_overrides(
    model: ModelSettings, manifest: DumpManifest, note: Callable[[str], None]
) -> ModelSettings:
    """The model with the changes of its config that the capture used, if none are given."""
    captured = (manifest.capture or {}).get("model")
    overrides = captured.get("config_overrides") if isinstance(captured, dict) else None
    if model.config_overrides is not None or not isinstance(overrides, dict) or not overrides:
        return model
    note("model.config_overrides are those that dump.json records for the capture")
    return model.model_copy(update={"config_overrides": overrides})


def _lengths(dump: Dump) -> list[int] | None:
    """The numbers of tokens of the texts; None if they are not known."""
    examples = read_examples(dump.path)
    if examples is None or "num_tokens" not in examples.column_names:
        return None
    return [int(length or 0) for length in examples["num_tokens"].to_pylist()]


def _require_fit(
    dump: Dump, manifest: DumpManifest, layout: ModelLayout, rope: dict[str, Any] | None
) -> None:
    """Refuse a model whose layout is not that of the dump."""
    _require_same(dump, "num_layers", manifest.num_layers, layout.num_layers)
    layers = {facts.layer: facts for facts in layout.layers}
    for head in dump.folders:
        facts = layers.get(head.layer)
        heads = 0 if facts is None else facts.q_heads if head.kind == "q" else facts.k_heads
        if head.head >= heads:
            raise _no_fit(dump, f"the dump has head {head.folder}, which the model does not have")
    for entry in manifest.layers or []:
        number = entry.get("layer")
        facts = layers.get(number if type(number) is int else -1)
        if facts is None:
            raise _no_fit(dump, f"dump.json lists layer {number!r:.20}, which is not in the model")
        record = {"window": None, **layer_record(facts)}
        for name in _COPIED:
            if name in entry:
                _require_same(dump, f"{name} of layer {number}", entry[name], record[name])
    _require_widths(dump, layers)
    told = manifest.rope_parameters or {}
    for name in told.keys() & (rope or {}).keys():
        _require_same(dump, f"rope_parameters.{name}", told[name], (rope or {})[name])


def _require_widths(dump: Dump, layers: dict[int, LayerFacts]) -> None:
    """Compare the width of the vectors of one head of every layer."""
    first = {head.layer: head for head in reversed(dump.folders)}
    for layer, head in sorted(first.items()):
        file = dump.require_files(head)[0]
        with opened_parquet(file) as parquet:
            width = vector_width_of(parquet, file)
        _require_same(dump, f"width of vectors of {head.folder}", width, layers[layer].width)


def _require_same(dump: Dump, name: str, there: object, here: object) -> None:
    if there is not None and there != here:
        raise _no_fit(dump, f"{name} is {there!r:.60} in the dump and {here!r:.60} in the model")


def _no_fit(dump: Dump, reason: str) -> ConfigError:
    return ConfigError(
        f"{dump.path / MANIFEST_NAME}: the model does not fit the dump: {reason}. Give the model, "
        "revision and config_overrides of the capture."
    )
