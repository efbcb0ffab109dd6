"""The benchmark scores of the models of a study, from CSV files and results files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from attention_plasticity.comparison.scores import read_scores
from qk_study.study.harness import HarnessValue, harness_value, read_results, tasks_of
from qk_study.study.score_settings import ScoreSource
from qk_study.study.settings import StudyModel, StudySettings
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_bounded, user_path
from qk_toolkit.formatting import count
from qk_toolkit.settings import nearest

_MOST_BYTES = 16 << 20
_NAMES = ("label", "model")  # of the column with labels
_SOURCE_COLUMNS = (
    *("model", "score", "value", "standard_error", "file", "task", "metric", "shots"),
    "model_in_file",
)


@dataclass(frozen=True)
class StudyScores:
    """The scores of all models. A score that is not known is NaN."""

    table: pd.DataFrame  # `model` with the labels, then one column per score
    sources: pd.DataFrame  # one row per model and score that is known
    notes: tuple[str, ...]  # models without a score, rows without a model, other numbers of shots

    def of(self, labels: Sequence[str]) -> pd.DataFrame:
        """The rows of some models, in their order."""
        return self.table.set_index("model").loc[list(labels)].reset_index()


def study_scores(settings: StudySettings) -> StudyScores | None:
    """Read all scores; None if the study has none."""
    if not settings.scores:
        return None
    labels = [model.label for model in settings.models]
    values: dict[str, dict[str, float]] = {}
    rows: list[dict[str, object]] = []
    notes: list[str] = []
    contents = {file: read_results(file) for model in settings.models for file in model.results}
    for source in settings.scores:
        if source.file is not None:
            read, unknown = _of_csv(source, source.file, labels)
            notes += unknown
        else:
            read, told = _of_results(source, settings.models, contents)
            rows += [_row(label, str(source.name), one) for label, one in told.items()]
            notes += _shots_note(str(source.name), told)
        for name, column in read.items():
            if name in values:
                raise ConfigError(f"{settings.file}: scores: {name}: is given twice; rename one")
            values[name] = column
            if source.file is not None:
                rows += [
                    {"model": label, "score": name, "value": value, "file": source.file}
                    for label, value in column.items()
                    if not math.isnan(value)
                ]
    columns = {name: [found[label] for label in labels] for name, found in values.items()}
    table = pd.DataFrame({"model": labels, **columns})
    for name in values:
        missing = [label for label in labels if math.isnan(values[name][label])]
        if missing:
            notes.append(f"{name}: no score of {', '.join(missing)}.")
    sources = pd.DataFrame(rows, columns=list(_SOURCE_COLUMNS))
    return StudyScores(table, sources, tuple(dict.fromkeys(notes)))


def _of_csv(
    source: ScoreSource, file: str, labels: Sequence[str]
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Scores by name and label, and a note about rows that are of no model."""
    table = _read_csv(file)
    own = [name for name in _NAMES if name in table.columns]
    if len(own) != 1:
        raise ConfigError(
            f"{file}: expected one column with the labels, label or model, got "
            f"{' and '.join(own) or ', '.join(map(str, table.columns[:8]))}"
        )
    table = table.rename(columns={own[0]: "model"})
    if source.name is not None:
        columns = [name for name in table.columns if name != "model"]
        column = source.name if source.name in columns else columns[0] if columns else ""
        if column != source.name and len(columns) > 1:
            hint = nearest(source.name, columns)
            raise ConfigError(f"{file}: has no column {source.name}{hint}")
        table = table[["model", *([column] if column else [])]].rename(
            columns={column: source.name}
        )
    others = [str(name) for name in table["model"] if name not in labels]
    absent = [label for label in labels if label not in set(table["model"])]
    table = pd.concat([table, pd.DataFrame({"model": absent})], ignore_index=True)
    try:
        read = read_scores(table, labels)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if len(absent) == len(labels):
        raise ConfigError(
            f"{file}: has no row of the study; its labels are {', '.join(others[:8]) or 'missing'}"
        )
    notes = []
    if others:
        rows = count(len(others), "row")
        notes.append(f"{file}: {rows} of no model of the study: {', '.join(others)}.")
    columns = [str(name) for name in read.columns[1:]]
    found = {name: dict(zip(labels, read[name].astype(float), strict=True)) for name in columns}
    return found, notes


def _read_csv(file: str) -> pd.DataFrame:
    try:
        content = read_bounded(user_path(file), _MOST_BYTES)
        return pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(_NAMES, str))
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: does not exist") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read as CSV: {reason}") from error


def _of_results(
    source: ScoreSource, models: Sequence[StudyModel], contents: dict[str, dict[str, object]]
) -> tuple[dict[str, dict[str, float]], dict[str, HarnessValue]]:
    """The score of a task by label, and where it was found."""
    task = str(source.task)
    found: dict[str, HarnessValue] = {}
    for model in models:
        for file in model.results:
            one = harness_value(file, contents[file], task, source.metric)
            if one is None:
                continue
            if model.label in found:
                raise ConfigError(
                    f"{file}: {task}: {found[model.label].file} has this task of {model.label} "
                    "too; leave one file out"
                )
            found[model.label] = one
    if not found:
        known = {name for content in contents.values() for name in tasks_of(content)}
        raise ConfigError(
            f"scores: {source.name}: no results file has the task {task}{nearest(task, known)}"
        )
    metrics = {one.metric: one.file for one in found.values()}
    if len(metrics) > 1:
        listed = ", ".join(f"{metric} in {file}" for metric, file in metrics.items())
        raise ConfigError(f"scores: {source.name}: different metrics: {listed}; choose one filter")
    values = {
        model.label: found[model.label].value if model.label in found else math.nan
        for model in models
    }
    return {str(source.name): values}, found


def _shots_note(name: str, found: dict[str, HarnessValue]) -> list[str]:
    shots = {label: one.shots for label, one in found.items()}
    if len(set(shots.values())) <= 1:
        return []
    listed = ", ".join(
        f"{label} {'not recorded' if number is None else number}" for label, number in shots.items()
    )
    return [f"{name}: the numbers of examples in the prompt (n-shot) differ: {listed}."]


def _row(label: str, score: str, one: HarnessValue) -> dict[str, object]:
    values = asdict(one)
    return {**values, "model": label, "score": score, "model_in_file": one.model}
