"""The verb `compare`: tables and figures of several runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from qk_toolkit.command_line import command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

_STORY = """\
Compare runs: mean plasticity, its profile over five fifths of the context, and its drop, each with
its standard error, and the differences from the first run. Runs on the same texts are compared text
by text. With benchmark scores, also the correlation of the drop with the score.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity compare results/qwen3-0.6b results/qwen3-8b
  attention-plasticity compare results/* --format latex > table.tex
  attention-plasticity compare results/a results/b --labels small,large --scores scores.csv \\
      --output_dir results/comparison
  attention-plasticity compare results/step-* --trajectory --output_dir results/training

scores.csv has a column 'model', holding the runs' labels, and a column per benchmark.
"""
_PROGRAM = "attention-plasticity compare"


def compare(arguments: Sequence[str]) -> int:
    """Print the table, and write tables and figures where a folder is given."""
    given = _given(arguments)
    from attention_plasticity.compare.differences import pairing_notes, run_differences
    from attention_plasticity.compare.runs import (
        compare_runs,
        comparison_notes,
        comparison_obstacles,
        correlations,
        read_scores,
    )
    from attention_plasticity.tables.finished_run import FinishedRun, labels_of
    from qk_toolkit.files import user_path

    folder = None if given["output_dir"] is None else user_path(given["output_dir"])
    if folder is not None:
        from attention_plasticity.compare.files import require_folder

        require_folder(folder)
    runs = [FinishedRun.open(run) for run in given["runs"]]
    labels = labels_of(runs, given["labels"])
    scores = read_scores(user_path(given["scores"]), labels) if given["scores"] else None
    found = comparison_obstacles(runs, labels)
    if found and not given["force"]:
        raise ConfigError(
            f"these runs cannot be compared: {'; '.join(found)}. --force shows them anyway"
        )
    notes = [*found, *comparison_notes(runs, labels), *pairing_notes(runs, labels)]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    compared, differences = compare_runs(runs, labels), run_differences(runs, labels)
    relations = correlations(compared, scores) if scores is not None else []
    _print(compared, differences, relations, given["format"])
    if folder is not None:
        from attention_plasticity.compare.files import write_comparison

        figures = (given["figures"], bool(given["trajectory"]))
        for path in write_comparison(folder, compared, differences, scores, relations, *figures):
            print(path, file=sys.stderr)
    return 0


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} RUN RUN … [--labels A,B] [--scores FILE] [--output_dir FOLDER]"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of analyses")
    parser.add_argument("--labels", metavar="A,B", help="names of the runs (default: the models')")
    parser.add_argument("--scores", metavar="FILE", help="CSV of benchmark scores per model")
    parser.add_argument(
        "--trajectory",
        action="store_true",
        help="the runs are checkpoints in order; draw the trajectory",
    )
    parser.add_argument(
        "--format",
        choices=["text", "csv", "markdown", "latex"],
        default="text",
        help="form of the printed table [text]",
    )
    parser.add_argument("--output_dir", metavar="FOLDER", help="write the tables and figures there")
    parser.add_argument(
        "--figures", choices=["png", "svg", "pdf"], default="png", help="kind of figures [png]"
    )
    parser.add_argument(
        "--force", action="store_true", help="compare runs although their settings differ"
    )
    given: dict[str, Any] = parse_flags(parser, arguments)
    if len(given["runs"]) < 2:
        raise ConfigError("RUN: expected two runs or more, got one")
    if given["trajectory"] and given["output_dir"] is None:
        raise ConfigError("--trajectory: draws a figure; add --output_dir FOLDER")
    given["labels"] = given["labels"].split(",") if given["labels"] else None
    return given


def _print(compared: Any, differences: Any, relations: Any, form: str) -> None:
    from attention_plasticity.compare.text import (
        as_csv,
        as_latex,
        as_markdown,
        print_comparison,
    )
    from qk_toolkit.terminal import command_console

    if form == "text":
        print_comparison(compared, differences, relations, command_console())
    else:
        print({"csv": as_csv, "markdown": as_markdown, "latex": as_latex}[form](compared), end="")
