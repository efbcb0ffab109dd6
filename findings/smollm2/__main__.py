"""Make all numbers and figures of the findings from the model weights: `make findings`.

The pages are docs/findings-smollm2.md and docs/plasticity.md. Captures and analyses are kept in one
folder, so that an interrupted run can be continued. Tables are written between the markers of the
pages. The default run, its figures and the counts are written to
results/smollm2-135m.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

import attention_plasticity as ap
from attention_plasticity.figures.saving import save_all
from findings.smollm2.baselines import baseline_heads, baseline_runs, baseline_tables
from findings.smollm2.beyond import beyond_table, draw_beyond
from findings.smollm2.counts import counted_bins, counted_heads
from findings.smollm2.heads import (
    attended_table,
    head_tables,
    pairs_table,
    stability_table,
)
from findings.smollm2.phase import draw_heads, phase_tables
from findings.smollm2.roles import role_tables
from findings.tables import write_tables

FOLDER = Path("demo-smollm2")
RESULTS = Path("results/smollm2-135m")
DOCS = Path("docs")
BASE, LONG = "moby-dick-8192", "moby-dick-16384"
REPEATED = "repeated-512"
CAPTURES = {
    BASE: ("moby-dick", 8192, 12),
    "moby-dick-2048": ("moby-dick", 2048, 12),
    LONG: ("moby-dick", 16384, 4),
    "jargon-file-8192": ("jargon-file", 8192, 6),
}
PAIRS = ("bucket", "local", "context")
COUNTS = "head_counts.csv"
LONG_BIN = 1024  # tokens of a bin of the long texts


def main() -> None:
    """Capture, analyse, count, and write the results."""
    runs = _runs()
    counts = _counts()
    runs["roles"] = _with_roles()
    _keep_results(runs, counts)
    write_tables(DOCS / "findings-smollm2.md", dict(_tables(runs)))
    write_tables(DOCS / "plasticity.md", dict(phase_tables(runs[BASE], counts)))


def _with_roles() -> ap.Run:
    """The default run with scores on repeated tokens."""
    repeated = FOLDER / "dumps" / REPEATED
    if not (repeated / "dump.json").exists():
        model = next((FOLDER / "model").iterdir())
        _command(
            *("capture", "--model.name", model, "--dataset.path", "synthetic:repeated"),
            *("--dataset.synthetic.length", 512, "--output.data_root", repeated),
        )
    return _analysed(FOLDER / "dumps" / BASE, "roles", repeated=str(repeated))


def _runs() -> dict[str, ap.Run]:
    """Every run by its name. A finished capture or analysis is read."""
    for name, (book, context, texts) in CAPTURES.items():
        _command(
            *("demo", "--capture", "--output_dir", FOLDER, "--book", book),
            *("--context", context, "--pieces", texts),
        )
        print(f"{name}: captured and analysed", file=sys.stderr)
    dump = FOLDER / "dumps" / BASE
    runs = {name: ap.open_run(FOLDER / "results" / name) for name in CAPTURES}
    for parity, half in enumerate(("even-texts", "odd-texts")):
        runs[half] = _analysed(_half(dump, FOLDER / "dumps" / f"{BASE}-{half}", parity), half)
    runs["another-seed"] = _analysed(dump, "another-seed", seed=1)
    for pairs in PAIRS[1:]:
        runs[pairs] = _analysed(dump, pairs, pair_sampling=pairs)
    runs[PAIRS[0]] = runs[BASE]  # the default
    return runs


def _command(*arguments: object) -> None:
    command = [sys.executable, "-m", "attention_plasticity", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _analysed(dump: Path, name: str, **fields: Any) -> ap.Run:
    print(f"{name}: analysing", file=sys.stderr)
    return ap.analyze_dump(dump, output_dir=str(FOLDER / "results" / name), **fields)


def _half(dump: Path, target: Path, parity: int) -> Path:
    """The dump of every second text."""
    if (target / "dump.json").exists():
        return target
    for file in (*dump.rglob("data.parquet"), dump / "examples.parquet"):
        table = pq.read_table(file)
        mine = pc.equal(pc.bit_wise_and(table["example_id"], 1), parity)
        copy = target / file.relative_to(dump)
        copy.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.filter(mine), copy)
    shutil.copy(dump / "dump.json", target)  # the last file: the dump is complete
    return target


def _counts() -> pd.DataFrame:
    """Counts of every head at exactly one position."""
    return _once(COUNTS, lambda: counted_heads(FOLDER / "dumps" / BASE))


def _long_counts() -> pd.DataFrame:
    """Counts of every bin of the long texts, as means over heads."""
    return _once("bin_counts.csv", lambda: counted_bins(FOLDER / "dumps" / LONG, LONG_BIN))


def _once(name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """A table that is kept in the folder of results, and made if it is missing."""
    path = FOLDER / "results" / name
    if not path.exists():
        print(f"{name}: counting", file=sys.stderr)
        draft = path.with_suffix(".draft")
        make().to_csv(draft, index=False, float_format="%.6f")
        draft.rename(path)
    return pd.read_csv(path)


def _keep_results(runs: dict[str, ap.Run], counts: pd.DataFrame) -> None:
    run = runs["roles"]  # the default run, with scores on repeated tokens
    figures = RESULTS / "figures"
    if figures.exists():
        shutil.rmtree(figures)
    figures.mkdir(parents=True)
    for name in (*run.info["tables"].values(), "run.json"):
        shutil.copy(run.folder / name, RESULTS)
    counts.to_csv(RESULTS / COUNTS, index=False)
    for path in save_all(ap.open_run(RESULTS), figures):
        print(path, file=sys.stderr)
    lengths = {f"{CAPTURES[name][1]:,} tokens": runs[name] for name in (BASE, LONG)}
    draw_beyond(lengths, figures / "beyond.png")
    draw_heads(run, FOLDER / "dumps" / BASE, figures / "phase-heads.png")


def _tables(runs: dict[str, ap.Run]) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table of docs/findings-smollm2.md."""
    yield from head_tables({name: runs[name] for name in CAPTURES}, runs[BASE])
    baselines = baseline_runs(FOLDER, next((FOLDER / "model").iterdir()))
    heads = baseline_heads(baselines)
    heads.to_csv(RESULTS / "head_baselines.csv", index=False, float_format="%.6f")
    yield from baseline_tables(baselines, heads)
    yield "attended", attended_table(runs[BASE], runs["context"])
    yield from role_tables(runs["roles"])
    yield "beyond", beyond_table(runs[LONG], _long_counts())
    halves = "six of the texts against the other six"
    others = ("another-seed", "jargon-file-8192", "moby-dick-2048", LONG)
    compared = {halves: (runs["even-texts"], runs["odd-texts"])}
    compared |= {f"{BASE} against {name}": (runs[BASE], runs[name]) for name in others}
    yield "stability", stability_table(compared)
    yield "pairs", pairs_table({name: runs[name] for name in PAIRS})


if __name__ == "__main__":
    main()
