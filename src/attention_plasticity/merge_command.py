"""The verb `merge`: tables from the records of shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qk_toolkit.command_line import allow_closed_stdout, command_parser
from qk_toolkit.files import user_path
from qk_toolkit.flags import parse_flags
from qk_toolkit.urls import is_remote

_PROGRAM = "attention-plasticity merge"
_STORY = """\
Make the tables of a run whose heads were computed by shards (analyze --engine shards), and list the
heads that are missing. It can be repeated when more shards are finished.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity merge results/mine
  attention-plasticity merge s3://bucket/results/mine
  attention-plasticity merge results/shard-0 results/shard-1 --output_dir results/mine
"""


def merge(arguments: Sequence[str]) -> int:
    """Merge shards and print the summary of the run."""
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} FOLDER [FOLDER …] [--output_dir FOLDER]"
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders or URLs of shards")
    parser.add_argument("--output_dir", metavar="FOLDER", help="default: the first folder")
    given: dict[str, Any] = parse_flags(parser, arguments)
    from attention_plasticity.run.merging import merge_shards
    from attention_plasticity.tables.summary import print_summary

    target = None if given["output_dir"] is None else _place(given["output_dir"])
    outcome = merge_shards([_place(folder) for folder in given["folders"]], target)
    with allow_closed_stdout():
        print_summary(outcome)
    return 1 if outcome.failures else 0


def _place(text: str) -> Path | str:
    return text.rstrip("/") if is_remote(text) else user_path(text)
