"""Tables of the evidence on compression, from the results in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compression_cells import (
    Column,
    as_csv,
    as_markdown,
    p_value,
    plain_number,
    signed_number,
    signed_with_half,
    with_bounds,
    with_half,
)
from compression_conditions import (
    BEST_STATIC,
    BUDGET_SCORE,
    ORDERS,
    OTHER_SCORES,
    RANDOM,
    REVERSE,
    SCORES,
    SHARED,
    UNIFORM,
    Condition,
    Floats,
    Plan,
    phases,
)
from compression_figures import draw_budgets, draw_scores
from compression_inputs import Inputs
from compression_results import Results
from compression_statistics import (
    Correlation,
    better_draws,
    correlation,
    holm,
    paired_p,
    rank_p,
    text_interval,
)
from compression_words import percent, words
from findings_tables import write_tables

IMAGES, KEPT = Path("docs/images"), Path("results/smollm2-135m/compression")
_COMPARED = (*ORDERS, REVERSE)


@dataclass(frozen=True)
class Evidence:
    """The results of a folder that are there for every text."""

    folder: Path
    plan: Plan

    @cached_property
    def texts(self) -> list[str]:
        """Names of the evaluated texts."""
        return list(Inputs(self.folder).tokens("evaluation"))

    @cached_property
    def heads(self) -> dict[str, Floats]:
        """(layers, k_heads) values of every order."""
        return Inputs(self.folder).heads()

    @cached_property
    def results(self) -> Results:
        """All results."""
        return Results(self.folder, self.plan)

    @cached_property
    def conditions(self) -> list[Condition]:
        """Conditions with a result for every text."""
        shape = self.heads["static_error"].shape
        found = [one for phase in phases(self.plan, shape) for one in phase]
        return self.results.complete(self.texts, found)

    def books(self) -> dict[str, npt.NDArray[np.bool_]]:
        """For every book: (texts,) which texts are from it."""
        of_text = np.array([text.split("/")[0] for text in self.texts])
        return {str(book): of_text == book for book in dict.fromkeys(of_text)}

    def kl(self, condition: Condition) -> Floats:
        """(texts,) KL divergence."""
        return self.results.kl(self.texts, condition)

    def loss(self, condition: Condition) -> float:
        """Mean change of the loss; of a random choice, over all its draws."""
        drawn = self._draws(condition) or [condition]
        return float(np.mean([self.results.loss_change(self.texts, one) for one in drawn]))

    def random(self, condition: Condition) -> Floats:
        """(draws, texts) KL divergence of all draws of a random choice."""
        return np.stack([self.kl(one) for one in self._draws(condition)])

    def _draws(self, condition: Condition) -> list[Condition]:
        return [
            one
            for one in self.conditions
            if one.draw is not None and one._replace(draw=None) == condition
        ]


def write_all(folder: Path, plan: Plan, page: Path | None) -> None:
    """Write every table as CSV and Markdown, and the figures.

    With a `page`, its tables and figures and the tables in results/ are written, too.
    """
    evidence, texts = Evidence(folder, plan), {}
    for name, columns in tables(evidence):
        (folder / f"{name}.csv").write_text(as_csv(columns), encoding="utf-8")
        texts[name] = as_markdown(columns)
        (folder / f"{name}.md").write_text(texts[name] + "\n", encoding="utf-8")
    figures = [folder / "compression-scores.png", folder / "compression-budgets.png"]
    shares = plan.shares
    draw_scores({share: dict(_of_scores(evidence, share)) for share in shares}, figures[0])
    draw_budgets({share: _of_orders(evidence, share) for share in shares}, figures[1])
    if page is not None:
        write_tables(page, texts)
        KEPT.mkdir(parents=True, exist_ok=True)
        for name in (*(f"{name}.csv" for name in texts), "key_heads.csv"):
            shutil.copy(folder / name, KEPT)
        for figure in figures:
            shutil.copy(figure, IMAGES / figure.name)


def tables(evidence: Evidence) -> Iterator[tuple[str, list[Column]]]:
    """(name, columns) of all tables."""
    yield "scores", _scores(evidence)
    yield "scores-against-random", _against_random(evidence)
    yield "scores-by-book", _scores_by_book(evidence)
    for share in evidence.plan.shares:
        yield f"budgets-{100 * share:g}", _budgets(evidence, share)
    if evidence.plan.other_orders:
        yield "budgets-other-scores", _other_scores(evidence)
    yield "budgets-by-book", _books(evidence)
    yield "windows", _windows(evidence)
    yield "heads", _alone(evidence, given=None)
    yield "heads-given-far", _alone(evidence, given="far")


def _of_scores(evidence: Evidence, share: float) -> Iterator[tuple[str, Floats]]:
    """(score, (texts,) KL), with random keys as means over draws."""
    for name in (RANDOM, SHARED):
        yield name, evidence.random(Condition("scores", name, share)).mean(axis=0)
    for score in SCORES:
        yield score, evidence.kl(Condition("scores", score, share))


def _scores(evidence: Evidence) -> list[Column]:
    """KL divergence and change of the loss of every score."""
    shares = evidence.plan.shares
    values = {share: dict(_of_scores(evidence, share)) for share in shares}
    rows = list(values[shares[0]])
    columns = [Column("keys are kept by", [words(name) for name in rows])]
    for share in shares:
        cells = [text_interval(values[share][name]) for name in rows]
        columns.append(Column(f"KL, {percent(share)}", cells, with_half))
    for share in shares:
        losses = [evidence.loss(Condition("scores", name, share)) for name in rows]
        columns.append(Column(f"loss, {percent(share)}", losses, signed_number))
    return columns


def _against_random(evidence: Evidence) -> list[Column]:
    """KL of every score minus that of random keys; p-values are corrected over the table."""
    shares, rows = evidence.plan.shares, [SHARED, *SCORES]
    values = {share: dict(_of_scores(evidence, share)) for share in shares}
    found = {
        (name, share): values[share][name] - values[share][RANDOM]
        for share in shares
        for name in rows
    }
    p = dict(zip(found, holm(np.array([paired_p(one) for one in found.values()])), strict=True))
    columns = [Column("keys are kept by", [words(name) for name in rows])]
    for share in shares:
        cells = [text_interval(found[name, share]) for name in rows]
        columns.append(Column(f"minus random, {percent(share)}", cells, signed_with_half))
        columns.append(Column(f"p, {percent(share)}", [p[name, share] for name in rows], p_value))
    return columns


def _scores_by_book(evidence: Evidence) -> list[Column]:
    """KL of every score in each book, and its difference from random keys."""
    values = dict(_of_scores(evidence, evidence.plan.head_share))
    columns = [Column("keys are kept by", [words(name) for name in values])]
    for book, own in evidence.books().items():
        kl = [float(one[own].mean()) for one in values.values()]
        against = [
            None if name == RANDOM else text_interval(one[own] - values[RANDOM][own])
            for name, one in values.items()
        ]
        columns.append(Column(f"{book}: KL", kl, plain_number))
        columns.append(Column(f"{book}: minus random", against, signed_with_half))
    return columns


def _of_orders(evidence: Evidence, share: float) -> tuple[Floats, dict[str, float]]:
    """Mean KL of every random order (draws,), and of the other orders."""
    orders = (*_COMPARED, UNIFORM)
    means = {one: float(evidence.kl(Condition("budgets", one, share)).mean()) for one in orders}
    return evidence.random(Condition("budgets", RANDOM, share)).mean(axis=1), means


def _budgets(evidence: Evidence, share: float) -> list[Column]:
    """Every order of budgets, against the same budget for all and against random orders."""
    rows = [*_COMPARED, UNIFORM]
    conditions = {order: Condition("budgets", order, share) for order in rows}
    values = {order: evidence.kl(one) for order, one in conditions.items()}
    random = evidence.random(Condition("budgets", RANDOM, share))  # (draws, texts)
    against = {order: values[order] - values[UNIFORM] for order in _COMPARED}
    p = holm(np.array([paired_p(one) for one in against.values()]))
    losses = [evidence.loss(one) for one in conditions.values()]
    losses.append(evidence.loss(Condition("budgets", RANDOM, share)))
    kl = [text_interval(one) for one in (*values.values(), random.mean(axis=0))]
    no = [None, None]  # rows of uniform and random
    differences = [text_interval(one) for one in against.values()]
    return [
        Column("budgets by", [*map(words, rows), "random orders"]),
        Column("KL", kl, with_half),
        Column("loss", losses, signed_number),
        Column("minus uniform", [*differences, *no], signed_with_half),
        Column("p, uniform", [*p, *no], p_value),
        *_ranked({order: values[order] for order in _COMPARED}, random, 2),
    ]


def _ranked(values: Mapping[str, Floats], random: Floats, empty: int) -> list[Column]:
    """Ranks among random draws (draws, texts), with p-values that are corrected over the rows."""
    drawn, rest = random.mean(axis=1), [None] * empty
    means = [float(one.mean()) for one in values.values()]
    p = holm(np.array([rank_p(mean, drawn) for mean in means]))
    better = [better_draws(mean, drawn) for mean in means]
    title = f"better of {len(drawn)} random"
    return [Column(title, [*better, *rest]), Column("p, random", [*p, *rest], p_value)]


def _other_scores(evidence: Evidence) -> list[Column]:
    """Orders of budgets where other scores choose the keys."""
    rows, share = [*_COMPARED, UNIFORM], evidence.plan.head_share
    columns = [Column("budgets by", [*map(words, rows), "random orders"])]
    for score in OTHER_SCORES:
        values = {
            order: evidence.kl(Condition("budgets", order, share, score=score)) for order in rows
        }
        random = evidence.random(Condition("budgets", RANDOM, share, score=score))
        kl = [text_interval(one) for one in (*values.values(), random.mean(axis=0))]
        ranked = _ranked({order: values[order] for order in _COMPARED}, random, 2)
        name = words(score, short=True)
        columns.append(Column(f"{name}: KL", kl, with_half))
        columns += [Column(f"{name}: {one.title}", one.cells, one.write) for one in ranked]
    return columns


def _books(evidence: Evidence) -> list[Column]:
    """Orders of budgets in each book."""
    rows, share = [*_COMPARED, UNIFORM], evidence.plan.head_share
    random = evidence.random(Condition("budgets", RANDOM, share))  # (draws, texts)
    columns = [Column("budgets by", [*map(words, rows), "random orders"])]
    for book, own in evidence.books().items():
        values = {order: evidence.kl(Condition("budgets", order, share))[own] for order in rows}
        drawn = random[:, own].mean(axis=1)  # (draws,)
        kl = [float(one.mean()) for one in values.values()]
        columns.append(Column(f"{book}: KL", [*kl, float(drawn.mean())], plain_number))
        better = [better_draws(mean, drawn) for mean in kl]
        columns.append(Column(f"{book}: better of {len(drawn)} random", [*better, None]))
    return columns


def _windows(evidence: Evidence) -> list[Column]:
    """Half of the key heads with a window: those with the smallest values of each order."""
    values = {order: evidence.kl(Condition("window_half", order)) for order in _COMPARED}
    random = evidence.random(Condition("window_half", RANDOM))  # (draws, texts)
    everywhere = evidence.kl(Condition("window"))
    kl = [text_interval(one) for one in (*values.values(), random.mean(axis=0), everywhere)]
    rows = [*map(words, _COMPARED), "random halves", "every key head has a window"]
    return [
        Column("window in the half with the smallest", rows),
        Column("KL", kl, with_half),
        *_ranked(values, random, 2),
    ]


def _alone(evidence: Evidence, given: str | None) -> list[Column]:
    """Correlations over heads of each value with the KL if that head alone loses keys."""
    share = evidence.plan.head_share
    outcomes = {
        f"{words(BUDGET_SCORE, short=True)}, {percent(share)}": ("head", BUDGET_SCORE, share),
        f"{words(BEST_STATIC, short=True)}, {percent(share)}": ("head", BEST_STATIC, share),
        f"window of {evidence.plan.window}": ("window_head", "", None),
    }
    rows = [order for order in ORDERS if order != given]
    found: dict[tuple[str, str], Correlation] = {}
    for title, wanted in outcomes.items():
        of_heads = [one for one in evidence.conditions if one[:3] == wanted]
        kl = np.array([evidence.kl(one).mean() for one in of_heads])  # (heads,)
        places = [one.head for one in of_heads if one.head is not None]
        for order in rows:
            values = np.array([evidence.heads[order][place] for place in places])
            other = None
            if given is not None:
                other = np.array([evidence.heads[given][place] for place in places])
            found[title, order] = correlation(values, kl, other)
    p = dict(zip(found, holm(np.array([one.p for one in found.values()])), strict=True))
    columns = [Column("value of the key head", [words(order) for order in rows])]
    for title in outcomes:
        cells = [found[title, order] for order in rows]
        columns.append(Column(title, cells, with_bounds))
        columns.append(Column(f"p, {title}", [p[title, order] for order in rows], p_value))
    return columns
