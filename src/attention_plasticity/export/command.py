"""The verb `export`: files that other tools load, made from a dump."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qk_toolkit.command_line import command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

if TYPE_CHECKING:
    from attention_plasticity.export.content import Content
    from attention_plasticity.export.duo import DuoOptions
    from attention_plasticity.export.source import ExportSource

FORMATS = ("triattention", "expected-attention", "q-filters", "duo", "headkv")

_PROGRAM = "attention-plasticity export"
_STORY = """\
Write statistics of heads as files that other tools load, made from a dump of queries. OUT is a new
folder. PROVENANCE.json in it has the model, the texts, and the rows and standard errors of heads.

  triattention        triattention.pt: mean query per rotary band, for TriAttention
  expected-attention  mean and covariance of queries, for ExpectedAttentionStatsPress of kvpress
  q-filters           one direction per key head, for Q-Filters (QFilterPress of kvpress)
  duo                 full_attention_heads.tsv: which key heads need full attention
  headkv              head_scores.json: far attention of query heads, for HeadKV
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity export path/to/dump stats/qwen3 --to expected-attention
  attention-plasticity export hf://datasets/owner/name@branch stats/qwen3 --to triattention
  attention-plasticity export path/to/dump gates/qwen3 --to duo --share 0.5
  attention-plasticity export path/to/dump gates/qwen3 --to duo --run results/qwen3 --share 0.5
"""
_OF_DUO = ("group", "threshold", "share", "sink_size", "run")
_OF_ATTENTION = ("duo", "headkv")


def export(arguments: Sequence[str]) -> int:
    """Write the folder of a format and print its path."""
    _use_one_thread()
    given = _given(arguments)
    from attention_plasticity.export.folder import require_target, write_folder
    from attention_plasticity.export.provenance import provenance
    from attention_plasticity.export.source import ExportSource
    from qk_dump.rotary_file import with_rotary
    from qk_dump.source import open_dump
    from qk_toolkit.files import resolved, user_path
    from qk_toolkit.terminal import TerminalWatcher

    target, overwrite = resolved(user_path(given["out"])), given["overwrite"]
    require_target(target, overwrite=overwrite)
    watcher = TerminalWatcher()
    dump = with_rotary(open_dump(given["dump"], note=watcher.note), given["rotary"])
    source = ExportSource.of(
        dump, missing=given["missing"], max_rows=given["max_tokens_per_head"], watcher=watcher
    )
    content = _content(source, given)
    command = shlex.join([*_PROGRAM.split(), *arguments])
    facts = provenance(source, given["to"], content, command)
    write_folder(target, content.files, facts, overwrite=overwrite)
    print(user_path(given["out"]))
    return 0


def _use_one_thread() -> None:
    """Before numpy is imported: sums of small matrices are faster in one thread.

    Threads of a busy machine wait for each other. A user's own setting stays.
    """
    from attention_plasticity.run.worker import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def _content(source: ExportSource, given: dict[str, Any]) -> Content:
    if given["to"] == "triattention":
        from attention_plasticity.export.triattention import triattention

        return triattention(source)
    if given["to"] == "expected-attention":
        from attention_plasticity.export.expected_attention import expected_attention

        return expected_attention(source)
    if given["to"] == "q-filters":
        from attention_plasticity.export.q_filters import q_filters

        return q_filters(source)
    if given["to"] == "headkv":
        from attention_plasticity.export.headkv import headkv

        return headkv(source, given["recent_size"])
    from attention_plasticity.export.duo import duo

    return duo(source, given["duo"])


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP OUT --to FORMAT [--missing mean] [--overwrite] …"
    parser.add_argument("dump", metavar="DUMP", help="folder, URL or hf:// place of a dump")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    parser.add_argument("--to", metavar="FORMAT", required=True, help=", ".join(FORMATS))
    parser.add_argument(
        "--missing",
        metavar="refuse|mean",
        default="refuse",
        help="query heads that were not captured: refuse the dump, or use the mean of the captured "
        "heads of the layer [refuse]",
    )
    parser.add_argument(
        "--max_tokens_per_head",
        metavar="N",
        default="50000",
        help="largest number of rows per head; larger heads are sampled at random [50000]",
    )
    parser.add_argument("--rotary", metavar="FILE", help="rotary records, from add-rotary --output")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    part = parser.add_argument_group("with --to duo")
    part.add_argument(
        "--group",
        metavar="max|mean",
        help="value of a key head: the largest or the mean of its query heads [max]",
    )
    part.add_argument(
        "--run",
        metavar="RUN",
        help="analysis of the dump: values are the static errors of its key heads (default: far "
        "attention)",
    )
    part.add_argument("--threshold", metavar="X", help="gate 1 for values of X or more, else 0")
    part.add_argument("--share", metavar="X", help="gate 1 for this share of key heads, else 0")
    part.add_argument("--sink_size", metavar="N", help="first tokens that all heads keep [4]")
    part = parser.add_argument_group("with --to duo and --to headkv")
    part.add_argument(
        "--recent_size",
        metavar="N",
        help="recent tokens that all heads keep, a power of two; attention beyond them counts "
        "[256]",
    )
    given: dict[str, Any] = parse_flags(parser, arguments)
    _require_choice("to", given["to"], FORMATS)
    _require_choice("missing", given["missing"], ("refuse", "mean"))
    given["max_tokens_per_head"] = _integer("max_tokens_per_head", given, 2)
    for name in _OF_DUO:
        if given[name] is not None and given["to"] != "duo":
            raise ConfigError(f"--{name}: can only be used with --to duo")
    if given["recent_size"] is not None and given["to"] not in _OF_ATTENTION:
        raise ConfigError("--recent_size: can only be used with --to duo or --to headkv")
    given["recent_size"] = _recent_size(given)
    if given["to"] == "duo":
        given["duo"] = _duo_options(given)
    return given


def _duo_options(given: dict[str, Any]) -> DuoOptions:
    from attention_plasticity.export.duo import DuoOptions

    if given["threshold"] is not None and given["share"] is not None:
        raise ConfigError("--threshold: cannot be used together with --share; choose one")
    chosen: dict[str, Any] = {"recent_size": given["recent_size"], "run": given["run"]}
    if given["group"] is not None:
        if given["run"] is not None:
            raise ConfigError("--group: has no effect with --run; leave it out")
        _require_choice("group", given["group"], ("max", "mean"))
        chosen["group"] = given["group"]
    for name in ("threshold", "share"):
        if given[name] is not None:
            chosen[name] = _fraction(name, given[name])
    if given["sink_size"] is not None:
        chosen["sink_size"] = _integer("sink_size", given, 4)
    return DuoOptions(**chosen)


def _recent_size(given: dict[str, Any]) -> int:
    from attention_plasticity.export.far_attention import RECENT

    if given["recent_size"] is None:
        return RECENT
    size = _integer("recent_size", given, 1)
    if size & (size - 1):
        raise ConfigError(
            f"--recent_size: expected a power of two, such as 256, got {size}; a dump has the "
            "attention in bins of distances that begin at powers of two"
        )
    return size


def _require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"--{name}: expected one of {', '.join(choices)}, got {value!r:.60}")


def _integer(name: str, given: dict[str, Any], least: int) -> int:
    text = given[name]
    if not (text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise ConfigError(f"--{name}: expected an integer of at least {least}, got {text!r:.60}")
    return int(text)


def _fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"--{name}: expected a number from 0 to 1, got {text!r:.60}")
    return value
