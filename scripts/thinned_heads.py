"""Predictions of `power` against real errors, on heads that are thinned to few rows.

    make power-table      # the table of docs/method.md

A head with many rows is thinned to some of its texts and rows. `power` predicts the errors of more
rows of the same texts and of more texts. Both are then drawn from the same head, and analysed.
"""

from __future__ import annotations

import math
import random
import string
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attention_plasticity import open_dump, open_sample
from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.plasticity import variance_parts
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head_analysis import analyze_rows, pair_seed
from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.numeric.key_pairs import KeyIndex
from attention_plasticity.power.prediction import Change, RowCounts, typical_error
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows
from simulated_heads import part_of

CONFIG = RunnerConfig(counting=False, normality_max_dims=1)  # more dims change no error
SIZES = (7, 20, 60, 200, 600, 2500)  # rows per head
DOCUMENT = Path(__file__).parents[1] / "docs" / "method.md"
_MOST_TIMES = 16  # more rows
BEGIN, END = "<!-- thinned heads -->", "<!-- end of thinned heads -->"

Rows = tuple[KeyHead, HeadRows]


@dataclass(frozen=True)
class Comparison:
    """Predicted and real errors of a thinned sample and of larger ones."""

    size: int  # rows per head
    times_rows: float  # by which rows grow
    times_texts: float
    few: bool  # `power` makes no prediction
    now: float  # real errors; NaN if no head has one
    more_rows: float
    more_texts: float
    predicted_rows: float = math.nan
    predicted_texts: float = math.nan


