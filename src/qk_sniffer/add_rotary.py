"""The command `add-rotary`: rotary records for a dump that was captured without them.

They are measured on a small random model with the layers, the widths of heads and the rope of the
given model. Its layout must be that of the dump.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from qk_sniffer.config import ModelSettings, ModelSource
from qk_sniffer.extras import capture_extra
from qk_toolkit.command_line import allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import settings_from

if TYPE_CHECKING:
    from qk_dump.layout import Dump
    from qk_dump.rotary import Entries, RotaryFile
    from qk_sniffer.engines.engine import ModelLayout

_PROGRAM = "attention-plasticity add-rotary"
_DESCRIPTION = """\
Add rotary records to a dump that was captured without them: how RoPE turns the queries and keys of
every layer with position. They are measured on a small model with the config of the given one and
random weights; no weights are loaded. The records are written into dump.json of the dump, or into a
file that analyze --rotary takes.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity add-rotary data/qwen3-8b --model.name Qwen/Qwen3-8B
  attention-plasticity add-rotary s3://bucket/dump --model.name Qwen/Qwen3-8B --output rotary.json
  attention-plasticity analyze s3://bucket/dump --rotary rotary.json

Changes of the config are those that dump.json records for the capture, unless others are given.

A model whose layers, heads, widths or rope parameters are not those of the dump is refused.
Exit codes: 0 success, 2 usage or config, 130 interrupted.
"""
_COPIED = ("layer", "type", "rope", "head_dim", "window")
_ROTARY = ("rotary", "rotary_problem")


class AddRotarySettings(BaseModel):
    """The model, and where records are written."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model_dir: str | None = Field(
        title="the dump",
        default=None,
        description="subfolder of the model, if the folder contains several models",
    )
    output: str | None = Field(
        title="the dump",
        default=None,
        min_length=1,
        description="file to write, for analyze --rotary (default: dump.json of the dump)",
    )
    model: ModelSource


