"""The baselines of a run: its capture with few texts, random weights or shuffled tokens.

The settings are those that the run records of its own capture and analysis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

from attention_plasticity.config import ANALYSIS_FIELDS
from attention_plasticity.config import make_config as make_analysis
from attention_plasticity.tables.baselines import (
    DUMP_FOLDER,
    RANDOM,
    SHUFFLED,
    baseline_folder,
    baseline_name,
    baseline_words,
)
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, main_plasticity
from qk_sniffer.capture.differences import other_files
from qk_sniffer.config import Dtype, make_config
from qk_study.plan import Part
from qk_study.settings import StudySettings
from qk_toolkit.errors import ConfigError

QUERIES_PER_BUCKET = 128  # from all texts; a capture with more queries is made smaller

_DATASET = ("name", "revision", "split", "text_column", "id_column", "max_samples")
_MODEL = ("gguf_file", "attn_implementation", "config_overrides")
_TOKENIZER = ("name", "revision", "max_length", "add_special_tokens")
_CAPTURE = (
    *("layers", "heads", "head_sampling", "full_attention_only", "capture_pre_rope"),
    *("attention", "tokens", "attended_queries"),
)


def recorded_capture(place: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the capture of a run. Raises a `ConfigError` if they cannot be repeated."""
    dump = (info.get("input") or {}).get("dump") or {}
    capture = dump.get("capture")
    wanted = (("dataset", "path"), ("model", "name"))
    if not isinstance(capture, dict) or not all(
        isinstance(_part(capture, section).get(name), str) for section, name in wanted
    ):
        raise ConfigError(
            f"{place}: its dump does not record the model and the texts of a capture (capture in "
            "dump.json), so the capture cannot be repeated; give the run of a dump that capture "
            "made"
        )
    made = _part(capture, "dataset").get("synthetic")
    if made is not None or _part(capture, "model").get("random_weights"):
        what = "made texts (dataset.path: synthetic)" if made is not None else "random weights"
        raise ConfigError(
            f"{place}: was captured with {what}, so it is a baseline itself; give the run of a "
            "model with its own weights and of real texts"
        )
    return capture


@dataclass(frozen=True)
class BaselinePlan:
    """The two parts of a baseline."""

    words: str
    capture: Part
    analysis: Part


def baseline_plans(settings: StudySettings, run: FinishedRun) -> list[BaselinePlan]:
    """The baselines of a run: several draws of random weights, and shuffled tokens."""
    if run.url is not None:
        raise ConfigError(
            f"{run.place}: is not a folder of this machine; copy the run into a folder, and give it"
        )
    if not run.info:
        raise ConfigError(
            f"{run.place}: has no run.json, so its settings are not known; run the analysis again"
        )
    wanted = [(RANDOM, draw) for draw in range(settings.content.baselines)] + [(SHUFFLED, 0)]
    return [_baseline(settings, run, kind, draw) for kind, draw in wanted]


def _baseline(settings: StudySettings, run: FinishedRun, kind: str, draw: int) -> BaselinePlan:
    folder = baseline_folder(run.folder, baseline_name(kind, draw))
    values = baseline_values(run, kind, draw, settings)
    values["output"]["data_root"] = str(folder / DUMP_FOLDER)
    try:
        config = make_config(values)
    except ConfigError as error:
        raise ConfigError(f"{run.place}: its capture cannot be repeated: {error}") from error
    fields = _analysis_fields(run, settings)
    fields |= {"dataset_local_root": str(folder / DUMP_FOLDER), "output_dir": str(folder)}
    file = f"{folder}.capture.yaml"
    capture = Part("capture", config, str(folder / DUMP_FOLDER), values, file)
    own = Part("analysis", make_analysis(fields), str(folder), fields, f"{folder}.analysis.yaml")
    return BaselinePlan(baseline_words(kind, draw), capture, own)


