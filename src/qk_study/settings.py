"""The settings of a study: its YAML file, or the models, dumps and runs of the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_dump.heads import MOST_EXAMPLES, MOST_POSITIONS
from qk_sniffer.text_settings import DatasetSettings
from qk_toolkit.files import user_path
from qk_toolkit.settings import Names
from qk_toolkit.urls import is_remote, require_usable

FigureFormat = Literal["png", "svg", "pdf"]
SOURCES = ("model", "dump", "run")
REPEATED_LENGTH = 512
DRAWS = 3  # of random weights, if their number is not given
_MOST_METRICS, _MOST_DRAWS = 6, 100
_STUDY, _TEXTS, _BASELINES, _OUTPUT = "the study", "texts", "baselines", "tables and figures"


class _Section(BaseModel):
    """Unknown fields are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class StudyFlags(_Section):
    """The fields that are also flags. `figures` is checked later."""

    rare_flags: ClassVar[tuple[str, ...]] = (
        *("title", "repeated_length", "capture_again", "baseline_model", "metrics", "format"),
    )

    output_dir: str | None = Field(
        title=_STUDY,
        default=None,
        min_length=1,
        description="folder of the study (default: results/<name of the YAML file>, or "
        "results/study-<name of the model>)",
    )
    title: str | None = Field(
        title=_STUDY,
        default=None,
        min_length=1,
        max_length=200,
        description="title of the README and the page",
    )
    one_length: bool = Field(
        title=_TEXTS,
        default=True,
        description="cut texts to one length: the one that keeps most tokens of at least half of "
        "the texts; not if tokenizer.max_length is given",
    )
    repeated_texts: int = Field(
        title=_TEXTS,
        default=16,
        ge=0,
        le=MOST_EXAMPLES,
        description="texts of random tokens that come twice, for the roles of heads; 0: none",
    )
    repeated_length: int | None = Field(
        title=_TEXTS,
        default=None,
        ge=4,
        le=MOST_POSITIONS,
        multiple_of=2,
        description=f"tokens of such a text (default: {REPEATED_LENGTH}, or what the vocabulary "
        "allows)",
    )
    baselines: int = Field(
        title=_BASELINES,
        default=0,
        ge=0,
        le=_MOST_DRAWS,
        description="draws of random weights; with them, also one of shuffled tokens; 0: none "
        f"(the flag without a number: {DRAWS})",
    )
    baseline_texts: int = Field(
        title=_BASELINES,
        default=8,
        ge=4,
        description="texts of each baseline, at even steps of those of the run; 4 are needed for "
        "errors",
    )
    capture_again: bool = Field(
        title=_TEXTS,
        default=False,
        description="capture again, in place of the dump, if its texts or its model have changed",
    )
    baseline_model: str | None = Field(
        title=_BASELINES,
        default=None,
        min_length=1,
        description="model of the baselines, if it is not where the capture found it",
    )
    figures: Any = Field(
        title=_OUTPUT, default="all", description="all, none, or names of figures such as a,b"
    )
    metrics: Names = Field(
        title=_OUTPUT,
        default=[],
        max_length=_MOST_METRICS,
        description="columns of head_metrics.csv that figures of several models show "
        "(default: plasticity, its drop from position and rotary phase)",
    )
    format: FigureFormat = Field(title=_OUTPUT, default="png", description="kind of figures")
    dry_run: bool = Field(
        title=_STUDY,
        default=False,
        description="print what would be done, with rows, bytes and time, and stop",
    )


class StudyFile(StudyFlags):
    """The fields of the YAML file. `models` is checked later."""

    description: str = Field(
        default="", max_length=20_000, description="text at the start of the README, in Markdown"
    )
    texts: DatasetSettings | None = Field(default=None)
    capture: dict[str, Any] = Field(
        default={}, description="settings of every capture, in its sections"
    )
    analysis: dict[str, Any] = Field(default={}, description="settings of every analysis")
    models: Any = Field(description="a list with one entry per model: model, dump or run")


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


def is_study_file(place: str) -> bool:
    """Whether a place is a YAML file."""
    return Path(place).suffix in (".yaml", ".yml")


@dataclass(frozen=True)
class StudySettings:
    """The checked settings of a study."""

    file: str  # the YAML file as the user gave it, or the word study
    output_dir: str
    content: StudyFile
    models: tuple[StudyModel, ...]
    sections: dict[str, dict[str, Any]]  # settings of captures and analyses from flags
    words: tuple[str, ...] = ()  # of the command

    @property
    def is_file(self) -> bool:
        """Whether the study is a YAML file."""
        return is_study_file(self.file)

    @property
    def folder(self) -> Path:
        """The folder of the study."""
        return user_path(self.output_dir)
