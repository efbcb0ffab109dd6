"""What is done for every model of a study: the settings of its captures and of its analysis.

The settings of each part are also files in `settings/`, with which a part can be repeated alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attention_plasticity.config import TABLE_PATHS, RunnerConfig
from qk_sniffer.config import CaptureConfig
from qk_study.settings import REPEATED_LENGTH, StudyModel, StudySettings
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path, write_text
from qk_toolkit.settings import merged, validated
from qk_toolkit.strict_yaml import yaml_text

_PUBLISH = "publish a finished dump with attention-plasticity push"
_GIVEN_BY_CAPTURES = {
    "dataset": "give the texts as texts",
    "model.name": "give it as model of an entry",
    "model.revision": "give it as revision of an entry",
    **dict.fromkeys(
        ("output.data_root", "output.work_dir"), "dumps are in the folder of the study"
    ),
    **dict.fromkeys(("output.hf_repo_id", "output.hf_branch", "output.private"), _PUBLISH),
    "overwrite": "capture_again of the study replaces a dump of other texts or weights",
    "dry_run": "give it to the study",
}
_GIVEN_BY_ANALYSES = {
    "dataset_local_root": "give it as dump of an entry",
    **dict.fromkeys(("dataset_name", "dataset_revision"), "give hf://… as dump of an entry"),
    **dict.fromkeys(("output_dir", *TABLE_PATHS), "tables are in the folders of the runs"),
    "dry_run": "give it to the study",
}
LENGTH, REPEATED = "tokenizer.max_length", "dataset.synthetic.length"
"""Fields of captures that the study chooses from the texts and the vocabulary."""
_SAME_HEADS = ("layers", "heads", "head_sampling", "full_attention_only")


@dataclass(frozen=True)
class Part:
    """A capture or an analysis of a model."""

    kind: str  # `capture`, `capture of repeated tokens`, `analysis`
    config: CaptureConfig | RunnerConfig
    folder: str  # of the dump or the run
    values: dict[str, Any]  # the settings as they are given
    file: str  # where they are written
    chosen: str | None = None  # the field that the study chooses

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command that makes this part."""
        verb = "analyze" if isinstance(self.config, RunnerConfig) else "capture"
        return ("attention-plasticity", verb, "--config", self.file)

    @property
    def capture(self) -> CaptureConfig:
        """The settings of a capture."""
        assert isinstance(self.config, CaptureConfig)
        return self.config

    @property
    def analysis(self) -> RunnerConfig:
        """The settings of an analysis."""
        assert isinstance(self.config, RunnerConfig)
        return self.config

    def write_settings(self) -> None:
        """Write the file of the settings."""
        write_text(user_path(self.file), yaml_text(self.values))

    def with_choice(self, value: int | None) -> Part:
        """The part with a value of the field that the study chooses."""
        if self.chosen is None or value is None:
            return self
        change: Any = value
        for name in reversed(self.chosen.split(".")):
            change = {name: change}
        values = merged(self.values, change)
        return replace(self, values=values, config=validated(type(self.config), values))


@dataclass(frozen=True)
class ModelPlan:
    """A model and the parts that the study makes of it."""

    model: StudyModel
    captures: tuple[Part, ...] = ()  # of the texts, and of repeated tokens
    analysis: Part | None = None

    @property
    def label(self) -> str:
        """The label of the model."""
        return self.model.label

    @property
    def run(self) -> str:
        """The folder or the URL of the run."""
        return self.model.entry.place if self.analysis is None else self.analysis.folder

    @property
    def parts(self) -> list[Part]:
        """The captures and the analysis, as far as the study makes them."""
        return [*self.captures, *([] if self.analysis is None else [self.analysis])]


def make_plans(settings: StudySettings) -> list[ModelPlan]:
    """The plan of every model. Raises a `ConfigError` for wrong settings of captures or analyses.

    The shared settings are checked also if no model uses them.
    """
    example = {"model": {"name": "x"}, "dataset": {"path": "x"}, "output": {"data_root": "x"}}
    shared = _Shared(settings)
    shared.capture(None, example)
    shared.analysis(None, {})
    return [_plan(settings, shared, model) for model in settings.models]


def _plan(settings: StudySettings, shared: _Shared, model: StudyModel) -> ModelPlan:
    entry, base = model.entry, settings.output_dir
    if entry.run is not None:
        return ModelPlan(model)
    own: dict[str, Any] = {"output_dir": f"{base}/runs/{model.folder}"}
    captures: tuple[Part, ...] = ()
    if entry.model is None:
        own["dataset_local_root"] = entry.dump
    else:
        texts = _capture_of_texts(settings, shared, model)
        repeated = _capture_of_repeated(settings, shared, model, texts)
        own["dataset_local_root"] = texts.folder
        if repeated is not None:
            own["repeated"] = repeated.folder
        captures = tuple(part for part in (texts, repeated) if part is not None)
    config, values = shared.analysis(model, own)
    file = f"{base}/settings/{model.folder}.analysis.yaml"
    return ModelPlan(model, captures, Part("analysis", config, own["output_dir"], values, file))


