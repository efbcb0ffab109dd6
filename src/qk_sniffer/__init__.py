"""QK-Sniffer: captures sampled queries and keys of a Hugging Face model.

Names are imported when first used, so that `import qk_sniffer` stays light.
"""

TYPE_CHECKING = False  # nothing is imported here: an interruption meets a command's own handling
if TYPE_CHECKING:
    from typing import Any

    from qk_sniffer.capture import run_capture
    from qk_sniffer.config import CaptureConfig, load_config, make_config
    from qk_sniffer.probing import probe
    from qk_sniffer.samplers import PositionSampler
    from qk_sniffer.tapping import Tap, TappedRows, tap

_HOME = {
    "CaptureConfig": "config",
    "PositionSampler": "samplers",
    "Tap": "tapping",
    "TappedRows": "tapping",
    "load_config": "config",
    "make_config": "config",
    "probe": "probing",
    "run_capture": "capture",
    "tap": "tapping",
}

__all__ = [
    "CaptureConfig",
    "PositionSampler",
    "Tap",
    "TappedRows",
    "load_config",
    "make_config",
    "probe",
    "run_capture",
    "tap",
]


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