@dataclass(frozen=True)
class ThinnedHeads:
    """Heads of a dump with many rows, and the texts of the small sample."""

    heads: dict[tuple[int, int], Rows]
    texts: int  # of the small sample
    all_texts: int
    _errors: dict[tuple[float, int], float] = field(default_factory=dict)

    @classmethod
    def of(cls, dump: Dump, heads: list[tuple[int, int]], group: int, texts: int) -> ThinnedHeads:
        """Heads of a dump; `group` query heads share a key head."""
        found, ids = {}, set()
        for layer, head in heads:
            keys = KeyHead.read(dump, layer, head // group, CONFIG)
            rows, _ = read_queries(dump, HeadId(layer, head, "q"), keys, CONFIG)
            assert rows.example_id is not None
            found[layer, head] = keys, replace(rows, attention=None)
            ids |= set(rows.example_id.tolist())
        return cls(found, texts, len(ids))

    @property
    def most(self) -> float:
        """Rows of a text."""
        keys, queries = next(iter(self.heads.values()))
        return min(len(keys.rows), len(queries)) / self.all_texts

    def thinned(self, per_text: float, texts: int) -> Iterator[tuple[int, int, HeadRows, KeyHead]]:
        """Layer, head, queries and keys of every head, with about `per_text` rows of a text."""
        for (layer, head), (keys, queries) in self.heads.items():
            rng = np.random.default_rng([layer, round(1000 * per_text), texts])
            kept = self._kept(keys.rows, per_text, texts, rng)
            some = part_of(keys.rows, kept)
            few = part_of(queries, self._kept(queries, per_text, texts, rng))
            assert some.example_id is not None
            index = KeyIndex(some.position, some.bucket, some.example_id)
            weights = keys.weights.of(kept)
            yield layer, head, few, replace(keys, rows=some, index=index, known_weights=weights)

    def _kept(
        self, rows: HeadRows, per_text: float, texts: int, rng: np.random.Generator
    ) -> np.ndarray:
        assert rows.example_id is not None
        share = per_text * self.all_texts / len(rows)
        return (rows.example_id < texts) & (rng.random(len(rows)) < share)

    def parts(self, per_text: float) -> list[VarianceParts]:
        """Parts of the errors of the small sample, of heads that have an error."""
        found = [
            variance_parts(
                RotatedQueries.of(queries, keys.signs),
                keys,
                None,
                CONFIG,
                pair_seed(CONFIG, layer, head),
            )
            for layer, head, queries, keys in self.thinned(per_text, self.texts)
            if len(queries) >= 3 and len(keys.rows)
        ]
        return [one for one in found if one is not None]

    def error(self, per_text: float, texts: int) -> float:
        """Root mean square over heads of the standard error of a sample; NaN if none has one."""
        if (per_text, texts) not in self._errors:
            errors = [
                analyze_rows(layer, head, 0, queries, keys, CONFIG).metrics["ap_overall_se"]
                for layer, head, queries, keys in self.thinned(per_text, texts)
                if len(queries) >= 3 and len(keys.rows)
            ]
            squares = [error**2 for error in errors if not math.isnan(error)]
            error = math.sqrt(np.mean(squares)) if squares else math.nan
            self._errors[per_text, texts] = error
        return self._errors[per_text, texts]

    def compare(self, size: int) -> Comparison:
        """Predictions from about `size` rows per head, and the errors of the larger samples."""
        per_text, texts = size / self.texts, self.all_texts / self.texts
        rows = min(_MOST_TIMES, self.most / per_text)
        parts = self.parts(per_text)
        real = (
            self.error(per_text, self.texts),
            self.error(rows * per_text, self.texts),
            self.error(per_text, self.all_texts),
        )
        if not parts or RowCounts.of(parts, self.texts, math.inf).few:
            return Comparison(size, rows, texts, True, *real)
        predicted = (
            typical_error(parts, Change(queries=rows, keys=rows)),
            typical_error(parts, Change(texts=texts)),
        )
        return Comparison(size, rows, texts, False, *real, *predicted)


def sample_heads() -> ThinnedHeads:
    """Heads of the embedded sample: 6 of 12 texts."""
    heads = [(layer, head) for layer in (0, 14, 29) for head in (0, 4, 7)]
    return ThinnedHeads.of(open_sample(), heads, group=3, texts=6)


def tiny_heads(folder: Path) -> ThinnedHeads:
    """Heads of a tiny model, captured completely: 8 of 32 texts, which use different letters."""
    from sniffing import sniff
    from tiny_texts import save_tiny_model

    texts = folder / "texts"
    texts.mkdir()
    for number in range(32):
        rng = random.Random(number)  # noqa: S311 (no secret)
        letters = rng.sample(string.ascii_lowercase, 12)
        (texts / f"{number:03d}.txt").write_text("".join(rng.choices(letters, k=511)))
    settings = {"capture.sampler.type": "all", "capture.min_bucket_size": 32}
    settings |= {"capture.layers": "0,2", "capture.attention": False, "capture.tokens": False}
    assert sniff(save_tiny_model(folder / "model"), texts, folder / "dump", **settings) == 0
    heads = [(layer, head) for layer in (0, 2) for head in range(4)]
    return ThinnedHeads.of(open_dump(folder / "dump"), heads, group=2, texts=8)


def main() -> None:
    """Write the table of docs/method.md."""
    lines = [
        "| heads | rows | error | more rows | predicted | real | more texts | predicted | real |",
        "|---" + "|---:" * 8 + "|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, heads in {
            "sample, 6 texts": sample_heads(),
            "tiny model, 8 texts": tiny_heads(Path(folder)),
        }.items():
            for size in SIZES:
                if size / heads.texts < 0.9 * heads.most:
                    lines.append(_line(name, heads.compare(size)))
                    print(lines[-1], flush=True)
    text = DOCUMENT.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    table = "\n".join(lines)
    text = f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.split(END, 1)[1]}"
    DOCUMENT.write_text(text, encoding="utf-8")


def _line(name: str, found: Comparison) -> str:
    rows = (found.predicted_rows, found.more_rows)
    texts = (found.predicted_texts, found.more_texts)
    of_rows, of_texts = (" | ".join(map(_number, pair)) for pair in (rows, texts))
    return (
        f"| {name} | {found.size:,} | {_number(found.now)} | × {found.times_rows:.2g} | {of_rows} "
        f"| × {found.times_texts:.2g} | {of_texts} |"
    )


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


if __name__ == "__main__":
    main()
