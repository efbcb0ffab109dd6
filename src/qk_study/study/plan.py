"""What is done for every model of a study: the settings of its capture and of its analysis.

The settings of each part are also files in `settings/`. A part can be repeated alone with its file,
and a later command compares them with its own settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from qk_sniffer.config import CaptureConfig
from qk_study.study.settings import StudyModel, StudySettings
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import read_bounded, user_path, write_text
from qk_toolkit.settings import merged, validated
from qk_toolkit.strict_yaml import MOST_CHARACTERS, parse_yaml, yaml_text

_GIVEN_BY_CAPTURES = {
    "dataset": "give the texts as texts",
    "model.name": "give it as model of an entry",
    "model.revision": "give it as revision of an entry",
    "output.data_root": "dumps are in the folder of the study",
    "output.work_dir": "dumps are in the folder of the study",
    "output.hf_repo_id": "publish a finished dump with attention-plasticity push",
    "output.hf_branch": "publish a finished dump with attention-plasticity push",
    "output.private": "publish a finished dump with attention-plasticity push",
    "overwrite": "remove the folder of a dump to capture it again",
    "dry_run": "give it to the study",
}
_GIVEN_BY_ANALYSES = {
    **dict.fromkeys(("dataset_local_root", "dumps"), "give it as dump of an entry"),
    **dict.fromkeys(("dataset_name", "dataset_revision"), "give hf://… as dump of an entry"),
    "output_dir": "tables are in the folders of the runs",
    "dry_run": "give it to the study",
}
_PLACEMENT_OF_CAPTURES = (  # fields that change where and how fast a capture runs
    *("engine", "ray_address", "num_actors", "num_gpus", "model.device_map"),
    *("output.save_seconds", "capture.max_rows_per_batch", "dataset.streaming"),
)
_COMPARED_OF_ANALYSES = (*ANALYSIS_FIELDS, "dataset_local_root", "model_dir", "rotary", "repeated")


@dataclass(frozen=True)
class Part:
    """The capture or the analysis of a model."""

    kind: str  # `capture` or `analysis`
    config: CaptureConfig | RunnerConfig
    folder: str  # of the dump or the run
    values: dict[str, Any]  # the settings as they are given
    file: str  # where they are written

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command that makes this part."""
        verb = "capture" if self.kind == "capture" else "analyze"
        return ("attention-plasticity", verb, "--config", self.file)

    def write_settings(self) -> None:
        """Write the file of the settings."""
        write_text(user_path(self.file), yaml_text(self.values))

    def refuse_other_settings(self, label: str, begun: Sequence[str]) -> None:
        """Raise a `ConfigError` if the settings in their file are others.

        `begun` are the folders that were made with them.
        """
        if changes := self.changed_settings():
            done = "captured" if self.kind == "capture" else "analysed"
            listed = ", ".join(
                f"{name} ({in_short(then)} then, {in_short(now)} now)"
                for name, (then, now) in changes.items()
            )
            raise ConfigError(
                f"{label}: {self.folder} was {done} with other settings: {listed}. Remove "
                f"{' and '.join(begun)} to start again, or give the study another output_dir"
            )

    def changed_settings(self) -> dict[str, tuple[Any, Any]] | None:
        """Settings of the file that are others now: (then, now). None if it cannot be read."""
        recorded = _recorded(self.file, type(self.config))
        if recorded is None:
            return None
        then, now = self._compared(recorded), self._compared(self.config)
        both = {name: (then.get(name), now.get(name)) for name in {**then, **now}}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    def _compared(self, config: CaptureConfig | RunnerConfig) -> dict[str, Any]:
        """The settings that decide what is in the folder, by dotted names."""
        if isinstance(config, RunnerConfig):
            return config.model_dump(include={*_COMPARED_OF_ANALYSES})
        found = dict(_flat(config.model_dump(exclude={"overwrite", "dry_run"})))
        return {name: found[name] for name in found if name not in _PLACEMENT_OF_CAPTURES}