def _capture_of_texts(settings: StudySettings, shared: _Shared, model: StudyModel) -> Part:
    entry, base, texts = model.entry, settings.output_dir, settings.content.texts
    dump = _literal(f"{base}/dumps/{model.folder}")
    revision = {} if entry.revision is None else {"revision": entry.revision}
    own = {
        "model": {"name": entry.model, **revision},
        "dataset": {} if texts is None else texts.model_dump(exclude_unset=True),
        "output": {"data_root": dump},
    }
    config, values = shared.capture(model, own)
    cut = settings.content.one_length and config.dataset.made is None
    cut = cut and not config.dataset.streaming and config.tokenizer.max_length is None
    file = f"{base}/settings/{model.folder}.capture.yaml"
    return Part("capture", config, dump, values, file, LENGTH if cut else None)


def _capture_of_repeated(
    settings: StudySettings, shared: _Shared, model: StudyModel, texts: Part
) -> Part | None:
    """The capture of random tokens that come twice, of the same heads; None if there is none.

    Scores on these tokens come from the attention of queries; keys are not needed.
    """
    content, config = settings.content, texts.capture
    given = (shared.values("analysis", model).get("repeated"), config.dataset.made)
    with_attention = config.capture.attention and config.capture.capture_queries
    if not content.repeated_texts or given != (None, None) or not with_attention:
        return None
    dump, length = f"{settings.output_dir}/repeated/{model.folder}", content.repeated_length
    own_capture: Any = texts.values.get("capture", {})
    values = {
        **{name: part for name, part in texts.values.items() if name not in ("capture", "dataset")},
        "tokenizer": {**texts.values.get("tokenizer", {}), "max_length": None},
        "dataset": {
            "path": "synthetic:repeated",
            "synthetic": {
                "number": content.repeated_texts,
                "length": REPEATED_LENGTH if length is None else length,
            },
        },
        "capture": {
            **{name: own_capture[name] for name in _SAME_HEADS if name in own_capture},
            "capture_keys": False,
        },
        "output": {"data_root": dump},
    }
    file = f"{settings.output_dir}/settings/{model.folder}.repeated.yaml"
    made = validated(CaptureConfig, values)
    chosen = REPEATED if length is None else None
    return Part("capture of repeated tokens", made, dump, values, file, chosen)


def _literal(folder: str) -> str:
    """A folder in which a capture must not replace {model} and {revision}."""
    if "{model}" in folder or "{revision}" in folder:
        raise ConfigError(f"output_dir: {folder}: holds {{model}} or {{revision}}; rename it")
    return folder


@dataclass(frozen=True)
class _Shared:
    """Makes the settings of a part from flags, those of all models and those of one model."""

    settings: StudySettings

    def capture(
        self, model: StudyModel | None, own: dict[str, Any]
    ) -> tuple[CaptureConfig, dict[str, Any]]:
        values = self.values("capture", model, _GIVEN_BY_CAPTURES)
        both = merged(merged({"model": {}, "dataset": {}}, values), own)
        return validated(CaptureConfig, both, self._source("capture", model)), both

    def analysis(
        self, model: StudyModel | None, own: dict[str, Any]
    ) -> tuple[RunnerConfig, dict[str, Any]]:
        values = self.values("analysis", model, _GIVEN_BY_ANALYSES)
        both = {**own, **values}
        return validated(RunnerConfig, both, self._source("analysis", model)), both

    def values(
        self, kind: str, model: StudyModel | None, given: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The shared values of a section, with those of the model and of flags in their place."""
        shared: dict[str, Any] = getattr(self.settings.content, kind)
        own: dict[str, Any] = {} if model is None else getattr(model.entry, kind)
        flags = self.settings.sections[kind]
        for values in (shared, own, flags):
            for name, remedy in (given or {}).items():
                if dotted(values, name) is not None:
                    raise ConfigError(
                        f"{self._source(kind, model)(name)}: is set by the study; {remedy}"
                    )
        return merged(merged(shared, own), flags)

    def _source(self, kind: str, model: StudyModel | None) -> Any:
        """How messages name a field: its flag, or the file, with the model whose entry has it."""
        file, flags = self.settings.file, self.settings.sections[kind]

        def source(name: str) -> str:
            if dotted(flags, name) is not None:
                return f"--{name}"
            own = {} if model is None else getattr(model.entry, kind)
            of_model = model is not None and dotted(own, name) is not None
            return f"{file}: {f'{model.label}: ' if of_model and model else ''}{kind}: {name}"

        return source


def dotted(values: Any, name: str) -> Any:
    """The value of a dotted name in nested mappings; None if there is none."""
    for part in name.split("."):
        if not isinstance(values, Mapping):
            return None
        values = values.get(part)
    return values
