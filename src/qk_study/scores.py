"""The benchmark scores of the models of a study, from CSV files and results files.

A results file of lm-evaluation-harness is JSON: `results` has an entry per task, with keys
`metric,filter` (`acc,none`) and `metric_stderr,filter`. Files of earlier versions have no filter.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from attention_plasticity.tables.names import clean
from qk_study.settings import ScoreSource, StudyModel, StudySettings
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import read_bounded, read_json, user_path
from qk_toolkit.formatting import count
from qk_toolkit.settings import nearest

_MOST_CSV, _MOST_JSON = 16 << 20, 64 << 20  # bytes
_NAMES = ("label", "model")  # of the column with labels
_NOT_MEASURED = -1.0  # of a length of RULER that was not run
_STDERR = "_stderr"


@dataclass(frozen=True)
class Score:
    """One score of one model, and where it was found."""

    model: str
    score: str
    value: float  # NaN if it is not known
    standard_error: float = math.nan  # NaN if the file has none
    file: str = ""
    task: str | None = None
    metric: str | None = None  # with its filter, as in the file
    shots: float = math.nan
    model_in_file: str | None = None


@dataclass(frozen=True)
class StudyScores:
    """The scores of all models. A score that is not known is NaN."""

    table: pd.DataFrame  # `model` with the labels, then one column per score
    sources: pd.DataFrame  # one row per model and score that is known
    notes: tuple[str, ...]  # models without a score, rows without a model, other numbers of shots

    def of(self, labels: Sequence[str]) -> pd.DataFrame:
        """The rows of some models, in their order."""
        return self.table.set_index("model").loc[list(labels)].reset_index()

    @property
    def errors(self) -> pd.DataFrame:
        """The standard errors of the scores in the same form; NaN where they are not known."""
        names = self.table.columns.drop("model")
        errors = self.sources.pivot(index="model", columns="score", values="standard_error")
        return errors.reindex(index=self.table["model"], columns=names).reset_index()


def study_scores(settings: StudySettings) -> StudyScores | None:
    """Read all scores; None if the study has none."""
    if not settings.scores:
        return None
    labels, notes = [model.label for model in settings.models], list[str]()
    found: dict[str, dict[str, Score]] = {}
    contents = {file: _results(file) for model in settings.models for file in model.results}
    for source in settings.scores:
        if source.file is not None:
            read = _of_csv(source, source.file, labels, notes)
        else:
            read = {str(source.name): _of_results(source, settings.models, contents)}
        for name, scores in read.items():
            if name in found:
                raise ConfigError(f"{settings.file}: scores: {name}: is given twice; rename one")
            found[name] = scores
    for name, scores in found.items():
        known = [label for label in labels if label in scores and not _is_nan(scores[label])]
        if missing := [label for label in labels if label not in known]:
            notes.append(f"{name}: no score of {', '.join(missing)}.")
        shots = {label: scores[label].shots for label in known if scores[label].task}
        if len({str(number) for number in shots.values()}) > 1:
            listed = ", ".join(
                f"{label} {'not recorded' if math.isnan(number) else f'{number:.0f}'}"
                for label, number in shots.items()
            )
            notes.append(
                f"{name}: the numbers of examples in the prompt (n-shot) differ: {listed}."
            )
    columns = {
        name: [scores[label].value if label in scores else math.nan for label in labels]
        for name, scores in found.items()
    }
    rows = [asdict(one) for scores in found.values() for one in scores.values() if not _is_nan(one)]
    sources = pd.DataFrame(rows, columns=[field.name for field in fields(Score)])
    table = pd.DataFrame({"model": labels, **columns})
    return StudyScores(table, sources, tuple(dict.fromkeys(notes)))


def _is_nan(score: Score) -> bool:
    return math.isnan(score.value)


def _of_csv(
    source: ScoreSource, file: str, labels: Sequence[str], notes: list[str]
) -> dict[str, dict[str, Score]]:
    """Scores by name and label."""
    table = _read_csv(file)
    own = [name for name in _NAMES if name in table.columns]
    if len(own) != 1:
        listed = " and ".join(own) or ", ".join(table.columns[:8])
        raise ConfigError(
            f"{file}: expected one column with the labels, label or model, got {listed}"
        )
    names = table.pop(own[0]).astype(str).tolist()
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{file}: {twice[0]!r} has two rows; keep one")
    others = [name for name in names if name not in labels]
    if len(others) == len(names):
        listed = ", ".join(others[:8]) or "missing"
        raise ConfigError(f"{file}: has no row of the study; its labels are {listed}")
    if others:
        number = count(len(others), "row")
        notes.append(f"{file}: {number} of no model of the study: {', '.join(others)}.")
    columns = {name: name for name in table.columns}
    if not columns:
        raise ConfigError(f"{file}: has no column of scores; add one column per benchmark")
    if source.name is not None:
        if source.name not in columns and len(columns) > 1:
            hint = nearest(source.name, columns)
            raise ConfigError(f"{file}: has no column {source.name}{hint}")
        columns = {source.name: source.name if source.name in columns else next(iter(columns))}
    return {
        name: {
            label: Score(label, name, _number(value, f"{file}: {name}"), file=file)
            for label, value in zip(names, table[column].tolist(), strict=True)
            if label in labels
        }
        for name, column in columns.items()
    }


def _number(value: object, where: str) -> float:
    """A score; NaN for an empty cell."""
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f"{where}: expected finite numbers, got {str(value)!r}; leave a score that is not "
            "known empty"
        )
    return float(value)


def _read_csv(file: str) -> pd.DataFrame:
    try:
        content = read_bounded(user_path(file), _MOST_CSV)
        return pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(_NAMES, str)).rename(
            columns=str
        )
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: does not exist") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read as CSV: {reason}") from error


def _results(file: str) -> dict[str, Any]:
    """The content of a results file."""
    try:
        content = read_json(user_path(file), most_bytes=_MOST_JSON)
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: does not exist") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: cannot be read as JSON: {reason}") from error
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        raise ConfigError(f"{file}: has no results; give a results file of lm-evaluation-harness")
    return content


def _tasks(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries of tasks, then those of groups."""
    groups = content.get("groups")
    both = {**(groups if isinstance(groups, dict) else {}), **content["results"]}
    return {name: entry for name, entry in both.items() if isinstance(entry, Mapping)}