def add_rotary(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity add-rotary DUMP --model.name X …` and return the exit code."""
    return guarded(lambda: _add_rotary(arguments), "nothing was written")


def _add_rotary(arguments: Sequence[str]) -> int:
    parser = command_parser(_PROGRAM, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP --model.name MODEL [--output FILE] [--FIELD VALUE …]"
    parser.add_argument("dump", metavar="DUMP", help="folder, URL or Hub place of a dump")
    add_flags(parser, AddRotarySettings)
    flags = parse_flags(parser, arguments)
    place = flags.pop("dump")
    settings = settings_from(AddRotarySettings, flags=flags)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    from qk_dump.source import open_dump

    dump = open_dump(place, settings.model_dir)
    if settings.output is None:
        _require_layers(dump)
    model = ModelSettings(**settings.model.model_dump())
    with capture_extra():
        records = _measured(dump, _with_recorded_overrides(model, dump))
    where = _write(dump, settings, records)
    with allow_closed_stdout():
        for line in _summary(records.layers, where):
            print(line)
    return 0


def _require_layers(dump: Dump) -> None:
    """Refuse a dump whose `dump.json` cannot take records."""
    from qk_dump.remote import RemotePath

    advice = "give --output FILE, and pass this file to analyze --rotary"
    if isinstance(dump.path, RemotePath) or dump.origin is not None:
        raise ConfigError(f"{dump.path}: is not a folder of this machine; {advice}")
    if dump.manifest is None or not dump.manifest.layers:
        raise ConfigError(f"{dump.path}: has no dump.json that lists its layers; {advice}")


def _with_recorded_overrides(model: ModelSettings, dump: Dump) -> ModelSettings:
    """The model with the changes of its config that the capture used, if none are given."""
    captured = (dump.manifest and dump.manifest.capture) or {}
    overrides = (captured.get("model") or {}).get("config_overrides")
    if model.config_overrides is not None or not overrides:
        return model
    print(
        "model.config_overrides are those that dump.json records for the capture", file=sys.stderr
    )
    return model.model_copy(update={"config_overrides": overrides})


def _measured(dump: Dump, model: ModelSettings) -> RotaryFile:
    """The records of a model for the dump. A model that does not fit it is a `ConfigError`."""
    from qk_dump.rotary import RotaryFile
    from qk_dump.rotary_file import difference
    from qk_sniffer.capture.description import layer_record, rope_parameters, rotary_entry
    from qk_sniffer.engines.hf.layout import text_config
    from qk_sniffer.engines.hf.loading import quiet_transformers
    from qk_sniffer.engines.hf.probing import probe
    from qk_sniffer.engines.hf.unloaded import shape_of, small_model

    with quiet_transformers():
        built, shape = shape_of(model, heads_only=True)
        config = text_config(built)
        _require_heads(dump, shape)
        layout = probe(small_model(model))
    widths, found = ([facts.width for facts in one.layers] for one in (shape, layout))
    if widths != found:
        raise ConfigError(
            f"model.name: {model.name}: rotary records cannot be measured: a small model of this "
            f"architecture ({config.model_type}) has other widths of heads. Capture the dump "
            "again; a capture measures them."
        )
    manifest, lengths = dump.manifest, _lengths(dump)
    pre_rope = bool(manifest and manifest.pre_rope)
    entries = []
    for facts in layout.layers:
        record = layer_record(facts)
        entry = {name: record[name] for name in _COPIED if name in record}
        entry |= rotary_entry(facts, pre_rope, lengths or ())
        if lengths is None and facts.rotation(pre_rope).table is not None:
            entry |= {
                "rotary": None,
                "rotary_problem": "the frequencies depend on the length of a text, and the dump "
                "has no examples.parquet with the lengths",
            }
        entries.append(entry)
    number = manifest and manifest.num_layers
    if number not in (None, len(entries)):
        raise _no_fit(dump, f"num_layers is {number} in the dump and {len(entries)} in the model")
    name = (manifest and manifest.model) or model.name
    records = RotaryFile("", "", entries, pre_rope, name, rope_parameters(config) or {})
    other = difference(records, dump)
    if other is not None:
        field, there, here = other
        raise _no_fit(dump, f"{field} is {here!r:.60} in the dump and {there!r:.60} in the model")
    return records


def _lengths(dump: Dump) -> list[int] | None:
    """The numbers of tokens of the texts; None if they are not known."""
    from qk_dump.examples import read_examples

    examples = read_examples(dump.path, dump.capture_id)
    if examples is None or "num_tokens" not in examples.column_names:
        return None
    return [int(length or 0) for length in examples["num_tokens"].to_pylist()]


def _require_heads(dump: Dump, layout: ModelLayout) -> None:
    """Refuse a model that lacks heads of the dump, or whose heads have other widths."""
    from qk_dump.parquet import opened_parquet, vector_width_of

    layers = {facts.layer: facts for facts in layout.layers}
    first = {head.layer: head for head in reversed(dump.folders)}
    for head in dump.folders:
        facts = layers.get(head.layer)
        heads = 0 if facts is None else facts.q_heads if head.kind == "q" else facts.k_heads
        if facts is None or head.head >= heads:
            raise _no_fit(dump, f"the dump has head {head.folder}, which the model does not have")
        if head is first[head.layer]:
            file = dump.require_files(head)[0]
            with opened_parquet(file) as parquet:
                width = vector_width_of(parquet, file)
            if width != facts.width:
                raise _no_fit(
                    dump,
                    f"width of vectors of {head.folder} is {width} in the dump and {facts.width} "
                    "in the model",
                )


def _no_fit(dump: Dump, reason: str) -> ConfigError:
    return ConfigError(
        f"{dump.path / 'dump.json'}: the model does not fit the dump: {reason}. Give the model, "
        "revision and config_overrides of the capture."
    )


def _write(dump: Dump, settings: AddRotarySettings, records: RotaryFile) -> str:
    """Write the records in one step; return the place."""
    from qk_dump.manifest import MANIFEST_NAME, write_manifest
    from qk_dump.rotary_file import write_rotary_file
    from qk_toolkit.files import user_path

    manifest = dump.manifest
    target = Path(str(dump.path)) / MANIFEST_NAME
    try:
        if settings.output is not None:
            target = user_path(settings.output)
            write_rotary_file(replace(records, path=str(target)))
        elif manifest is not None:
            new = {
                entry["layer"]: {name: entry[name] for name in _ROTARY if name in entry}
                for entry in records.layers
            }
            layers = [
                {name: value for name, value in entry.items() if name not in _ROTARY}
                | new.get(entry.get("layer", -1), {})
                for entry in manifest.layers or []
            ]
            write_manifest(target.parent, manifest.model_copy(update={"layers": layers}))
    except OSError as error:
        advice = "" if settings.output else " Give --output FILE, and pass it to analyze --rotary."
        raise OutputError(
            f"{target}: cannot be written: {error.strerror or error}.{advice}"
        ) from error
    return str(target)


def _summary(entries: Entries, where: str) -> list[str]:
    from qk_toolkit.formatting import index_ranges

    problems: dict[str, list[int]] = {}
    for entry in entries:
        if "rotary_problem" in entry:
            problems.setdefault(entry["rotary_problem"], []).append(entry["layer"])
    lines = [
        f"Layers {index_ranges(layers)} have no rotary record: {problem}."
        for problem, layers in problems.items()
    ]
    without = [entry["layer"] for entry in entries if not entry["rope"]]
    if without:
        lines.append(f"Layers {index_ranges(without)} have no rotary embedding.")
    found = sum(entry["rotary"] is not None for entry in entries)
    return [*lines, f"{where}: rotary records of {found} of {len(entries)} layers"]
