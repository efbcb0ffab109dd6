"""The command `add-rotary`: rotary records for a dump that was captured without them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from qk_sniffer.config import ModelSettings
from qk_sniffer.extras import capture_extra
from qk_toolkit.command_line import allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import settings_from, validated

if TYPE_CHECKING:
    from qk_dump.layout import Dump

_PROGRAM = "attention-plasticity add-rotary"
_DESCRIPTION = """\
Add rotary records to a dump that was captured without them: how RoPE turns the queries and keys of
every layer with position. They are measured on a model with the config of the given one and random
weights; no weights are loaded. The records are written into dump.json of the dump, or into a file
that analyze --rotary takes.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity add-rotary data/qwen3-8b --model.name Qwen/Qwen3-8B
  attention-plasticity add-rotary s3://bucket/dump --model.name Qwen/Qwen3-8B --output rotary.json
  attention-plasticity analyze s3://bucket/dump --rotary rotary.json

A model whose layers, heads, widths or rope parameters are not those of the dump is refused.
Exit codes: 0 success, 2 usage or config, 130 interrupted.
"""


class RotaryModel(BaseModel):
    """The model of the dump. Only its config is used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="model on the Hub, or a local folder")
    revision: str | None = Field(default=None, description="branch, tag or commit of the model")
    gguf_file: str | None = Field(
        default=None, min_length=1, description="GGUF file inside the model's folder or repository"
    )
    config_overrides: dict[str, Any] | None = Field(
        default=None,
        description="changes to the model's config (default: those that dump.json records)",
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")


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
    model: RotaryModel


def add_rotary(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity add-rotary DUMP --model.name X …` and return the exit code."""
    return guarded(lambda: _add_rotary(arguments), "nothing was written")


def _add_rotary(arguments: Sequence[str]) -> int:
    place, settings = _parse(arguments)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    from qk_dump.source import open_dump

    dump = open_dump(place, settings.model_dir)
    if settings.output is None:
        _require_layers(dump)
    model = validated(ModelSettings, settings.model.model_dump(), lambda field: f"model.{field}")
    with capture_extra():
        from qk_sniffer.add_rotary.records import rotary_entries

        entries = rotary_entries(dump, model, _print_note)
    where = _write(dump, settings, entries)
    with allow_closed_stdout():
        for line in _summary(entries, where):
            print(line)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[str, AddRotarySettings]:
    parser = command_parser(_PROGRAM, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP --model.name MODEL [--output FILE] [--FIELD VALUE …]"
    parser.add_argument("dump", metavar="DUMP", help="folder, URL or Hub place of a dump")
    add_flags(parser, AddRotarySettings)
    flags = parse_flags(parser, arguments)
    place = flags.pop("dump")
    return place, settings_from(AddRotarySettings, flags=flags)


def _require_layers(dump: Dump) -> None:
    """Refuse a dump whose `dump.json` cannot take records."""
    from qk_dump.remote import RemotePath

    advice = "give --output FILE, and pass this file to analyze --rotary"
    if isinstance(dump.path, RemotePath) or dump.origin is not None:
        raise ConfigError(f"{dump.path}: is not a folder of this machine; {advice}")
    if dump.manifest is None or not dump.manifest.layers:
        raise ConfigError(f"{dump.path}: has no dump.json that lists its layers; {advice}")


def _write(dump: Dump, settings: AddRotarySettings, entries: list[dict[str, Any]]) -> str:
    """Write the records in one step; return the place."""
    from pathlib import Path

    from qk_dump.manifest import MANIFEST_NAME, write_manifest
    from qk_dump.rotary_file import write_rotary_file
    from qk_sniffer.add_rotary.records import with_records
    from qk_toolkit.files import user_path

    manifest = dump.manifest
    if settings.output is not None:
        target = user_path(settings.output)
    else:
        target = Path(str(dump.path)) / MANIFEST_NAME
    try:
        if settings.output is not None:
            pre_rope = bool(manifest and manifest.pre_rope)
            write_rotary_file(target, settings.model.name, pre_rope, entries)
        elif manifest is not None:
            write_manifest(target.parent, with_records(manifest, entries))
    except OSError as error:
        advice = "" if settings.output else " Give --output FILE, and pass it to analyze --rotary."
        raise OutputError(
            f"{target}: cannot be written: {error.strerror or error}.{advice}"
        ) from error
    return str(target)


def _summary(entries: list[dict[str, Any]], where: str) -> list[str]:
    from qk_toolkit.formatting import index_ranges

    found = [entry["layer"] for entry in entries if entry["rotary"] is not None]
    lines = []
    problems: dict[str, list[int]] = {}
    for entry in entries:
        if "rotary_problem" in entry:
            problems.setdefault(entry["rotary_problem"], []).append(entry["layer"])
    for problem, layers in problems.items():
        lines.append(f"Layers {index_ranges(layers)} have no rotary record: {problem}.")
    without = [entry["layer"] for entry in entries if not entry["rope"]]
    if without:
        lines.append(f"Layers {index_ranges(without)} have no rotary embedding.")
    return [*lines, f"{where}: rotary records of {len(found)} of {len(entries)} layers"]


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)