def baseline_values(
    run: FinishedRun, kind: str, draw: int, settings: StudySettings
) -> dict[str, Any]:
    """The settings of the capture of a baseline.

    It has the model and the settings of the capture of the run, and some of its texts, at even
    steps: the first ones by name could be one book. Of a streamed data set they are the first.
    Model and texts may be at another place; a model with another name has no revision.
    """
    recorded, content = recorded_capture(run.place, run.info), settings.content
    total = int(run.info["input"]["dump"].get("num_examples") or 0) or content.baseline_texts
    number = min(content.baseline_texts, total)
    model = _model(_part(recorded, "model"))
    if content.baseline_model is not None:
        model |= {"name": content.baseline_model, "revision": None}
    if other_files(recorded, model):
        raise ConfigError(
            f"{run.place}: {model['name']} has other files now than when it was captured, so the "
            "baselines would be of another model. Give the model of the run as baseline_model, or "
            "make the run anew"
        )
    shared = {**_part(content.capture, "model"), **_part(settings.sections["capture"], "model")}
    model |= _chosen(shared, ("device_map", "trust_remote_code"))
    dataset = _chosen(_part(recorded, "dataset"), ("path", *_DATASET))
    if content.texts is not None:
        dataset |= content.texts.model_dump(include={"path", "streaming"}, exclude_unset=True)
    if dataset.get("streaming"):
        dataset["max_samples"] = number
    else:
        spread = _part(recorded, "dataset").get("spread_samples") is not None
        most = dataset.get("max_samples") if spread else total
        dataset |= {"max_samples": most, "spread_samples": number}
    if kind == RANDOM:
        model |= {"random_weights": True, "random_seed": draw}
    else:
        dataset |= {"path": "synthetic:shuffled", "synthetic": {"texts": dataset["path"]}}
    return {
        "dataset": dataset,
        "model": model,
        "tokenizer": _chosen(_part(recorded, "tokenizer"), _TOKENIZER),
        "inference": _chosen(_part(recorded, "inference"), ("batch_size",)),
        "capture": _capture(_part(recorded, "capture"), run.info, number, total),
        "output": _chosen(_part(recorded, "output"), ("vector_dtype",)),
    }


def _analysis_fields(run: FinishedRun, settings: StudySettings) -> dict[str, Any]:
    """The settings of the analysis of the run, with its bins and its heads."""
    recorded = run.settings
    fields = {field: recorded[field] for field in ANALYSIS_FIELDS if field in recorded}
    if run.info.get("not_analysed"):  # the same heads, if some were chosen
        fields["layers"] = sorted(set(run.head_metrics["layer"].tolist()))
        fields["heads"] = sorted(set(run.head_metrics["q_head"].tolist()))
    if run.info.get("bin_size"):
        fields["bin_size"] = run.info["bin_size"]
    if main_plasticity(run) is AT_ONE_POSITION:  # baselines are compared in nothing else then
        fields["original_columns"] = False
    shared = {**settings.content.analysis, **settings.sections["analysis"]}
    return fields | _chosen(shared, ("max_workers", "engine", "ray_address"))


@contextmanager
def recorded_places() -> Iterator[None]:
    """Say in an error about the capture of a baseline how a model or texts that moved are given."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{error} (--baseline_model and --texts give a model and texts that are not where the "
            "capture found them)"
        ) from error


def _part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return dict(found) if isinstance(found, Mapping) else {}


def _chosen(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The values with these names that are recorded; the others keep their defaults."""
    return {name: values[name] for name in names if values.get(name) is not None}


def _model(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The model as it was loaded: at its commit, with its precision."""
    dtype = recorded.get("dtype")
    return {
        "name": recorded["name"],
        "revision": recorded.get("commit") or recorded.get("revision"),
        "dtype": dtype if dtype in get_args(Dtype) else "auto",
        **_chosen(recorded, _MODEL),
    }


def _capture(
    recorded: Mapping[str, Any], info: Mapping[str, Any], number: int, total: int
) -> dict[str, Any]:
    """The section `capture` for `number` of the `total` texts."""
    found = _chosen(recorded, _CAPTURE)
    if not found.get("head_sampling"):  # the heads of the run, which may be some of the capture
        found |= _chosen(info.get("config") or {}, ("layers", "heads"))
    if recorded.get("attended_keys") == 0:
        found["attended_keys"] = 0
    sampler = _part(recorded, "sampler")
    chosen = _part(sampler, "chosen")
    size = chosen.get("min_bucket_size") or recorded.get("min_bucket_size")
    if size is not None:
        found["min_bucket_size"] = size
    kept = _chosen(sampler, ("type", "seed"))
    if kept.get("type") != "auto":
        rate = float(sampler.get("base_rate") or 1.0)
        factor = _more_rows(rate, number, total)
        kept["base_rate"] = rate * factor
        if sampler.get("key_base_rate") is not None:
            kept["key_base_rate"] = float(sampler["key_base_rate"]) * factor
    return found | {"sampler": kept}


def _more_rows(rate: float, number: int, total: int) -> float:
    """By how much the rate of a sampler grows, because there are fewer texts.

    A bucket has as many queries from `number` texts as it has from `total` texts, but no more than
    128 if the rate itself does not give more.
    """
    wanted = min(rate * total, max(rate * number, float(QUERIES_PER_BUCKET)))
    return wanted / (rate * number)
