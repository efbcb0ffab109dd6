"""Drops of plasticity in text, in the same tokens in random order, and with random weights.

Every head is compared with itself in shuffled tokens, text by text. Heads of random weights have no
partner, so only their mean is shown.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

import attention_plasticity as ap
from attention_plasticity.metrics import GROUP_COLUMNS, HEAD
from attention_plasticity.tables.intervals import benjamini_hochberg, mean_over_heads, two_sided
from findings.tables import estimate, head_name, markdown, with_half
from qk_sniffer.demo.books import write_pieces
from qk_toolkit.arrays import Array

BOOK, CONTEXT, TEXTS = "moby-dick", 8192, 12
BUCKET, PER_BUCKET = 512, 32  # tokens of a bucket, kept rows of a bucket of each text
SHUFFLED_DRAWS, RANDOM_DRAWS = 3, 5
TEXT, SHUFFLED, RANDOM = "text", "shuffled", "random"
LEVEL, POSITION, DISTANCE = "ap_aligned", "ap_aligned_drop_position", "ap_aligned_drop_distance"
_KINDS = {SHUFFLED: "the same texts, shuffled tokens", RANDOM: "random weights"}


def baseline_runs(folder: Path, model: Path) -> dict[str, list[ap.Run]]:
    """All draws of every kind. A finished analysis is read; its dump is removed."""
    texts = folder / "texts" / f"{BOOK}-{CONTEXT}-{TEXTS}.jsonl"
    write_pieces(texts, BOOK, TEXTS, CONTEXT)
    draws = {TEXT: 1, SHUFFLED: SHUFFLED_DRAWS, RANDOM: RANDOM_DRAWS}
    return {
        kind: [_run(folder, model, texts, kind, draw) for draw in range(number)]
        for kind, number in draws.items()
    }


def _run(folder: Path, model: Path, texts: Path, kind: str, draw: int) -> ap.Run:
    name = f"baselines-{kind}-{draw}"
    run, dump = folder / "results" / name, folder / "dumps" / name
    if (run / "run.json").exists():
        return ap.open_run(run)
    print(f"{name}: capturing and analysing", file=sys.stderr)
    given: dict[str, object] = {
        "dataset.path": texts,
        "dataset.id_column": "id",
        "tokenizer.max_length": CONTEXT,
        "model.dtype": "float32",
        "capture.sampler.type": "uniform",
        "capture.sampler.base_rate": PER_BUCKET,
        "capture.min_bucket_size": BUCKET,
        "capture.attention": "false",
    }
    if kind == SHUFFLED:
        given |= {"dataset.path": "synthetic:shuffled", "dataset.synthetic.texts": texts}
        given |= {"dataset.synthetic.seed": draw}
    if kind == RANDOM:
        given |= {"model.random_weights": "true", "model.random_seed": draw}
    flags = [str(part) for flag, value in given.items() for part in (f"--{flag}", value)]
    command = [sys.executable, "-m", "attention_plasticity", "capture"]
    flags += ["--model.name", str(model), "--output.data_root", str(dump)]
    subprocess.run([*command, *flags], check=True, stdout=subprocess.DEVNULL)
    found = ap.analyze_dump(dump, output_dir=str(run))
    shutil.rmtree(dump)
    return found


def baseline_heads(runs: Mapping[str, Sequence[ap.Run]]) -> pd.DataFrame:
    """One row per head: its drop from position in text and in shuffled tokens, and the test.

    `p_value` is that of no difference between text and the mean over draws of shuffled tokens,
    paired by texts.
    """
    [text] = runs[TEXT]
    own, influences = _column(text)
    shuffled = [_column(run) for run in runs[SHUFFLED]]
    base = np.mean([values for values, _ in shuffled], axis=0)  # (heads,)
    moved = influences - np.mean([one for _, one in shuffled], axis=0)  # (heads, groups)
    errors = np.sqrt((moved**2).sum(axis=1))
    df = np.count_nonzero(np.abs(moved).sum(axis=0)) - 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        p = two_sided((own - base) / errors, np.full(len(own), df))
    table = text.head_metrics[HEAD].copy()
    table[TEXT], table[SHUFFLED], table["difference"] = own, base, own - base
    table["se"], table["p_value"] = errors, p
    table["significant"] = benjamini_hochberg(p)
    return table


def _column(run: ap.Run) -> tuple[Array, Array]:
    """(heads,) drops from position, and (heads, groups) their influences."""
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == POSITION].set_index(HEAD)
    metrics = run.head_metrics.set_index(HEAD)
    groups = rows.reindex(metrics.index)[list(GROUP_COLUMNS)].to_numpy(np.float64)
    return metrics[POSITION].to_numpy(np.float64), np.nan_to_num(groups)


def baseline_tables(
    runs: Mapping[str, Sequence[ap.Run]], heads: pd.DataFrame
) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the means, and of the heads."""
    yield "baselines", _means(runs)
    yield "baseline_heads", _heads(heads)


def _means(runs: Mapping[str, Sequence[ap.Run]]) -> str:
    """Text with its errors over texts, and both baselines with their errors over draws."""
    names = (LEVEL, POSITION, DISTANCE)
    [text] = runs[TEXT]
    rows = [["text", *(estimate(mean_over_heads(text, name)) for name in names)]]
    for kind, words in _KINDS.items():
        cells = []
        for name in names:
            draws = np.array([mean_over_heads(run, name).value for run in runs[kind]])
            half = t.ppf(0.975, len(draws) - 1) * draws.std(ddof=1) / np.sqrt(len(draws))
            cells.append(with_half(float(draws.mean()), float(half)))
        rows.append([f"{words}, {len(runs[kind])} draws", *cells])
    head = ["", "RoPE-aligned plasticity", "drop from position", "drop from distance"]
    return markdown(head, rows)


def _heads(heads: pd.DataFrame) -> str:
    """How many heads fall more, or less, with position than in shuffled tokens, and which."""
    rows = []
    for words, sign in (("more than in shuffled tokens", 1), ("less", -1)):
        own = heads[heads["difference"] * sign > 0]
        sure = own[own["significant"]].sort_values("p_value")
        names = ", ".join(head_name(row) for row in sure.head(12).to_dict("records"))
        single = int((own["p_value"] < 0.05).sum())
        rows.append([words, str(len(own)), str(single), str(len(sure)), names or "–"])
    heading = ["plasticity falls with position …", "heads", "p below 0.05"]
    return markdown([*heading, "at a false discovery rate of 5 %", "which"], rows)
