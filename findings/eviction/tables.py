"""The tables of docs/findings-compression.md, from the outcomes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from findings.eviction.budgets import RULES
from findings.eviction.figures import draw_budgets, draw_scorers
from findings.eviction.plan import (
    ADAKV,
    CAREFUL_RULES,
    CHOICE,
    COPIES,
    EXPECTED,
    FLAT,
    FULL,
    HALF,
    HEAD,
    ORDERS,
    OWN,
    PLASTICITY,
    PYRAMID,
    RANDOM_HALF,
    RANDOM_KEYS,
    RANDOM_ORDER,
    REPORT,
    RULE,
    SCORERS,
    SNAPKV,
    VALUE,
    WORDS,
    Condition,
    Plan,
    alone,
)
from findings.eviction.prepare import HEADS, read_heads
from findings.eviction.results import Results, chosen_rule, log_ratios
from findings.tables import NONE, holm, markdown, paired_p, text_interval, write_tables
from qk_toolkit.arrays import Array

PAGES = {
    Path("README.md"): ("main",),
    Path("docs/findings-compression.md"): ("counts", "values", "short", "windows", "alone"),
    Path("findings/eviction/README.md"): (
        *("budgets-2048", "budgets-4096", "budgets-7168"),
        *("loss", "copies", "orders", "rules"),
    ),
}
"""The tables of every page."""
HERE = Path(__file__).resolve().parent
_SPACE = "\u00a0"  # lines do not break there
_SETTING = "scorer, keys pruned"


def write_all(folder: Path, plan: Plan, *, page: bool) -> None:
    """Write all tables and figures into a folder; with `page`, into the repository too."""
    results = Results(folder, plan)
    if page and folder.resolve() != HERE:
        results.publish(HERE)
        shutil.copy(folder / HEADS, HERE / HEADS)
        results = Results(HERE, plan)  # with as many digits as published
    study = Study(plan, results, read_heads(folder))
    tables = dict(study.tables())
    text = "\n".join(f"## {name}\n\n{table}\n" for name, table in tables.items())
    (folder / "tables.md").write_text(text, encoding="utf-8")
    pictures = draw_budgets(study, folder), draw_scorers(study, folder)
    if page:
        for path, names in PAGES.items():
            write_tables(path, {name: tables[name] for name in names})
        for path in pictures:
            shutil.copy(path, Path("docs/images") / path.name)


@dataclass(frozen=True)
class Study:
    """The outcomes of a plan, and the values of key heads."""

    plan: Plan
    results: Results
    heads: dict[str, Array]  # (layers, key heads)

    def tables(self) -> Iterator[tuple[str, str]]:
        """(name, Markdown) of every table."""
        yield "main", self._main()
        yield "counts", self._counts()
        for context in self.plan.contexts:
            yield f"budgets-{context}", self._budgets(context)
        yield "copies", self._copies()
        yield "loss", self._loss()
        yield "values", self._values()
        yield "orders", self._orders()
        yield "rules", self._rules()
        yield "short", self._short()
        yield "windows", self._windows()
        yield "alone", self._alone()

    def of(self, *condition: str | float, field: str = "kl") -> Array:
        """(texts,) outcomes; NaN if the condition was not run."""
        found = Condition(*condition)  # type: ignore[arg-type]
        missing = np.full(self.plan.texts, np.nan)
        return self.results.of(found, field) if found in self.results else missing

    def draws(self, kind: str, *condition: str | float, field: str = "kl") -> Array:
        """(draws,) means over texts of random draws; NaN if one was not run."""
        numbers = range(self.plan.random_orders)
        return np.array([self.of(*condition, f"{kind}:{n}", field=field).mean() for n in numbers])

    def settings(self) -> Iterator[tuple[str, float]]:
        """Every scorer with every compression."""
        return product(self.plan.scorers, self.plan.compressions)

    @property
    def _middle(self) -> tuple[str, int]:
        return REPORT, self.plan.middle

    @property
    def _copied(self) -> tuple[str, int]:
        return COPIES, self.plan.middle

    def _main(self) -> str:
        """The table of the README: SnapKV at the middle context."""
        rows = []
        for compression in self.plan.compressions:
            kl, right = (
                [
                    _number(self.of(*place, SNAPKV, compression, one, field=field), digits)
                    for one in (FLAT, ADAKV, PLASTICITY)
                ]
                for place, field, digits in ((self._middle, "kl", 4), (self._copied, "right", 2))
            )
            rows.append([_percent(compression), *kl, *right])
        names = ["equal", "AdaKV", "plasticity"]
        heading = [f"{field}, {one}" for field in ("KL", "copied") for one in names]
        return markdown(["keys pruned", *heading], rows)

    def _budgets(self, context: int) -> str:
        """KL of every scorer and allocation, with differences that are paired by text."""
        against = [self._ratios(context, base) for base in (FLAT, ADAKV)]
        p = [_corrected(ratios) for ratios in against]
        others, rows = (OWN, FLAT, ADAKV, PYRAMID), []
        for number, one in enumerate(self.settings()):
            place = (REPORT, context, *one)
            own = self.of(*place, PLASTICITY)
            row = [_setting(one), *(_number(self.of(*place, name), 4) for name in others)]
            row.append(f"**{_number(own, 4)}**")
            for ratios, corrected in zip(against, p, strict=True):
                row += [_ratio(ratios[number]), _p(corrected[number])]
            rows.append([*row, *self._among_random(own, *place)])
        more = ["/ equal", "p", "/ AdaKV", "p", "better random", "best random"]
        names = [WORDS[name] for name in others]
        return markdown([_SETTING, *names, "plasticity", *more], rows)

    def _ratios(self, context: int, base: str, scorers: Sequence[str] = SCORERS) -> list[Array]:
        """(texts,) log of KL with plasticity / KL with the base, for every setting."""
        return [
            np.log(
                self.of(REPORT, context, *one, PLASTICITY) / self.of(REPORT, context, *one, base)
            )
            for one in self.settings()
            if one[0] in scorers
        ]

    def _counts(self) -> str:
        """In how many settings plasticity is better, and certainly better after correction."""
        no_random = [one for one in SCORERS if one != RANDOM_KEYS]
        rows = []
        for context in self.plan.contexts:
            row = [f"{context:,} tokens"]
            for base, scorers in ((FLAT, SCORERS), (ADAKV, no_random)):
                ratios = self._ratios(context, base, scorers)
                means = np.array([one.mean() for one in ratios])
                sure = _corrected(ratios) < 0.05
                row.append(f"{(means < 0).sum()} of {len(means)}")
                row.append(f"{(sure & (means < 0)).sum()} / {(sure & (means > 0)).sum()}")
                row.append(f"{np.exp(means.mean()):.2f}")
            places = [(REPORT, context, *one) for one in self.settings()]
            found = [self._among_random(self.of(*one, PLASTICITY), *one)[0] for one in places]
            known = [one for one in found if one != NONE]
            row.append(f"{sum(one.startswith('0 ') for one in known)} of {len(known)}")
            rows.append(row)
        heading = ["context"]
        for base in ("equal", "AdaKV"):
            heading += [f"better than {base}", "certainly better / worse", f"KL / {base}"]
        return markdown([*heading, "better than all random orders"], rows)

    def _among_random(self, own: Array, *place: str | float) -> list[str]:
        """How many random orders are as good or better, and the best of them."""
        drawn = self.draws(RANDOM_ORDER, *place)
        return [_better(own, drawn), _number(drawn.min(), 4)]

    def _copies(self) -> str:
        """The share of the second copy that is predicted right."""
        rows = []
        for one in self.settings():
            place = (*self._copied, *one)
            values = [self.of(*place, name, field="right") for name in (FLAT, ADAKV)]
            own = f"**{_with_half(self.of(*place, PLASTICITY, field='right'))}**"
            drawn = self.draws(RANDOM_ORDER, *place, field="right")
            random = [_number(drawn, 3), _number(drawn.max(), 3)]
            rows.append([_setting(one), *(_number(found, 3) for found in values), own, *random])
        full = self.of(*self._copied, self.plan.scorers[0], 0.0, FULL, field="right")
        rows.append(["nothing is pruned", NONE, NONE, _with_half(full), NONE, NONE])
        heading = [_SETTING, "equal", "AdaKV", "plasticity"]
        return markdown([*heading, "mean of random orders", "best random order"], rows)

    def _loss(self) -> str:
        """Change of the loss at the middle context."""
        names = (OWN, FLAT, ADAKV, PLASTICITY)
        rows = []
        for one in self.settings():
            found = [self.of(*self._middle, *one, name, field="loss_change") for name in names]
            rows.append([_setting(one), *map(_change, found)])
        return markdown([_SETTING, *(WORDS[name] for name in names)], rows)

    def _values(self) -> str:
        """Budgets by the chosen rule from other values, against equal budgets and plasticity."""
        rows = []
        for order in ORDERS:
            allocation = order if order == PLASTICITY else f"{VALUE}:{order}"
            ratios = [
                log_ratios(self.results, self.plan, allocation, REPORT, context)
                for context in self.plan.contexts
            ]  # (scorers, compressions) each
            row = [WORDS[order], *(f"{np.exp(one.mean()):.2f}" for one in ratios)]
            row.append(f"{sum((one < 0).sum() for one in ratios)} of {sum(map(np.size, ratios))}")
            for compression in (0.5, 0.75):
                places = [(*self._copied, one, compression) for one in self.plan.scorers]
                copied = [self.of(*one, allocation, field="right").mean() for one in places]
                row.append(_number(np.array(copied), 2))
            rows.append(row)
        heading = ["value", *(f"{context:,} tokens" for context in self.plan.contexts)]
        more = ["better than equal", f"copied, {_percent(0.5)}", f"copied, {_percent(0.75)}"]
        return markdown([*heading, *more], rows)

    def _orders(self) -> str:
        """The same budgets in other orders, at the shortest context."""
        settings = [(scorer, 0.5) for scorer in (SNAPKV, EXPECTED)]
        rows = []
        for order in (*ORDERS, FLAT):
            row = [WORDS[order]]
            for one in settings:
                place = (REPORT, min(self.plan.contexts), *one)
                found = self.of(*place, order)
                row += [_number(found, 4), self._among_random(found, *place)[0]]
            rows.append(row)
        columns = [title for one in settings for title in (_setting(one), "better random")]
        return markdown(["budgets by", *columns], rows)

    def _rules(self) -> str:
        """KL / KL of equal budgets of every rule, as geometric means."""
        chosen = chosen_rule(self.results, self.plan, tuple(RULES))
        rows = []
        for rule in RULES:
            choice, report = (
                log_ratios(self.results, self.plan, f"{RULE}:{rule}", texts)
                for texts in (CHOICE, REPORT)
            )  # (scorers, compressions) each
            means = [choice.mean(), report.mean(), *report.mean(axis=0)]
            name = f"**{rule}**" if rule == chosen else rule
            rows.append([name, *(f"{one:.2f}" for one in np.exp(means))])
        heading = ["rule", "Moby-Dick", "Jargon File"]
        return markdown([*heading, *map(_percent, self.plan.compressions)], rows)

    def _short(self) -> str:
        """Rules where a head keeps few keys: the shortest context, the largest compression."""
        chosen = chosen_rule(self.results, self.plan, tuple(RULES))
        names = {"equal": FLAT, chosen: PLASTICITY}
        names |= {name.removeprefix(f"{RULE}:"): name for name in CAREFUL_RULES}
        rows = []
        for title, allocation in names.items():
            row = [title]
            for scorer in (SNAPKV, EXPECTED):
                place = (REPORT, min(self.plan.contexts), scorer, max(self.plan.compressions))
                found, equal = (self.of(*place, one) for one in (allocation, FLAT))
                minus = NONE if allocation == FLAT else _change(found - equal)
                row += [_number(found, 4), minus]
            rows.append(row)
        heading = ["rule", "SnapKV", "minus equal", "Expected Attention", "minus equal"]
        return markdown(heading, rows)

    def _windows(self) -> str:
        """Half of the key heads keep only their last tokens."""
        place = (*self._middle, *alone(self.plan)[-1])
        drawn = self.draws(RANDOM_HALF, *place)
        rows = []
        for order in ORDERS:
            found = self.of(*place, f"{HALF}:{order}")
            rows.append([WORDS[order], _with_half(found), _better(found, drawn)])
        rows.append(["random halves, mean", _number(drawn, 4), NONE])
        return markdown(["half with the smallest", "KL", "better random halves"], rows)

    def _alone(self) -> str:
        """Rank correlation over heads of a value with the KL if that head alone loses keys."""
        layers, heads = next(iter(self.heads.values())).shape
        places = range(0, layers * heads, self.plan.head_step)
        names = [f"{HEAD}:{one // heads}.{one % heads}" for one in places]
        outcomes = [
            np.array([self.of(*self._middle, *one, name).mean() for name in names])
            for one in alone(self.plan)
        ]
        values = [self.heads[order].ravel()[list(places)] for order in ORDERS]
        found = [[spearmanr(one, kl) for kl in outcomes] for one in values]
        p = holm(np.array([one.pvalue for row in found for one in row]))
        rows = []
        for order, row, own in zip(ORDERS, found, p.reshape(len(ORDERS), -1), strict=True):
            pairs = zip(row, own, strict=True)
            cells = [cell for one, q in pairs for cell in (f"{one.statistic:.2f}", _p(q))]
            rows.append([WORDS[order], *cells])
        titles = [WORDS[scorer] for scorer, _ in alone(self.plan)]
        return markdown(["value of the head", *(x for one in titles for x in (one, "p"))], rows)


def _percent(share: float) -> str:
    return f"{100 * share:g}{_SPACE}%"


def _setting(setting: tuple[str, float]) -> str:
    return f"{WORDS[setting[0]]}, {_percent(setting[1])}"


def _number(values: Array | float, digits: int) -> str:
    """A mean; NONE if an outcome is missing."""
    mean = float(np.mean(values))
    return NONE if np.isnan(mean) else f"{mean:.{digits}f}"


def _better(own: Array, drawn: Array) -> str:
    """How many random draws are as good or better."""
    if np.isnan([own.mean(), *drawn]).any():
        return NONE
    return f"{(drawn <= own.mean()).sum()} of {len(drawn)}"


def _with_half(values: Array, digits: int = 3, sign: str = "") -> str:
    """The mean and half of its 95 % interval over texts."""
    if np.isnan(values).any():
        return NONE
    value, low, high = text_interval(values)
    return f"{value:{sign}.{digits}f}{_SPACE}±{_SPACE}{(high - low) / 2:.{digits}f}"


def _change(values: Array) -> str:
    """A difference with its sign."""
    return _with_half(values, 4, "+")


def _corrected(found: Sequence[Array]) -> Array:
    """P-values of paired differences, corrected over the table."""
    return holm(np.array([paired_p(one) for one in found]))


def _ratio(logs: Array) -> str:
    """Geometric mean over texts of a ratio, and its 95 % interval."""
    value, low, high = np.exp(text_interval(logs))
    return f"{value:.2f} ({low:.2f}–{high:.2f})"


def _p(p: float) -> str:
    """Two decimals, three if it is small."""
    if p < 0.001:
        return f"<{_SPACE}.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