def _of_results(
    source: ScoreSource, models: Sequence[StudyModel], contents: Mapping[str, dict[str, Any]]
) -> dict[str, Score]:
    """The score of a task by label."""
    task, found = str(source.task), dict[str, Score]()
    for model in models:
        for file in model.results:
            if task not in _tasks(contents[file]):
                continue
            if model.label in found:
                raise ConfigError(
                    f"{file}: {task}: {found[model.label].file} has this task of {model.label} "
                    "too; leave one file out"
                )
            found[model.label] = _harness_score(source, model.label, file, contents[file])
    if not found:
        known = {name for content in contents.values() for name in _tasks(content)}
        raise ConfigError(
            f"scores: {source.name}: no results file has the task {task}{nearest(task, known)}"
        )
    metrics = {one.metric: one.file for one in found.values()}
    if len(metrics) > 1:
        listed = ", ".join(f"{metric} in {file}" for metric, file in metrics.items())
        raise ConfigError(f"scores: {source.name}: different metrics: {listed}; choose one filter")
    return found


def _harness_score(source: ScoreSource, label: str, file: str, content: Mapping[str, Any]) -> Score:
    """The score of a task in a results file."""
    task = str(source.task)
    entry, where = _tasks(content)[task], f"{file}: {task}"
    key = _key(entry, source.metric, where)
    value = entry[key]
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {key}: expected a finite number, got {in_short(value)}")
    name, comma, kept = key.partition(",")
    unmeasured = name.isdigit() and value == _NOT_MEASURED
    error = entry.get(f"{name}{_STDERR}{comma}{kept}")
    known = _is_number(error) and math.isfinite(error)  # type: ignore[arg-type]
    shots = content.get("n-shot")
    number = shots.get(task) if isinstance(shots, Mapping) else None
    return Score(
        label,
        str(source.name),
        math.nan if unmeasured else float(value),
        float(error) if known and not unmeasured else math.nan,  # type: ignore[arg-type]
        file,
        task,
        key,
        float(number) if type(number) is int else math.nan,
        clean(str(content.get("model_name") or "")),
    )


def _key(entry: Mapping[str, Any], metric: str | None, where: str) -> str:
    """The key of a metric. Without a metric, the only one of the task."""
    keys = list(_metric_keys(entry))
    found = keys if metric is None else [key for key in keys if key == metric]
    if not found:
        found = [key for key in keys if key.partition(",")[0] == metric]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(keys) or "none"
    what = "no metric is chosen" if metric is None else f"{metric}: is not exactly one metric"
    raise ConfigError(f"{where}: {what}; its metrics are: {listed}. Choose one as metric")


def _metric_keys(entry: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entry.items():
        if _is_number(value) and not key.partition(",")[0].endswith(_STDERR):
            yield key


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
