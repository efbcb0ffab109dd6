"""The settings of a study: the YAML file and the entries of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attention_plasticity.metrics import HEAD_NUMBERS, IDS
from attention_plasticity.tables.names import clean
from qk_dump.hub.place import is_every_branch
from qk_sniffer.text_settings import DatasetSettings
from qk_study.study.labels import default_label, folder_names
from qk_study.study.score_settings import ScoreSource, score_sources
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import user_path
from qk_toolkit.settings import Names, nearest, settings_from, validated
from qk_toolkit.urls import is_remote, require_usable

FigureFormat = Literal["png", "svg", "pdf"]
SOURCES = ("model", "dump", "run")
_MOST_MODELS, _MOST_METRICS = 1000, 6
_METRICS = tuple(name for name in HEAD_NUMBERS if name not in IDS)


class _Section(BaseModel):
    """Unknown fields are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class StudyFile(_Section):
    """The fields of the YAML file. `models`, `scores`, `figures` are checked later."""

    output_dir: str | None = Field(
        default=None,
        min_length=1,
        description="folder of the study (default: results/<name of the YAML file>)",
    )
    title: str | None = Field(
        default=None, min_length=1, max_length=200, description="title of the README and the page"
    )
    description: str = Field(
        default="", max_length=20_000, description="text at the start of the README, in Markdown"
    )
    texts: DatasetSettings | None = Field(default=None)
    capture: dict[str, Any] = Field(
        default={}, description="settings of every capture, in its sections"
    )
    analysis: dict[str, Any] = Field(default={}, description="settings of every analysis")
    models: Any = Field(description="a list with one entry per model: model, dump or run")
    scores: Any = Field(default=None, description="benchmark scores")
    figures: Any = Field(default="all", description="all, none, or a list of names of figures")
    metrics: Names = Field(
        default=[],
        max_length=_MOST_METRICS,
        description="columns of head_metrics.csv that figures of several models show "
        "(default: plasticity, its drop and rotary phase)",
    )
    figure_format: FigureFormat = Field(default="png", description="kind of figures")
    dry_run: bool = Field(default=False, description="print what would be done, and stop")


