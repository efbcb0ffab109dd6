"""The command `report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qk_toolkit.command_line import command_parser
from qk_toolkit.flags import parse_flags

_DESCRIPTION = """\
Write one HTML file with a map of heads, and the profile, buckets, dimensions and metrics of each
head. The file works offline.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity report results/smollm2-135m
  attention-plasticity report results/base results/instruct --labels base,instruct
  attention-plasticity report s3://bucket/results/mine --output mine.html

Exit codes: 0 success, 1 the page cannot be written, 2 wrong usage, 130 interrupted.
"""


def report(arguments: Sequence[str]) -> int:
    """`attention-plasticity report RUN [RUN …] [--output FILE] [--labels a,b] [--title TEXT]`."""
    program = "attention-plasticity report"
    parser = command_parser(program, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{program} RUN [RUN …] [--output FILE] [--labels LIST] [--title TEXT]"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folder of an analysis")
    parser.add_argument("--output", metavar="FILE", help="default: RUN/report.html, or report.html")
    parser.add_argument("--labels", metavar="LIST", help="names of the runs, such as base,instruct")
    parser.add_argument("--title", metavar="TEXT", help="title of the page")
    given: dict[str, Any] = parse_flags(parser, arguments)
    from attention_plasticity.page.report import make_report, require_target
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.files import user_path
    from qk_toolkit.urls import is_remote

    runs = [FinishedRun.open(folder) for folder in given["runs"]]
    beside = len(runs) == 1 and not is_remote(runs[0].place)
    default = f"{runs[0].place.rstrip('/')}/report.html" if beside else "report.html"
    labels = given["labels"].split(",") if given["labels"] else None
    target = user_path(given["output"] or default)
    require_target(target, runs)
    make_report(runs, labels, given["title"]).save(target)
    print(target)
    return 0