@dataclass(frozen=True)
class ModelPlan:
    """A model and the parts that the study makes of it."""

    model: StudyModel
    capture: Part | None
    analysis: Part | None

    @property
    def label(self) -> str:
        """The label of the model."""
        return self.model.label

    @property
    def run(self) -> str:
        """The folder or the URL of the run."""
        return self.model.entry.place if self.analysis is None else self.analysis.folder

    def refuse_other_settings(self) -> None:
        """Raise a `ConfigError` if a part that was begun had other settings.

        A run keeps the settings of its capture also after its dump was removed.
        """
        for number, part in enumerate(self.parts):
            later = [one.folder for one in self.parts[number:]]
            if begun := [folder for folder in later if user_path(folder).exists()]:
                part.refuse_other_settings(self.label, begun)

    @property
    def parts(self) -> list[Part]:
        """The capture and the analysis, as far as the study makes them."""
        return [part for part in (self.capture, self.analysis) if part is not None]


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
        return ModelPlan(model, None, None)
    capture, dump = None, entry.dump
    if entry.model is not None:
        dump = f"{base}/dumps/{model.folder}"
        revision = {} if entry.revision is None else {"revision": entry.revision}
        texts = settings.content.texts
        own = {
            "model": {"name": entry.model, **revision},
            "dataset": {} if texts is None else texts.model_dump(exclude_unset=True),
            "output": {"data_root": _literal(dump)},
        }
        config, values = shared.capture(model, own)
        file = f"{base}/settings/{model.folder}.capture.yaml"
        capture = Part("capture", config, dump, values, file)
    run = f"{base}/runs/{model.folder}"
    analysis, values = shared.analysis(model, {"dataset_local_root": dump, "output_dir": run})
    file = f"{base}/settings/{model.folder}.analysis.yaml"
    return ModelPlan(model, capture, Part("analysis", analysis, run, values, file))


def _literal(folder: str) -> str:
    """A folder in which a capture must not replace {model} and {revision}."""
    if "{model}" in folder or "{revision}" in folder:
        raise ConfigError(f"output_dir: {folder}: holds {{model}} or {{revision}}; rename it")
    return folder


@dataclass(frozen=True)
class _Shared:
    """Makes the settings of a part from those of all models and those of one model."""

    settings: StudySettings

    def capture(
        self, model: StudyModel | None, own: dict[str, Any]
    ) -> tuple[CaptureConfig, dict[str, Any]]:
        values = self._values("capture", model, _GIVEN_BY_CAPTURES)
        both = merged(merged({"model": {}, "dataset": {}}, values), own)
        return validated(CaptureConfig, both, self._source("capture", model)), both

    def analysis(
        self, model: StudyModel | None, own: dict[str, Any]
    ) -> tuple[RunnerConfig, dict[str, Any]]:
        values = self._values("analysis", model, _GIVEN_BY_ANALYSES)
        source = self._source("analysis", model)
        if values.get("engine") == "shards":
            raise ConfigError(f"{source('engine')}: a study does not run in shards")
        both = {**own, **values}
        return validated(RunnerConfig, both, source), both

    def _values(
        self, kind: str, model: StudyModel | None, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """The shared values of a section, with those of the model in their place."""
        shared: dict[str, Any] = getattr(self.settings.content, kind)
        own: dict[str, Any] = {} if model is None else getattr(model.entry, kind)
        for values in (shared, own):
            for name, remedy in given.items():
                if _has(values, name):
                    raise ConfigError(
                        f"{self._source(kind, model)(name)}: is set by the study; {remedy}"
                    )
        return merged(shared, own)

    def _source(self, kind: str, model: StudyModel | None) -> Any:
        """How messages name a field: with the model, if its entry has the field."""
        file = self.settings.file

        def source(name: str) -> str:
            own = {} if model is None else getattr(model.entry, kind)
            of_model = model is not None and _has(own, name)
            return f"{file}: {f'{model.label}: ' if of_model and model else ''}{kind}: {name}"

        return source


def _has(values: Any, dotted: str) -> bool:
    """Whether nested mappings have the field of a dotted name."""
    for name in dotted.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections by dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in ("config_overrides",):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _recorded(
    file: str, kind: type[CaptureConfig] | type[RunnerConfig]
) -> CaptureConfig | RunnerConfig | None:
    """The settings in a file of the study; None if there is none that can be read.

    The capture and the analysis then compare the settings with their own records.
    """
    path: Path = user_path(file)
    try:
        content = parse_yaml(read_bounded(path, MOST_CHARACTERS).decode("utf-8"))
        return validated(kind, content) if isinstance(content, dict) else None
    except (OSError, ValueError, ConfigError):
        return None
