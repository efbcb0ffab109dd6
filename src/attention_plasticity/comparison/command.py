"""The verb `compare`: tables and figures of several runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qk_toolkit.command_line import command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

if TYPE_CHECKING:
    from attention_plasticity.comparison.comparison import Comparison

_STORY = """\
Compare runs: mean plasticity, its first and last fifth of the context, and its drop, each with half
of its 95 % interval, and the differences from the first run. Runs on the same texts are compared
text by text. A run with several types of layers has a row for each type. With benchmark scores,
also the correlation of the drop with the score; the runs must have the same context.
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
    """Print the tables, and write tables and figures where a folder is given."""
    given = _given(arguments)
    if given["output_dir"] is None:
        _print(_compared(given), given["format"])
        return 0
    from attention_plasticity.comparison.comparison import planned_files, write_comparison
    from qk_toolkit.uploads import output_folder

    with output_folder(given["output_dir"]) as output:
        files = planned_files(
            output.folder,
            given["figures"],
            scores=given["scores"] is not None,
            trajectory=bool(given["trajectory"]),
        )
        data = _compared(given)
        _print(data, given["format"])
        for path in write_comparison(data, files):
            print(output.shown(path), file=sys.stderr)
    return 0


def _compared(given: dict[str, Any]) -> Comparison:
    from attention_plasticity.comparison.comparison import compared

    remedy = None if given["force"] else "--force"
    return compared(given["runs"], given["labels"], given["scores"], remedy)


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
        "--force",
        action="store_true",
        help="compare runs although their settings, or with --scores their contexts, differ",
    )
    given: dict[str, Any] = parse_flags(parser, arguments)
    if given["trajectory"] and given["output_dir"] is None:
        raise ConfigError("--trajectory: draws a figure; add --output_dir FOLDER")
    given["labels"] = given["labels"].split(",") if given["labels"] else None
    return given


def _print(data: Comparison, form: str) -> None:
    """Print the tables. Notes are also on standard error if the output is meant for a file."""
    if form == "text":
        from attention_plasticity.comparison.tables import print_comparison
        from qk_toolkit.terminal import command_console

        print_comparison(data, command_console())
        return
    from attention_plasticity.comparison.scores import correlation_text

    print(
        {"csv": data.to_csv, "markdown": data.to_markdown, "latex": data.to_latex}[form](), end=""
    )
    if form == "csv":
        for found in data.relations:
            print(correlation_text(found), file=sys.stderr)
    for caution in data.cautions:
        print(f"note: {caution.text}", file=sys.stderr)
