"""The tables and the figure of docs/plasticity.md: RoPE-aligned plasticity and over a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.figures import save_figure
from attention_plasticity.figures.captions import Words
from attention_plasticity.figures.compose import Layout, compose
from attention_plasticity.figures.shapes import Line, Lines
from attention_plasticity.figures.style import BLUE, TEXT, VERMILION, Axis, share_axis
from attention_plasticity.metrics import BIN_QUANTITY, HEAD, POOLED_BIN_QUANTITY
from attention_plasticity.tables.intervals import half_width
from findings.smollm2.beyond import positioned
from findings.smollm2.counts import BIN, Floats, Ints, Rows
from findings.tables import NONE, cells, head_name, markdown, rank_correlation, with_half
from qk_dump.rotary import rotate

HEADS = ((16, 0), (29, 4), (14, 3))
HEADS_PER_KEY = 3  # query heads of one key head
_POSITION = Axis("query position (tokens)")
START, SHOWN = 4096, 128  # tokens of the queries in the upper row; their keys are one bin earlier


def phase_tables(run: ap.Run, counts: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the tables."""
    yield "count", _count_table(run.head_metrics, counts)
    yield "phase-heads", _heads_table(run, counts)


def _count_table(metrics: pd.DataFrame, counts: pd.DataFrame) -> str:
    counts = counts.set_index(HEAD)
    exact = counts["one_position"]
    values = {
        "count at exactly one position": exact,
        "count over a bin": counts["over_bin"],
        **{
            f"`{name}`": metrics.set_index(HEAD)[name].reindex(exact.index)
            for name in ("ap_aligned", "ap_pooled", "ap_overall")
        },
    }
    rows = []
    for words, column in values.items():
        own = column is exact
        distance = (column - exact).abs()
        rows.append(
            [
                words,
                f"{column.mean():.3f}",
                NONE if own else f"{rank_correlation(column, exact):.3f}",
                NONE if own else f"{distance.mean():.3f}",
                NONE if own else f"{distance.max():.3f}",
            ]
        )
    heading = ["", "mean over heads", "ρ with the count at one position"]
    return markdown([*heading, "mean absolute difference", "largest"], rows)


def _heads_table(run: ap.Run, counts: pd.DataFrame) -> str:
    names, texts = ("ap_aligned", "ap_overall", "ap_phase"), run.texts["count"]
    shown = run.head_metrics[HEAD].assign(**{name: cells(run, name) for name in names})
    rows = shown.merge(counts, on=HEAD).set_index(HEAD, drop=False).loc[list(HEADS)]
    lines = [
        [
            head_name(head),
            with_half(head["one_position"], float(half_width(head["one_position_se"], texts))),
            *(head[name] for name in names),
        ]
        for head in rows.to_dict("records")
    ]
    heading = ["head (layer.head)", "count at exactly one position", "`ap_aligned`"]
    return markdown([*heading, "`ap_overall`", "`ap_phase`"], lines)


def draw_heads(run: ap.Run, dump: Path, path: Path) -> None:
    """Three heads: the scores of one pair of keys, and plasticity along the context."""
    upper = [_scores(example_pair(run, dump, *head), head) for head in HEADS]
    lower = [_profiles(run, *head) for head in HEADS]
    notes = [
        "upper row: score of key 1 minus key 2, for one pair of keys; a point is a query",
        "scores in standard deviations of the points as captured",
        "lower row: all pairs; band: 95 % interval over texts",
    ]
    layout = Layout(height=1.9, columns=3)
    figure = compose([*upper, *lower], Words(notes=notes), width=TEXT, layout=layout)
    save_figure(figure, path)


@dataclass(frozen=True)
class ScoreDifferences:
    """Score of one key minus that of another, for the queries of some positions."""

    position: Ints  # (queries,)
    captured: Floats  # (queries,)
    turned: Floats  # (queries,) every query turned to one position


def example_pair(run: ap.Run, dump: Path, layer: int, head: int) -> ScoreDifferences:
    """The pair of keys whose two plasticities are nearest to those of the head."""
    known = ap.open_dump(dump).layer(layer)
    assert known is not None
    record = known.rotary
    assert record is not None
    queries = Rows.read(dump / f"l{layer:02}h{head:02}q")
    keys = Rows.read(dump / f"l{layer:02}h{head // HEADS_PER_KEY:02}k")
    queries = queries.part((queries.position >= START) & (queries.position < START + SHOWN))
    keys = keys.part((keys.position >= START - BIN) & (keys.position < START))
    turned = rotate(queries.vectors, queries.position, START + SHOWN // 2, record)  # (queries, d)
    first, second = np.argwhere(np.triu(keys.text[:, None] == keys.text, 1)).T
    differences = keys.vectors[first] - keys.vectors[second]  # (pairs, d)
    scores = [vectors @ differences.T for vectors in (queries.vectors, turned)]  # (queries, pairs)
    metrics = run.head_metrics
    own = metrics[(metrics["layer"] == layer) & (metrics["q_head"] == head)]
    wanted = (own["ap_pooled"].item(), own["ap_aligned"].item())
    shares = [(score > 0).mean(axis=0) for score in scores]  # (pairs,) of queries, key 1 wins
    distance = sum(
        np.abs(4 * share * (1 - share) - value) for share, value in zip(shares, wanted, strict=True)
    )
    best = int(np.argmin(distance))
    return ScoreDifferences(queries.position, scores[0][:, best], scores[1][:, best])


def _scores(scores: ScoreDifferences, head: tuple[int, int]) -> Lines:
    """One point per query, as captured and turned."""
    unit = float(scores.captured.std())
    points = [
        Line(
            scores.position.astype(float),
            np.asarray(values / unit, float),
            colour=colour,
            dashes="",
            marker=".",
        )
        for values, colour in ((scores.captured, VERMILION), (scores.turned, BLUE))
    ]
    up = Axis("score difference", zero=True)
    return Lines(_POSITION, up, points, title=f"layer {head[0]}, head {head[1]}")


def _profiles(run: ap.Run, layer: int, head: int) -> Lines:
    """Both plasticities of a head along the context."""
    lines = []
    for quantity, words, colour in (
        (POOLED_BIN_QUANTITY, "over a bin, as captured", VERMILION),
        (BIN_QUANTITY, "RoPE-aligned", BLUE),
    ):
        rows = positioned(run, quantity)
        rows = rows[(rows["layer"] == layer) & (rows["q_head"] == head)]
        x, y, half = (
            rows[name].to_numpy(np.float64) for name in ("q_position", "value", "half_width")
        )
        lines.append(Line(x, y, half, words, colour))
    return Lines(_POSITION, share_axis("plasticity", unit=True), lines)
