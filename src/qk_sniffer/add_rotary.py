"""The command `add-rotary`: a file of rotary records for a dump that was captured without them.

They are measured on a small random model with the layers, the widths of heads and the rope of the
given model. Its layout must be that of the dump.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from qk_sniffer.config import ModelSettings, ModelSource
from qk_sniffer.extras import capture_extra
from qk_toolkit.command_line import allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, flags_of_places, parse_flags
from qk_toolkit.settings import settings_from

if TYPE_CHECKING:
    from qk_dump.layers import LayerRecord, RotaryFile
    from qk_dump.layout import Dump
    from qk_sniffer.engines.engine import ModelLayout

_PROGRAM = "attention-plasticity add-rotary"
_DESCRIPTION = """\
Write rotary records for a dump that was captured without them: how RoPE turns the queries and keys
of every layer with position. They are measured on a small model with the config of MODEL and random
weights; no weights are loaded. OUT is a file that analyze --rotary takes.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity add-rotary data/qwen3-8b Qwen/Qwen3-8B rotary.json
  attention-plasticity add-rotary hf://datasets/owner/name@branch Qwen/Qwen3-8B rotary.json
  attention-plasticity analyze data/qwen3-8b --rotary rotary.json

A model whose layers, heads, widths or rope parameters are not those of the dump is refused.
Exit codes: 0 success, 2 usage or config, 130 interrupted.
"""
_PLACES = {"dump": "DUMP", "name": "MODEL", "out": "OUT"}
_COPIED = ("layer", "type", "rope", "head_dim", "window", "rotary", "rotary_problem")
_NO_LENGTHS = (
    "the frequencies depend on the length of a text, and the dump has no examples.parquet with the "
    "lengths"
)


class AddRotarySettings(ModelSource):
    """The model, the dump and the file."""

    dump: str = Field(
        title="the dump", min_length=1, description="folder, URL or Hub place of a dump"
    )
    model_dir: str | None = Field(
        title="the dump",
        default=None,
        description="subfolder of the model, if the folder contains several models",
    )
    out: str = Field(
        title="the dump", min_length=1, description="file to write, for analyze --rotary"
    )


def add_rotary(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity add-rotary DUMP MODEL OUT …` and return the exit code."""
    return guarded(lambda: _add_rotary(arguments), "nothing was written")


def _add_rotary(arguments: Sequence[str]) -> int:
    parser = command_parser(_PROGRAM, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP MODEL OUT [--FIELD VALUE …]"
    add_flags(parser, AddRotarySettings)
    given = flags_of_places("add-rotary", arguments, _PLACES, "give one dump, model and file")
    settings = settings_from(AddRotarySettings, flags=parse_flags(parser, given))
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    from qk_dump.rotary_file import write_rotary_file
    from qk_dump.source import open_dump
    from qk_toolkit.files import require_writable, user_path

    target = user_path(settings.out)
    require_writable(target, "Choose another file.")
    dump = open_dump(settings.dump, settings.model_dir)
    source = settings.model_dump(include={*ModelSource.model_fields})
    with capture_extra():
        records = _measured(dump, ModelSettings(**source))
    write_rotary_file(replace(records, path=str(target)))
    with allow_closed_stdout():
        for line in _summary(records.layers, str(target)):
            print(line)
    return 0


def _measured(dump: Dump, model: ModelSettings) -> RotaryFile:
    """The records of a model for the dump. A model that does not fit it is a `ConfigError`."""
    from qk_dump.layers import LayerRecord, RotaryFile
    from qk_dump.rotary_file import difference
    from qk_sniffer.capture.description import layer_record, rope_parameters
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
    layers = []
    for facts in layout.layers:
        measured = layer_record(facts, pre_rope, lengths or ())
        record = LayerRecord(**{name: getattr(measured, name) for name in _COPIED})
        if lengths is None and facts.rotation(pre_rope).table is not None:
            record = replace(record, rotary=None, rotary_problem=_NO_LENGTHS)
        layers.append(record)
    number = manifest and manifest.num_layers
    if number not in (None, len(layers)):
        raise _no_fit(dump, f"num_layers is {number} in the dump and {len(layers)} in the model")
    name = (manifest and manifest.model) or model.name
    records = RotaryFile("", "", layers, pre_rope, name, rope_parameters(config) or {})
    other = difference(records, dump)
    if other is not None:
        field, there, here = other
        raise _no_fit(dump, f"{field} is {here!r:.60} in the dump and {there!r:.60} in the model")
    return records


def _lengths(dump: Dump) -> list[int] | None:
    """The numbers of tokens of the texts; None if they are not known."""
    from qk_dump.side_files import read_examples

    examples = read_examples(dump.path, dump.capture_id)
    if examples is None or "num_tokens" not in examples.column_names:
        return None
    return [int(length or 0) for length in examples["num_tokens"].to_pylist()]


def _require_heads(dump: Dump, layout: ModelLayout) -> None:
    """Refuse a model that lacks heads of the dump, or whose heads have other widths."""
    from qk_dump.parquet import opened_parquet, vector_width_of

    layers = {facts.layer: facts for facts in layout.layers}
    seen: set[int] = set()  # layers whose width is compared
    for head in dump.folders:
        facts = layers.get(head.layer)
        heads = 0 if facts is None else facts.q_heads if head.kind == "q" else facts.k_heads
        if facts is None or head.head >= heads:
            raise _no_fit(dump, f"the dump has head {head.folder}, which the model does not have")
        if head.layer in seen:
            continue
        seen.add(head.layer)
        file = dump.require_files(head)[0]
        with opened_parquet(file) as parquet:
            width = vector_width_of(parquet, file)
        if width != facts.width:
            raise _no_fit(
                dump,
                f"width of vectors of {head.folder} is {width} in the dump and {facts.width} in "
                "the model",
            )


def _no_fit(dump: Dump, reason: str) -> ConfigError:
    return ConfigError(
        f"{dump.path / 'dump.json'}: the model does not fit the dump: {reason}. Give the model, "
        "revision and config_overrides of the capture."
    )


def _summary(records: Sequence[LayerRecord], where: str) -> list[str]:
    from qk_toolkit.formatting import index_ranges

    problems: dict[str, list[int]] = {}
    for record in records:
        if record.rotary_problem is not None:
            problems.setdefault(record.rotary_problem, []).append(record.layer)
    lines = [
        f"Layers {index_ranges(layers)} have no rotary record: {problem}."
        for problem, layers in problems.items()
    ]
    without = [record.layer for record in records if not record.rope]
    if without:
        lines.append(f"Layers {index_ranges(without)} have no rotary embedding.")
    found = sum(record.rotary is not None for record in records)
    return [*lines, f"{where}: rotary records of {found} of {len(records)} layers"]
