"""From the words, flags and YAML file of a command to the checked settings of a study, with labels.

A study is given in one of two ways: a YAML file, or models, dumps and runs one after another. Both
give the same settings, so that everything later is the same.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_plasticity.metrics import HEAD_NUMBERS, IDS
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.run_info import RUN_FILE
from qk_dump.heads import parse_head
from qk_dump.hub.place import is_hub_path
from qk_dump.layout import kinds_in
from qk_study.settings import (
    ModelEntry,
    StudyFile,
    StudyModel,
    StudySettings,
    is_study_file,
)
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import user_path
from qk_toolkit.settings import load_yaml, nearest, place_flags, validated
from qk_toolkit.store import Store
from qk_toolkit.urls import is_remote

_MOST_MODELS = 1000
_METRICS = tuple(name for name in HEAD_NUMBERS if name not in IDS)
_WORDS = "study"  # how messages name a study without a file
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
LOCK = ".study.lock"
_LONGEST = 60  # characters of the name of a folder
_WITHOUT_NAME = "model"  # for labels without a letter or digit of ASCII
_DIGITS = 8  # of a hash


def read_study(
    places: Sequence[str],
    flags: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
    sections: Mapping[str, dict[str, Any]] | None = None,
) -> StudySettings:
    """Check everything that can be checked without loading models and dumps.

    `places` is a YAML file, or models, dumps and runs. `flags` are fields of the file as text,
    `labels` names of the places, and `sections` settings of captures and analyses, which come
    before those of the file.
    """
    given = dict(flags or {})
    is_file = len(places) == 1 and is_study_file(places[0])
    file = places[0] if is_file else _WORDS
    values = load_yaml(user_path(file)) if is_file else {"models": _entries(places, labels)}
    if is_file and labels:
        raise ConfigError("--labels: a YAML file has a label in each entry; leave it out")
    place_flags(values, StudyFile, given)

    def source_of(name: str) -> str:
        return f"--{name}" if name in given or not is_file else f"{file}: {name}"

    content = validated(StudyFile, values, source_of)
    _check_metrics(content.metrics, source_of("metrics"))
    models = _models(content, file)
    used = content.baselines or any(model.entry.model is not None for model in models)
    if not is_file and content.texts is not None and not used:
        raise ConfigError("--texts: has no effect on dumps and runs without --baselines")
    output_dir = content.output_dir or _default_folder(
        file, models, is_file=is_file, baselines=bool(content.baselines)
    )
    if is_remote(output_dir):
        raise ConfigError("output_dir: a study is made in a folder of this machine, got a URL")
    own = {name: dict((sections or {}).get(name, {})) for name in ("capture", "analysis")}
    return StudySettings(file, output_dir.rstrip("/") or "/", content, models, own)


def _default_folder(
    file: str, models: Sequence[StudyModel], *, is_file: bool, baselines: bool
) -> str:
    """The folder of a study that does not name one.

    A run or a dump may be a part of a study of its model, which has the folder without an ending.
    """
    if is_file:
        return f"results/{Path(file).stem}"
    if len(models) > 1:
        return "results/study"
    source = models[0].entry.source
    ending = "" if source == "model" else "-baselines" if baselines else f"-{source}"
    return f"results/study-{models[0].folder}{ending}"


def _entries(places: Sequence[str], labels: Sequence[str] | None) -> list[dict[str, str]]:
    """An entry for every model, dump and run of a command."""
    if labels and len(labels) != len(places):
        raise ConfigError(
            f"--labels: {len(labels)} given for {len(places)} places; give one for each"
        )
    entries = [{kind_of(place): place} for place in places]
    for entry, label in zip(entries, labels or [], strict=False):
        entry["label"] = label
    return entries


def kind_of(place: str) -> str:
    """`run`, `dump` or `model`: what a place holds. A name of the Hub is a model."""
    if is_hub_path(place):
        return "dump"
    if is_remote(place):
        return "run" if Store(place).file(RUN_FILE) is not None else "dump"
    folder = user_path(place)
    if folder.is_dir():
        kinds = kinds_in(folder)
        if "study" in kinds:
            raise ConfigError(f"{place}: is the folder of a study; give the runs in {place}/runs")
        if not kinds and not any((*folder.glob("*config.json"), *folder.glob("*.gguf"))):
            raise ConfigError(
                f"{place}: holds no run (run.json), no dump (dump.json) and no model (config.json)"
            )
        return next(iter(kinds), "model")
    if folder.exists() or not _HUB_NAME.fullmatch(place):
        missing = "" if folder.exists() else "does not exist; "
        raise ConfigError(
            f"{place}: {missing}expected a YAML file (.yaml), the folder of a run, a dump or a "
            "model, a URL of a run or a dump, or the name of a model on the Hub"
        )
    return "model"


def _check_metrics(names: Sequence[str], where: str) -> None:
    for name in names:
        if name not in _METRICS:
            hint = nearest(name, _METRICS, otherwise="; docs/data-format.md lists the columns")
            raise ConfigError(
                f"{where}: {in_short(name)}: is no numeric column of head_metrics.csv{hint}"
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
            remedy = "texts: {path: FOLDER}" if file != _WORDS else "--texts FOLDER"
            what = "" if user_path(entry.model).exists() else " (no folder here has this name)"
            raise ConfigError(
                f"{where}: {label} is a model{what}, and its capture needs texts; add {remedy}"
            )
        entries.append(entry)
        labels.append(label)
    folders = folder_names(labels)
    return tuple(
        StudyModel(label, folder, entry)
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


def default_label(place: str) -> str:
    """The last part of a path, a URL or a name on the Hub; of `owner/name@branch` the branch."""
    return place.rstrip("/").rsplit("/", 1)[-1].rpartition("@")[2]


def folder_names(labels: Sequence[str]) -> list[str]:
    """A name for the folder of every label: lower case, ASCII letters, digits, `.`, `_` and `-`.

    Names are different. If two labels give the same name, the later one ends with a hash of its
    label, which does not depend on the other labels.
    """
    found: list[str] = []
    for label in labels:
        name = _folder_name(label)
        found.append(f"{name}-{_hash(label)}" if name in found else name)
    return found


def _folder_name(label: str) -> str:
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"([^a-z0-9._]|\.\.)+", "-", plain).strip("-._") or _WITHOUT_NAME
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - _DIGITS - 1].strip('-._')}-{_hash(label)}"
    # results are refused inside a folder that has the name of a head
    return f"{_WITHOUT_NAME}-{name}" if parse_head(name) else name


def _hash(label: str) -> str:
    return hashlib.sha256(label.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]
