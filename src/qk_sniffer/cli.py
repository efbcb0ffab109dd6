"""`sniff-qk`, also available as `attention-plasticity capture`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qk_sniffer.capture.ranks import ranks_from
from qk_sniffer.extras import capture_extra
from qk_toolkit.command_line import command_parser, command_settings, guarded
from qk_toolkit.debugging import debug_flag

if TYPE_CHECKING:
    from qk_sniffer.config import CaptureConfig

_STORY = """\
Run a model over texts and keep a sample of its queries and keys: one Parquet file per head, ready
for 'attention-plasticity analyze'.

  MODEL  model on the Hub, or a local folder
  TEXTS  file or folder of texts (one file is one text), or a dataset on the Hub
  DUMP   folder of the dump, or a URL such as s3://bucket/dump

Fields are flags, --section.field, or lines below their section in the YAML file; a flag overrides
the file. Switches are --x and --no-x. Dashes and underscores mean the same.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity capture HuggingFaceTB/SmolLM2-135M texts/ data/mine --dry_run
  attention-plasticity capture HuggingFaceTB/SmolLM2-135M texts/ data/mine
  sniff-qk --config configs/capture/qwen3-8b.yaml --dry_run

A capture that was interrupted continues with the same command (without --overwrite).
Exit codes: 0 success, 1 the capture failed, 2 wrong usage or config, 130 interrupted.
"""
_PLACES = {"model.name": "MODEL", "dataset.path": "TEXTS", "output.data_root": "DUMP"}
"""Flags of what the command works on."""
_TOO_MANY = "for the files of a folder, give the folder: texts/ in place of texts/*.txt"
_INTERRUPTED = "finished texts, if any, are kept; run the same command again to continue"


def main(arguments: Sequence[str] | None = None) -> int:
    """`sniff-qk`."""
    return capture(sys.argv[1:] if arguments is None else arguments, "sniff-qk")


def capture(arguments: Sequence[str], program: str = "attention-plasticity capture") -> int:
    """The command, with its exit code."""
    overwrites = any(word.startswith("--overwrite") for word in arguments)
    interrupted = _INTERRUPTED + " (without --overwrite)" * overwrites
    with debug_flag(arguments) as given:
        return guarded(lambda: _capture(given, program), interrupted)


def _capture(arguments: Sequence[str], program: str) -> int:
    from qk_sniffer.config import CaptureConfig
    from qk_toolkit.flags import flags_of_places, named_as_given

    with named_as_given(arguments, _PLACES):
        arguments = flags_of_places("capture", arguments, _PLACES, _TOO_MANY)
        parser = command_parser(program, _STORY, _EXAMPLES)
        parser.usage = f"{program} MODEL TEXTS DUMP [--FIELD VALUE …]"
        config = command_settings(parser, CaptureConfig, arguments, note=_note)
        if not sys.stderr.isatty():
            os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
        with capture_extra():
            return _run(config)


def _note(text: str) -> None:
    if ranks_from().rank == 0:  # one message for all ranks
        print(text, file=sys.stderr)


def _run(config: CaptureConfig) -> int:
    from qk_sniffer.summary import print_estimate, print_result

    if config.dry_run:
        from qk_sniffer.capture.estimate import estimate

        print_estimate(config, estimate(config))
        return 0
    from qk_sniffer.capture.run import run_capture
    from qk_toolkit.terminal import TerminalWatcher

    with TerminalWatcher(ranks_from().rank) as watcher:
        print_result(run_capture(config, watcher), watcher)
    return 0