class ModelEntry(_Section):
    """One model of a study: captured from `model`, analysed from `dump`, or read from `run`."""

    label: str | None = Field(default=None, description="name in tables and figures")
    model: str | None = Field(
        default=None, min_length=1, description="model on the Hub, or a local folder: captured"
    )
    dump: str | None = Field(
        default=None, min_length=1, description="dump in a folder, at a URL or on the Hub: analysed"
    )
    run: str | None = Field(
        default=None, min_length=1, description="finished analysis in a folder or at a URL: read"
    )
    revision: str | None = Field(
        default=None, min_length=1, description="branch, tag or commit of the model"
    )
    family: str | None = Field(default=None, min_length=1, description="family of the model")
    size: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="number of parameters, such as 135e6"
    )
    checkpoint: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="training steps or tokens"
    )
    phase: str | None = Field(default=None, min_length=1, description="phase of the training")
    capture: dict[str, Any] = Field(default={}, description="settings of this capture")
    analysis: dict[str, Any] = Field(default={}, description="settings of this analysis")
    results: Any = Field(
        default=None, description="results files of lm-evaluation-harness, one or a list"
    )

    @model_validator(mode="after")
    def _one_source(self) -> ModelEntry:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise ValueError(f"model: expected exactly one of model, dump and run, got {got}")
        unused = {"model": (), "dump": ("capture", "revision")}
        for name in unused.get(given[0], ("capture", "revision", "analysis")):
            if getattr(self, name):
                raise ValueError(f"{name}: has no effect on a {given[0]}; leave it out")
        if is_every_branch(self.place):
            raise ValueError(f"dump: {self.place}: stands for every branch; give one entry each")
        if is_remote(self.place):
            require_usable(self.place)
        return self

    @property
    def source(self) -> str:
        """`model`, `dump` or `run`."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @property
    def place(self) -> str:
        """The name of the model, or the place of the dump or the run."""
        return str(getattr(self, self.source))


@dataclass(frozen=True)
class StudyModel:
    """A model of the study with its label and the name of its folders."""

    label: str
    folder: str
    entry: ModelEntry
    results: tuple[str, ...]  # files of lm-evaluation-harness


@dataclass(frozen=True)
class StudySettings:
    """The checked settings of a study."""

    file: str  # as the user gave it
    output_dir: str
    flags: dict[str, str]  # of the command line
    content: StudyFile
    models: tuple[StudyModel, ...]
    scores: tuple[ScoreSource, ...]

    @property
    def folder(self) -> Path:
        """The folder of the study."""
        return user_path(self.output_dir)


def read_study(file: str, flags: Mapping[str, str]) -> StudySettings:
    """Read the YAML file and check everything that can be checked without models and dumps."""
    content = settings_from(StudyFile, yaml_path=Path(file), flags=dict(flags))
    output_dir = content.output_dir or f"results/{Path(file).stem}"
    if is_remote(output_dir):
        raise ConfigError("output_dir: a study is made in a folder of this machine, got a URL")
    _check_metrics(content.metrics, file)
    models = _models(content, file)
    sources = score_sources(content.scores, file)
    _check_results(models, sources, file)
    place = output_dir.rstrip("/") or "/"
    return StudySettings(file, place, dict(flags), content, models, sources)


def _check_metrics(names: Sequence[str], file: str) -> None:
    for name in names:
        if name not in _METRICS:
            hint = nearest(name, _METRICS, otherwise="; docs/data-format.md lists the columns")
            raise ConfigError(
                f"{file}: metrics: {in_short(name)}: is no numeric column of head_metrics.csv{hint}"
            )


def _models(content: StudyFile, file: str) -> tuple[StudyModel, ...]:
    given = content.models
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"{file}: models: expected a list with one entry per model, got {in_short(given)}"
        )
    if len(given) > _MOST_MODELS:
        raise ConfigError(f"{file}: models: {len(given):,} given, at most {_MOST_MODELS:,} work")
    entries: list[ModelEntry] = []
    labels: list[str] = []
    for number, values in enumerate(given, start=1):
        where = f"{file}: model {number}"
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected name: value pairs, got {in_short(values)}")
        entry = validated(ModelEntry, values, lambda name, where=where: f"{where}: {name}")  # type: ignore[misc]
        label = clean(default_label(entry.place) if entry.label is None else entry.label)
        _check_label(label, labels, where)
        if entry.model is not None and content.texts is None:
            raise ConfigError(
                f"{where}: {label} is captured, which needs texts; add texts: {{path: FOLDER}}"
            )
        entries.append(entry)
        labels.append(label)
    folders = folder_names(labels)
    return tuple(
        StudyModel(label, folder, entry, _results(entry, f"{file}: {label}"))
        for label, folder, entry in zip(labels, folders, entries, strict=True)
    )


def _check_label(label: str, earlier: list[str], where: str) -> None:
    if not label:
        raise ConfigError(f"{where}: label: is empty; give the model a name")
    if "," in label:
        raise ConfigError(f"{where}: label: {label!r}: a comma separates labels; leave it out")
    if label in earlier:
        number = earlier.index(label) + 1
        raise ConfigError(
            f"{where}: label: {label!r} is also that of model {number}; give one another label"
        )


def _results(entry: ModelEntry, where: str) -> tuple[str, ...]:
    """The results files of a model."""
    listed = entry.results if isinstance(entry.results, list) else [entry.results]
    found = [one for one in listed if one is not None]
    for one in found:
        if not isinstance(one, str) or not one:
            raise ConfigError(f"{where}: results: expected the path of a file, got {in_short(one)}")
    return tuple(found)


def _check_results(
    models: tuple[StudyModel, ...], sources: tuple[ScoreSource, ...], file: str
) -> None:
    """Results files and scores with a task need each other."""
    with_task = [source.name for source in sources if source.task is not None]
    with_results = [model.label for model in models if model.results]
    if with_results and not with_task:
        raise ConfigError(
            f"{file}: {with_results[0]}: results: no score has a task; choose the tasks with "
            "scores: {NAME: {task: TASK}}"
        )
    if with_task and not with_results:
        raise ConfigError(
            f"{file}: scores: {with_task[0]}: has a task, but no model has results; add "
            "results: FILE.json to the models"
        )
