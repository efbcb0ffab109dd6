"""Whether the model of a capture has other files now than when it was captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qk_sniffer.capture.folder import plan_in
from qk_sniffer.config import CaptureConfig
from qk_study.plan import Part
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.model_files import files_hash


def files_now(model: Mapping[str, Any]) -> str | None:
    """The hash of the files of a model; None for one on the Hub, and for a GGUF file."""
    name = str(model["name"])
    if model.get("gguf_file") is not None or name.lower().endswith(".gguf"):
        return None
    return files_hash(user_path(name))


def recorded_files(capture: Mapping[str, Any] | None) -> str | None:
    """The hash of the files of the model in the plan of a capture; None if it has none."""
    model = (capture or {}).get("model")
    return model.get("files") if isinstance(model, Mapping) else None


def weights_changed(part: Part, analysed: Mapping[str, Any] | None = None) -> bool:
    """Whether the model has other files than in the dump of a part, as far as both are known.

    `analysed` is what the run says about its dump, which may have been removed.
    """
    assert isinstance(part.config, CaptureConfig)
    then = recorded_files(plan_in(user_path(part.folder)) or (analysed or {}).get("capture"))
    now = None if then is None else files_now(part.config.model.model_dump())
    return now is not None and now != then


def require_same_weights(place: str, capture: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` if the model of the baselines of a run is not that of the run."""
    then, now = recorded_files(capture), files_now(model)
    if None not in (then, now) and then != now:
        raise ConfigError(
            f"{place}: {model['name']} has other files now than when it was captured, so the "
            "baselines would be of another model. Give the model of the run as baseline_model, or "
            "make the run anew"
        )
