"""QK-Sniffer: captures sampled queries and keys of a Hugging Face model.

Names are imported when first used, so that `import qk_sniffer` stays light.
"""

from qk_toolkit.lazy_names import lazy_names

TYPE_CHECKING = False  # importing `typing` here would delay a command's own signal handlers
if TYPE_CHECKING:
    from qk_sniffer.capture.run import run_capture
    from qk_sniffer.config import CaptureConfig, load_config, make_config
    from qk_sniffer.engines.hf.probing import probe
    from qk_sniffer.notebook import Tap, TappedRows, tap
    from qk_sniffer.sampling.positions import PositionSampler

_MODULES = {
    "qk_sniffer.config": ("CaptureConfig", "load_config", "make_config"),
    "qk_sniffer.engines.hf.probing": ("probe",),
    "qk_sniffer.notebook": ("Tap", "TappedRows", "tap"),
    "qk_sniffer.capture.run": ("run_capture",),
    "qk_sniffer.sampling.positions": ("PositionSampler",),
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

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
