"""The tables of docs/findings-compression.md, from the outcomes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    SNAPKV,
    VALUE,
    WORDS,
    Condition,
    Plan,
    alone,
)
from findings.eviction.prepare import HEADS, read_heads
from findings.eviction.results import Results
from findings.eviction.statistics import (
    better_draws,
    chosen_rule,
    holm,
    log_ratios,
    paired_p,
    text_interval,
)
from findings.tables import NONE, markdown, write_tables
from qk_toolkit.arrays import Array

PAGES = {
    Path("README.md"): ("main",),
    Path("docs/findings-compression.md"): (
        *("counts", "budgets-4096", "values", "short", "windows", "alone"),
    ),
    Path("findings/eviction/README.md"): (
        *("budgets-2048", "budgets-7168", "loss", "copies", "orders", "rules"),
    ),
}
"""The tables of every page."""
HERE = Path(__file__).resolve().parent
_SPACE = "\u00a0"  # lines do not break there


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

    def of(self, *condition: str | float, field: str = "kl") -> Array | None:
        """(texts,) outcomes; None if the condition was not run."""
        found = Condition(*condition)  # type: ignore[arg-type]
        return self.results.of(found, field) if found in self.results else None

    def draws(self, kind: str, *condition: str | float, field: str = "kl") -> Array | None:
        """(draws,) means over texts of all random draws; None if some were not run."""
        found = [
            self.of(*condition, f"{kind}:{number}", field=field)
            for number in range(self.plan.random_orders)
        ]
        if any(one is None for one in found):
            return None
        return np.array([one.mean() for one in found if one is not None])

    def settings(self) -> Iterator[tuple[str, float]]:
        """Every scorer with every compression."""
        for scorer in self.plan.scorers:
            for compression in self.plan.compressions:
                yield scorer, compression

    def _main(self) -> str:
        """The table of the README: SnapKV at the middle context."""
        allocations = (FLAT, ADAKV, PLASTICITY)
        rows = []
        for compression in self.plan.compressions:
            row = [_percent(compression)]
            for field, texts in (("kl", REPORT), ("right", COPIES)):
                for allocation in allocations:
                    place = (texts, self.plan.middle, SNAPKV, compression, allocation)
                    found = self.of(*place, field=field)
                    row.append(_mean(found, 4 if field == "kl" else 2))
            rows.append(row)
        names = ["equal", "AdaKV", "plasticity"]
        heading = ["keys pruned", *(f"KL, {one}" for one in names)]
        return markdown([*heading, *(f"copied, {one}" for one in names)], rows)

    def _budgets(self, context: int) -> str:
        """KL of every scorer and allocation, with differences that are paired by text."""
        settings = list(self.settings())
        place = (REPORT, context)
        values = {
            (*one, allocation): self.of(*place, *one, allocation)
            for one in settings
            for allocation in (OWN, FLAT, ADAKV, PLASTICITY, PYRAMID)
        }
        against = {base: self._ratios(context, base) for base in (FLAT, ADAKV)}
        p = {base: _corrected(found) for base, found in against.items()}
        rows = []
        for number, one in enumerate(settings):
            row = [f"{WORDS[one[0]]}, {_percent(one[1])}"]
            row += [_mean(values[(*one, name)], 4) for name in (OWN, FLAT, ADAKV, PYRAMID)]
            row.append(f"**{_mean(values[(*one, PLASTICITY)], 4)}**")
            for base, found in against.items():
                row += [_ratio(found[number]), _p(p[base][number])]
            row += self._among_random(values[(*one, PLASTICITY)], *place, *one)
            rows.append(row)
        names = [WORDS[name] for name in (OWN, FLAT, ADAKV, PYRAMID)]
        more = ["/ equal", "p", "/ AdaKV", "p", "better random", "best random"]
        return markdown(["scorer, keys pruned", *names, "plasticity", *more], rows)

    def _ratios(self, context: int, base: str, *, without_random_keys: bool = False) -> list[Array]:
        """(texts,) log of KL with plasticity / KL with the base, for every setting."""
        found = []
        for one in self.settings():
            if without_random_keys and one[0] == RANDOM_KEYS:
                continue
            own, other = (self.of(REPORT, context, *one, name) for name in (PLASTICITY, base))
            assert own is not None
            assert other is not None
            found.append(np.log(own / other))
        return found

    def _counts(self) -> str:
        """In how many settings plasticity is better, and certainly better after correction."""
        rows = []
        for context in self.plan.contexts:
            row = [f"{context:,} tokens"]
            for base in (FLAT, ADAKV):
                ratios = self._ratios(context, base, without_random_keys=base == ADAKV)
                means = np.array([one.mean() for one in ratios])
                sure = _corrected(ratios) < 0.05
                row.append(f"{(means < 0).sum()} of {len(means)}")
                row.append(f"{(sure & (means < 0)).sum()} / {(sure & (means > 0)).sum()}")
                row.append(f"{np.exp(means.mean()):.2f}")
            orders = [
                self._among_random(
                    self.of(REPORT, context, *one, PLASTICITY), REPORT, context, *one
                )
                for one in self.settings()
            ]
            known = [one[0] for one in orders if one[0] != NONE]
            row.append(f"{sum(one.startswith('0 ') for one in known)} of {len(known)}")
            rows.append(row)
        heading = ["context"]
        for base in ("equal", "AdaKV"):
            heading += [f"better than {base}", "certainly better / worse", f"KL / {base}"]
        return markdown([*heading, "better than all random orders"], rows)

    def _among_random(self, own: Array | None, *place: str | float) -> list[str]:
        """How many random orders are as good or better, and the best of them."""
        drawn = self.draws(RANDOM_ORDER, *place)
        if own is None or drawn is None:
            return [NONE, NONE]
        better = better_draws(float(own.mean()), drawn)
        return [f"{better} of {len(drawn)}", f"{drawn.min():.4f}"]

    def _copies(self) -> str:
        """The share of the second copy that is predicted right."""
        place = (COPIES, self.plan.middle)
        rows = []
        for one in self.settings():
            values = [self.of(*place, *one, name, field="right") for name in (FLAT, ADAKV)]
            own = self.of(*place, *one, PLASTICITY, field="right")
            drawn = self.draws(RANDOM_ORDER, *place, *one, field="right")
            row = [f"{WORDS[one[0]]}, {_percent(one[1])}", *(_mean(found, 3) for found in values)]
            row.append(NONE if own is None else f"**{_with_half(own)}**")
            row += [NONE, NONE] if drawn is None else [f"{drawn.mean():.3f}", f"{drawn.max():.3f}"]
            rows.append(row)
        full = self.of(*place, self.plan.scorers[0], 0.0, FULL, field="right")
        rows.append(["nothing is pruned", NONE, NONE, _with_half(full), NONE, NONE])
        heading = ["scorer, keys pruned", "equal", "AdaKV", "plasticity"]
        return markdown([*heading, "mean of random orders", "best random order"], rows)

    def _loss(self) -> str:
        """Change of the loss at the middle context."""
        names = (OWN, FLAT, ADAKV, PLASTICITY)
        rows = []
        for one in self.settings():
            found = [
                self.of(REPORT, self.plan.middle, *one, name, field="loss_change") for name in names
            ]
            cells = [_interval(values) for values in found]
            rows.append([f"{WORDS[one[0]]}, {_percent(one[1])}", *cells])
        return markdown(["scorer, keys pruned", *(WORDS[name] for name in names)], rows)

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
                copied = [
                    self.of(COPIES, self.plan.middle, one, compression, allocation, field="right")
                    for one in self.plan.scorers
                ]
                known = [one.mean() for one in copied if one is not None]
                row.append(f"{np.mean(known):.2f}" if known else NONE)
            rows.append(row)
        heading = ["value", *(f"{context:,} tokens" for context in self.plan.contexts)]
        more = ["better than equal", f"copied, {_percent(0.5)}", f"copied, {_percent(0.75)}"]
        return markdown([*heading, *more], rows)

    def _orders(self) -> str:
        """The same budgets in other orders, at the shortest context."""
        context = min(self.plan.contexts)
        settings = [(scorer, 0.5) for scorer in (SNAPKV, EXPECTED)]
        rows = []
        for order in (*ORDERS, FLAT):
            row = [WORDS[order]]
            for one in settings:
                found = self.of(REPORT, context, *one, order)
                row += [_mean(found, 4), self._among_random(found, REPORT, context, *one)[0]]
            rows.append(row)
        heading = [f"{WORDS[scorer]}, {_percent(one)}" for scorer, one in settings]
        columns = [title for one in heading for title in (one, "better random")]
        return markdown(["budgets by", *columns], rows)

    def _rules(self) -> str:
        """KL / KL of equal budgets of every rule, as geometric means."""
        chosen = chosen_rule(self.results, self.plan, tuple(RULES))
        rows = []
        for rule in RULES:
            on = {
                texts: log_ratios(self.results, self.plan, f"{RULE}:{rule}", texts)
                for texts in (CHOICE, REPORT)
            }  # (scorers, compressions) each
            cells = [f"{np.exp(found.mean()):.2f}" for found in on.values()]
            cells += [f"{one:.2f}" for one in np.exp(on[REPORT].mean(axis=0))]
            rows.append([f"**{rule}**" if rule == chosen else rule, *cells])
        heading = ["rule", "Moby-Dick", "Jargon File"]
        return markdown([*heading, *map(_percent, self.plan.compressions)], rows)

    def _short(self) -> str:
        """Rules where a head keeps few keys: the shortest context, the largest compression."""
        context, most = min(self.plan.contexts), max(self.plan.compressions)
        chosen = chosen_rule(self.results, self.plan, tuple(RULES))
        names = {"equal": FLAT, chosen: PLASTICITY}
        names |= {name.removeprefix(f"{RULE}:"): name for name in CAREFUL_RULES}
        rows = []
        for title, allocation in names.items():
            cells = []
            for scorer in (SNAPKV, EXPECTED):
                found = self.of(REPORT, context, scorer, most, allocation)
                equal = self.of(REPORT, context, scorer, most, FLAT)
                cells += [
                    _mean(found, 4),
                    NONE if title == "equal" else _interval(_minus(found, equal)),
                ]
            rows.append([title, *cells])
        heading = ["rule", "SnapKV", "minus equal", "Expected Attention", "minus equal"]
        return markdown(heading, rows)

    def _windows(self) -> str:
        """Half of the key heads keep only their last tokens."""
        scorer, compression = alone(self.plan)[-1]
        place = (REPORT, self.plan.middle, scorer, compression)
        drawn = self.draws(RANDOM_HALF, *place)
        rows = []
        for order in ORDERS:
            found = self.of(*place, f"{HALF}:{order}")
            better = NONE
            if found is not None and drawn is not None:
                better = f"{better_draws(float(found.mean()), drawn)} of {len(drawn)}"
            rows.append([WORDS[order], _with_half(found), better])
        if drawn is not None:
            rows.append(["random halves, mean", f"{drawn.mean():.4f}", NONE])
        return markdown(["half with the smallest", "KL", "better random halves"], rows)

    def _alone(self) -> str:
        """Rank correlation over heads of a value with the KL if that head alone loses keys."""
        layers, heads = next(iter(self.heads.values())).shape
        places = range(0, layers * heads, self.plan.head_step)
        outcomes = []
        for scorer, compression in alone(self.plan):
            names = [f"{HEAD}:{one // heads}.{one % heads}" for one in places]
            place = (REPORT, self.plan.middle, scorer, compression)
            found = [self.of(*place, name) for name in names]
            outcomes.append(np.array([np.nan if one is None else one.mean() for one in found]))
        values = [self.heads[order].ravel()[list(places)] for order in ORDERS]
        p = holm(np.array([spearmanr(one, kl).pvalue for one in values for kl in outcomes]))
        rows = []
        for number, (order, one) in enumerate(zip(ORDERS, values, strict=True)):
            row = [WORDS[order]]
            for place_, kl in enumerate(outcomes):
                row.append(f"{spearmanr(one, kl).statistic:.2f}")
                row.append(_p(p[number * len(outcomes) + place_]))
            rows.append(row)
        titles = [WORDS[scorer] for scorer, _ in alone(self.plan)]
        return markdown(["value of the head", *(x for one in titles for x in (one, "p"))], rows)


def _percent(share: float) -> str:
    return f"{100 * share:g}{_SPACE}%"


def _mean(values: Array | None, digits: int) -> str:
    return NONE if values is None else f"{values.mean():.{digits}f}"


def _minus(one: Array | None, other: Array | None) -> Array | None:
    return None if one is None or other is None else one - other


def _with_half(values: Array | None) -> str:
    """The mean and half of its 95 % interval over texts."""
    if values is None:
        return NONE
    found = text_interval(values)
    return f"{found.value:.3f}{_SPACE}±{_SPACE}{(found.high - found.low) / 2:.3f}"


def _interval(values: Array | None) -> str:
    """A difference with its sign, and half of its 95 % interval over texts."""
    if values is None:
        return NONE
    found = text_interval(values)
    return f"{found.value:+.4f}{_SPACE}±{_SPACE}{(found.high - found.low) / 2:.4f}"


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
