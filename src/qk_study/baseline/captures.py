"""The settings of the captures of a baseline, from those that a run records of its own capture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from attention_plasticity.tables.baselines import DUMP_FOLDER, baseline_folder
from qk_sniffer.config import CaptureConfig, Dtype, make_config
from qk_toolkit.errors import ConfigError

QUERIES_PER_BUCKET = 128  # from all texts; a capture with more queries is made smaller

_DATASET = ("name", "revision", "split", "text_column", "id_column")
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
            "dump.json), so the capture cannot be repeated; give the run of a dump that sniff-qk "
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


def baseline_capture(
    name: str, run: Path, info: Mapping[str, Any], texts: int, changes: Mapping[str, Any]
) -> CaptureConfig:
    """The capture of the baseline `name` of a run.

    It has the model, the settings and the first texts of the capture of the run. `changes` are
    values of the sections `model` and `dataset`; a model with another name has no revision.
    """
    recorded = recorded_capture(str(run), info)
    total = int(info["input"]["dump"].get("num_examples") or 0) or texts
    number = min(texts, total)
    model = _model(_part(recorded, "model"))
    if "name" in _part(changes, "model"):
        model["revision"] = None
    model |= _part(changes, "model")
    dataset = _chosen(_part(recorded, "dataset"), ("path", *_DATASET))
    dataset |= _part(changes, "dataset") | {"max_samples": number}
    if name == "random":
        model["random_weights"] = True
    else:
        dataset |= {"path": "synthetic:shuffled", "synthetic": {"texts": dataset["path"]}}
    try:
        return make_config(
            dataset=dataset,
            model=model,
            tokenizer=_chosen(_part(recorded, "tokenizer"), _TOKENIZER),
            inference=_chosen(_part(recorded, "inference"), ("batch_size",)),
            capture=_capture(_part(recorded, "capture"), info, number, total),
            output={
                "data_root": str(baseline_folder(run, name) / DUMP_FOLDER),
                **_chosen(_part(recorded, "output"), ("vector_dtype",)),
            },
            overwrite=bool(changes.get("overwrite")),
        )
    except ConfigError as error:
        raise ConfigError(f"{run}: the recorded capture cannot be repeated: {error}") from error


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
