"""The tables of docs/findings-compression.md, from the outcomes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from findings.eviction.budgets import RULES
from findings.eviction.choice import answers, mark
from findings.eviction.plan import (
    ADAKV,
    BOTH,
    CHOICE,
    CODE,
    CRITICAL,
    EXPECTED,
    FAR,
    FLAT,
    FRENCH,
    FULL,
    KEYDIFF,
    KVZIP,
    LAYERS,
    NOTHING,
    OTHERS,
    OWN,
    PLASTICITY,
    PYRAMID,
    RANDOM,
    RECORDS,
    REPLAY,
    REPORT,
    RULE,
    RULER_TASKS,
    SNAPKV,
    SOURCE,
    STATIC,
    WINDOW,
    Condition,
    Plan,
    copies_in,
    full,
    needles_in,
    ruler,
    source_name,
    sources,
)
from findings.eviction.results import PLAN, PUBLISHED, Results
from findings.tables import NONE, holm, markdown, paired_p, text_interval, write_tables
from qk_toolkit.arrays import Array

HERE = Path(__file__).resolve().parent
VALUES, CHOSEN, MODEL = "key_heads.csv", "chosen_rule.json", "model.json"
PAGES = {
    Path("README.md"): ("leaderboard",),
    Path("docs/findings-compression.md"): ("ruler", "counts"),
    Path("findings/eviction/README.md"): (
        *("budgets", "ruler_tasks", "needles", "copies", "random", "rules", "crosswise"),
        *("transfer", "fewer", "windows", "layers"),
    ),
}
"""The tables of every page."""
WORDS = {
    SNAPKV: "SnapKV",
    EXPECTED: "Expected Attention",
    KEYDIFF: "KeyDiff",
    OWN: "scorer alone",
    FLAT: "equal",
    ADAKV: "AdaKV",
    CRITICAL: "CriticalAdaKV",
    PYRAMID: "PyramidKV",
    KVZIP: "KVzip",
    STATIC: "static error",
    PLASTICITY: "plasticity",
    FAR: "far attention",
    BOTH: "mean rank of both",
    REPORT: "Jargon File",
    CHOICE: "Moby-Dick",
    CODE: "Python",
    FRENCH: "French",
    RECORDS: "records",
}
"""Names for readers."""
NAMES = {
    "SmolLM2-135M-Instruct-Q4_1": "SmolLM2-135M-Instruct",
    "Qwen2.5-Coder-0.5B-Instruct-q4_k_m": "Qwen2.5-Coder-0.5B-Instruct",
}
"""Folders of the published models, with names for readers."""
_SPACE = "\u00a0"  # lines do not break there
_SCORER, _LEADERS = EXPECTED, (FLAT, ADAKV, CRITICAL, STATIC, PLASTICITY)


def write_all(folders: Sequence[Path], plan: Plan, *, page: bool) -> None:
    """Write all tables into the folder above; with `page`, into the repository too."""
    out = folders[0].parent
    if page and out.resolve() != HERE:
        for folder in folders:
            own = HERE / folder.name
            own.mkdir(exist_ok=True)
            Results(folder, plan).publish(own / PUBLISHED)
            for name in (PLAN, VALUES, CHOSEN, MODEL):
                shutil.copy(folder / name, own / name)
        folders = [HERE / folder.name for folder in folders]
    tables = dict(Study.read(folders, plan).tables())
    text = "\n".join(f"## {name}\n\n{table}\n" for name, table in tables.items())
    (out / "tables.md").write_text(text, encoding="utf-8")
    if page:
        for path, names in PAGES.items():
            write_tables(path, {name: tables[name] for name in names})


@dataclass(frozen=True)
class Model:
    """The outcomes of a model."""

    name: str
    plan: Plan
    results: Results
    preferred: dict[str, str]  # part of the choice → rule

    def of(self, *condition: str | float, field: str = "kl") -> Array:
        """(texts,) outcomes; NaN if the condition was not run."""
        found = Condition(*condition)  # type: ignore[arg-type]
        missing = np.full(self.plan.texts, np.nan)
        return self.results.of(found, field) if found in self.results else missing

    @property
    def chosen(self) -> str:
        """The rule that all parts of the choice together prefer."""
        return self.preferred["all"]

    def draws(self, number: int, *condition: str | float, field: str = "kl", of: str = "") -> Array:
        """(draws,) means over texts of the random orders that were run."""
        names = [f"{of}{RANDOM}:{n}" for n in range(number)]
        found = [self.of(*condition, name, field=field).mean() for name in names]
        return np.array([one for one in found if not np.isnan(one)])

    def rulers(self) -> list[str]:
        """The tasks of RULER that the model answers with a full cache."""
        names = [ruler(task) for task in RULER_TASKS]
        return [one for one in names if answers(self.results, self.plan, one, self.plan.main)]

    def answers(self, context: int) -> bool:
        """Whether the model finds the numbers with a full cache."""
        return answers(self.results, self.plan, needles_in(REPORT), context)

    def task(self) -> str:
        """The task of the main context."""
        return (needles_in if self.answers(self.plan.main) else copies_in)(REPORT)

    def ratios(
        self, context: int, base: str, compressions: Sequence[float], own: str = PLASTICITY
    ) -> dict[tuple[str, float], Array]:
        """(texts,) log of KL / KL of the base, by scorer and compression; without missing ones."""
        found = {}
        for one in product(self.plan.scorers, compressions):
            place = (REPORT, context, *one)
            logs = np.log(self.of(*place, own) / self.of(*place, base))
            if not np.isnan(logs).any():
                found[one] = logs
        return found


@dataclass(frozen=True)
class Study:
    """The outcomes of all models."""

    plan: Plan
    models: list[Model]

    @classmethod
    def read(cls, folders: Sequence[Path], plan: Plan) -> Study:
        """From the folders of a run, or from those of the repository."""
        models = []
        for folder in folders:
            chosen = json.loads((folder / CHOSEN).read_text(encoding="utf-8"))
            name = NAMES.get(folder.name, folder.name)
            models.append(Model(name, plan, Results(folder, plan), chosen))
        return cls(plan, models)

    def tables(self) -> Iterator[tuple[str, str]]:
        """(name, Markdown) of every table."""
        yield "leaderboard", self._leaderboard()
        yield "counts", self._counts()
        yield "rules", self._rules()
        yield "crosswise", self._crosswise()
        yield "transfer", self._transfer()
        yield "fewer", self._fewer()
        yield "windows", self._windows((PLASTICITY, FAR, BOTH))
        yield "layers", self._windows((STATIC, PLASTICITY, FAR), f"{LAYERS}:")
        yield "budgets", self._budgets()
        yield "needles", self._tasks(needles_in(REPORT))
        yield "copies", self._tasks(copies_in(REPORT))
        yield "ruler", self._ruler()
        yield "ruler_tasks", self._ruler_tasks()
        yield "random", self._random()

    def _leaderboard(self) -> str:
        """One row per allocation, with one scorer, at the main context."""
        rows = []
        leaders = [(_SCORER, name) for name in _LEADERS]
        for scorer, name in [*leaders[:3], (REPLAY, KVZIP), *leaders[3:]]:
            row = [f"**{WORDS[name]}**" if name == PLASTICITY else WORDS[name]]
            for model in self.models:
                for compression in self.plan.few:
                    at = (self.plan.main, scorer, compression, name)
                    equal = model.of(REPORT, self.plan.main, _SCORER, compression, FLAT)
                    logs = np.log(model.of(REPORT, *at) / equal)
                    right = model.of(model.task(), *at, field="right")
                    row += [_ratio(logs) if logs.any() else "1", _number(right, 2)]
            rows.append(row)
        heading = ["keys are divided by"]
        for model in self.models:
            task = "found" if model.answers(self.plan.main) else "copied"
            for one in self.plan.few:
                heading += [f"{model.name}, {_percent(one)} pruned: KL / equal", task]
        return markdown(heading, rows)

    def _counts(self) -> str:
        """In how many settings plasticity is better, and certainly better after correction."""
        rows = []
        for model, context in product(self.models, self.plan.contexts):
            row = [f"{model.name}, {context:,} tokens"]
            for base in (FLAT, ADAKV, CRITICAL, STATIC):
                found = list(model.ratios(context, base, self.plan.compressions).values())
                if not found:
                    row += [NONE, NONE]
                    continue
                means = np.array([one.mean() for one in found])
                sure = holm(np.array([paired_p(one) for one in found])) < 0.05
                better, worse = (sure & (means < 0)).sum(), (sure & (means > 0)).sum()
                row.append(f"{(means < 0).sum()} of {len(means)} ({better} / {worse})")
                row.append(f"{np.exp(means.mean()):.2f}")
            rows.append(row)
        heading = ["model, context"]
        for base in (FLAT, ADAKV, CRITICAL, STATIC):
            heading += [f"better than {WORDS[base]} (certainly / worse)", f"KL / {WORDS[base]}"]
        return markdown(heading, rows)

    def _rules(self) -> str:
        """Every rule on the book of the choice."""
        rows = []
        results = [model.results for model in self.models]
        for rule in RULES:
            found = mark(results, self.plan, rule)
            row = [f"**{rule}**" if rule == self.models[0].chosen else rule]
            row += [_exp(found.log_kl), _number(found.needles, 2)]
            row += [_exp(mark([one], self.plan, rule).log_kl) for one in results]
            rows.append(row)
        names = [f"KL / equal, {model.name}" for model in self.models]
        return markdown(["rule", "KL / equal", "found", *names], rows)

    def _crosswise(self) -> str:
        """The rule that a part of the choice prefers, on what the choice left out."""
        rows = []
        for part, rule in self.models[0].preferred.items():
            models, contexts = self.models, self.plan.contexts
            if part.startswith("model "):
                number = int(part.split()[1])
                models = [one for place, one in enumerate(self.models) if place != number]
                part = f"{self.models[number].name} alone"
            elif part.startswith("without "):
                contexts = (int(part.split()[1]),)
                part = f"without {contexts[0]:,} tokens"
            where = f"{' and '.join(one.name for one in models)}, {_list(contexts)} tokens"
            row = [part, rule, where]
            for one in (rule, self.models[0].chosen):
                logs, found = self._reported(models, contexts, one)
                row += [_exp(logs), _number(found, 2)]
            rows.append(row)
        heading = ["chosen on", "rule", "reported on", "KL / equal", "found"]
        return markdown([*heading, "chosen rule: KL / equal", "found"], rows)

    def _reported(
        self, models: Sequence[Model], contexts: Sequence[int], rule: str
    ) -> tuple[float, float]:
        """Mean log of KL / KL of equal budgets, and numbers found, on the book of the report."""
        logs, found = [], []
        how = (self.plan.choice_scorers, self.plan.choice_compressions)
        for model, context, scorer, compression in product(models, contexts, *how):
            name = PLASTICITY if rule == model.chosen else f"{RULE}:{rule}"
            place = (context, scorer, compression)
            own, equal = (model.of(REPORT, *place, which) for which in (name, FLAT))
            logs.append(np.log(own / equal).mean())
            if model.answers(context):
                right = model.of(needles_in(REPORT), *place, name, field="right")
                found.append(right.mean())
        return float(np.nanmean(logs)), float(np.nanmean(found)) if found else float("nan")

    def _transfer(self) -> str:
        """Budgets from some texts, contexts of others: KL / KL of equal budgets."""
        rows = []
        for model, source in product(self.models, (CHOICE, *OTHERS)):
            name = source_name(source, self.plan.captured, self.plan.captured_texts)
            allocation = PLASTICITY if source == CHOICE else f"{SOURCE}:{name}"
            found = [self._log_ratio(model, texts, allocation) for texts in (REPORT, *OTHERS)]
            rows.append([f"{model.name}, {WORDS[source]}", *map(_exp, found)])
        for model in self.models:
            row = [f"{model.name}, AdaKV"]
            row += [_exp(self._log_ratio(model, texts, ADAKV)) for texts in (REPORT, *OTHERS)]
            rows.append(row)
        return markdown(["budgets from", *(WORDS[one] for one in (REPORT, *OTHERS))], rows)

    def _log_ratio(self, model: Model, texts: str, allocation: str) -> float:
        """Mean over scorers, compressions and texts of log KL / KL of equal budgets."""
        logs = []
        for one in product(self.plan.choice_scorers, self.plan.few):
            place = (texts, self.plan.main, *one)
            logs.append(np.log(model.of(*place, allocation) / model.of(*place, FLAT)).mean())
        return float(np.mean(logs))

    def _fewer(self) -> str:
        """How many texts and tokens a budget needs."""
        rows = []
        for book, tokens, texts in sources(self.plan):
            if book != CHOICE:
                continue
            name = source_name(book, tokens, texts)
            is_main = (tokens, texts) == (self.plan.captured, self.plan.captured_texts)
            row = [f"{texts} × {tokens:,}"]
            for model in self.models:
                allocation = PLASTICITY if is_main else f"{SOURCE}:{name}"
                row.append(_exp(self._log_ratio(model, REPORT, allocation)))
                right = [
                    model.of(needles_in(REPORT), self.plan.main, *one, allocation, field="right")
                    for one in product(self.plan.choice_scorers, self.plan.few)
                ]
                row.append(_number(np.array(right), 2) if model.answers(self.plan.main) else NONE)
            rows.append(row)
        columns = [
            f"{model.name}: {one}" for model in self.models for one in ("KL / equal", "found")
        ]
        return markdown(["texts × tokens", *columns], rows)

    def _windows(self, orders: Sequence[str], of: str = "") -> str:
        """Some heads, or layers, keep everything, the others their first and last tokens."""
        rows = []
        for model, share in product(self.models, self.plan.window_shares[::2]):
            place = (self.plan.main, WINDOW, round(1.0 - share, 6))
            for order in orders:
                row = [f"{model.name}, {share:g}, {WORDS[order]}"]
                for texts, field, digits in self._window_tasks(model):
                    drawn = model.draws(self.plan.random_windows, texts, *place, field=field, of=of)
                    own = model.of(texts, *place, f"{of}{order}", field=field)
                    row += [_number(own, digits), _among(own, drawn, largest=field == "right")]
                rows.append(row)
            row = [f"{model.name}, {share:g}, random, mean"]
            for texts, field, digits in self._window_tasks(model):
                drawn = model.draws(self.plan.random_windows, texts, *place, field=field, of=of)
                row += [_number(drawn, digits), NONE]
            rows.append(row)
        heading = [f"model, share of full {'layers' if of else 'heads'}, order"]
        for one in ("KL", "found", "copied"):
            heading += [one, "as good or better at random"]
        return markdown(heading, rows)

    def _window_tasks(self, model: Model) -> list[tuple[str, str, int]]:
        task = needles_in(REPORT) if model.answers(self.plan.main) else "–"
        return [(REPORT, "kl", 4), (task, "right", 2), (copies_in(REPORT), "right", 2)]

    def _budgets(self) -> str:
        """Every allocation of every scorer; ratios with intervals that are paired by text."""
        rows = []
        names = (OWN, FLAT, ADAKV, CRITICAL, PYRAMID, STATIC, PLASTICITY)
        for model, context in product(self.models, self.plan.contexts):
            bases = [model.ratios(context, base, self.plan.compressions) for base in (FLAT, ADAKV)]
            p = [
                dict(zip(one, holm(np.array([paired_p(x) for x in one.values()])), strict=True))
                for one in bases
            ]
            for setting in product(self.plan.scorers, self.plan.compressions):
                place = (REPORT, context, *setting)
                row = [f"{model.name}, {context:,}, {WORDS[setting[0]]}, {_percent(setting[1])}"]
                row += [_number(model.of(*place, name), 4) for name in names]
                for logs, corrected in zip(bases, p, strict=True):
                    known = setting in logs
                    row += [_ratio(logs[setting]), _p(corrected[setting])] if known else [NONE] * 2
                rows.append(row)
        columns = [WORDS[name] for name in names]
        heading = ["model, context, scorer, keys pruned", *columns, "/ equal", "p", "/ AdaKV", "p"]
        return markdown(heading, rows)

    def _tasks(self, texts: str) -> str:
        """The share of numbers found, or of tokens copied."""
        rows = []
        is_needles = texts == needles_in(REPORT)
        contexts = self.plan.contexts if is_needles else self.plan.contexts[:1]
        names = (OWN, FLAT, ADAKV, CRITICAL, PYRAMID, STATIC, PLASTICITY)
        for model, context in product(self.models, contexts):
            whole = full(texts, context)
            right = model.of(texts, context, NOTHING, 0.0, FULL, field="right")
            if whole not in model.results:
                continue
            left_out = " (left out)" if is_needles and not model.answers(context) else ""
            title = f"{model.name}, {context:,}, nothing is pruned{left_out}"
            rows.append([title, *[NONE] * len(names), _number(right, 2)])
            if left_out:
                continue
            for setting in product(self.plan.scorers, self.plan.compressions):
                place = (texts, context, *setting)
                row = [f"{model.name}, {context:,}, {WORDS[setting[0]]}, {_percent(setting[1])}"]
                row += [_number(model.of(*place, name, field="right"), 2) for name in names]
                rows.append([*row, NONE])
            for one in self.plan.compressions:
                right = model.of(texts, context, REPLAY, one, KVZIP, field="right")
                if not np.isnan(right).any():
                    name = f"{model.name}, {context:,}, KVzip, {_percent(one)}"
                    rows.append([name, *[NONE] * len(names), _number(right, 2)])
        columns = [WORDS[name] for name in names]
        return markdown(["model, context, scorer, keys pruned", *columns, "other"], rows)

    def _ruler(self) -> str:
        """One row per allocation: the mean over the tasks that a model answers."""
        full_cache = [
            _number(self._rulers(model, NOTHING, 0.0, FULL), 2)
            for model, _ in product(self.models, self.plan.few)
        ]
        rows = [["full cache", *full_cache]]
        for name in _LEADERS:
            row = [f"**{WORDS[name]}**" if name == PLASTICITY else WORDS[name]]
            for model, one in product(self.models, self.plan.few):
                row.append(_number(self._rulers(model, _SCORER, one, name), 2))
            rows.append(row)
        heading = ["keys are divided by"]
        for model, one in product(self.models, self.plan.few):
            heading.append(f"{model.name}, {len(model.rulers())} tasks, {_percent(one)} pruned")
        return markdown(heading, rows)

    def _rulers(self, model: Model, *setting: str | float) -> Array:
        """(tasks,) shares of right answers."""
        found = [self._right(model, task, *setting).mean() for task in model.rulers()]
        return np.array(found)

    def _right(self, model: Model, task: str, *setting: str | float) -> Array:
        return model.of(task, self.plan.main, *setting, field="right")

    def _ruler_tasks(self) -> str:
        """Every task of RULER and every setting that was run."""
        rows = []
        names = (OWN, FLAT, ADAKV, CRITICAL, PYRAMID, STATIC, PLASTICITY)
        for model, name in product(self.models, RULER_TASKS):
            task = ruler(name)
            whole = self._right(model, task, NOTHING, 0.0, FULL)
            if np.isnan(whole).any():
                continue
            left_out = "" if task in model.rulers() else " (left out)"
            title = f"{model.name}, {name}, nothing is pruned{left_out}"
            rows.append([title, *[NONE] * len(names), _number(whole, 2)])
            how = product(self.plan.choice_scorers, self.plan.ruler_compressions)
            for scorer, one in [*how, *product((REPLAY,), self.plan.ruler_compressions)]:
                own = [_number(self._right(model, task, scorer, one, n), 2) for n in names]
                own.append(_number(self._right(model, task, scorer, one, KVZIP), 2))
                if any(cell != NONE for cell in own):
                    words = WORDS[KVZIP if scorer == REPLAY else scorer]
                    rows.append([f"{model.name}, {name}, {words}, {_percent(one)}", *own])
        columns = [WORDS[name] for name in names]
        return markdown(["model, task, scorer, keys pruned", *columns, "other"], rows)

    def _random(self) -> str:
        """The same budgets in random orders of the heads."""
        rows = []
        for model, scorer, one in product(self.models, self.plan.choice_scorers, self.plan.few):
            row = [f"{model.name}, {WORDS[scorer]}, {_percent(one)}"]
            place = (REPORT, self.plan.main, scorer, one)
            own, drawn = model.of(*place, PLASTICITY), model.draws(self.plan.random_orders, *place)
            best = drawn.min() if len(drawn) else float("nan")
            row += [_number(own, 4), _number(drawn, 4), _number(best, 4)]
            row.append(_among(own, drawn, largest=False))
            rows.append(row)
        heading = ["model, scorer, keys pruned", "plasticity", "random, mean", "best random"]
        return markdown([*heading, "random as good or better"], rows)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(f"{one:,}" for one in sorted(numbers))


def _percent(share: float) -> str:
    return f"{100 * share:g}{_SPACE}%"


def _number(values: Array | float, digits: int) -> str:
    """A mean; NONE if an outcome is missing."""
    mean = float(np.mean(values)) if np.size(values) else float("nan")
    return NONE if np.isnan(mean) else f"{mean:.{digits}f}"


def _exp(log: float) -> str:
    return NONE if np.isnan(log) else f"{np.exp(log):.2f}"


def _among(own: Array, drawn: Array, *, largest: bool) -> str:
    """How many random draws are as good or better."""
    if np.isnan(own).any() or not len(drawn):
        return NONE
    as_good = drawn >= own.mean() if largest else drawn <= own.mean()
    return f"{as_good.sum()} of {len(drawn)}"


def _ratio(logs: Array) -> str:
    """Geometric mean over texts of a ratio, and its 95 % interval."""
    value, low, high = np.exp(text_interval(logs))
    return f"{value:.2f} ({low:.2f}–{high:.2f})"


def _p(p: float) -> str:
    """Two decimals, three if it is small."""
    if p < 0.001:
        return f"<{_SPACE}.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
