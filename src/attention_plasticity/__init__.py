"""Attention plasticity: how flexibly attention heads choose between keys as context grows.

Names are imported when first used, so that `import attention_plasticity` stays light.
"""

TYPE_CHECKING = False  # nothing is imported here: an interruption meets a command's own handling
__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from attention_plasticity.api import Run, analyze_dump, open_run
    from attention_plasticity.config import RunnerConfig, load_config, make_config
    from attention_plasticity.demo.sample import open_sample
    from attention_plasticity.head_analysis import analyze_head
    from attention_plasticity.key_pairs import sample_key_pairs
    from attention_plasticity.plasticity import (
        AttentionPlasticity,
        compute_attention_plasticity,
    )
    from attention_plasticity.results import HeadResult
    from attention_plasticity.statistics import (
        compute_first_component_residual_stats,
        compute_noise_normality_stats,
        compute_scalar_position_predictability,
        fit_multioutput_linear_regressor,
        make_pos_rotation,
        orientation_from_keys,
    )
    from qk_dump.errors import (
        ConfigError,
        DumpError,
        HeadError,
        HubError,
        OutputError,
        ToolkitError,
    )
    from qk_dump.hub import open_dump
    from qk_dump.layout import Dump

_HOME = {
    "attention_plasticity.api": ("Run", "analyze_dump", "open_run"),
    "attention_plasticity.config": ("RunnerConfig", "load_config", "make_config"),
    "attention_plasticity.demo.sample": ("open_sample",),
    "attention_plasticity.head_analysis": ("analyze_head",),
    "attention_plasticity.key_pairs": ("sample_key_pairs",),
    "attention_plasticity.plasticity": ("AttentionPlasticity", "compute_attention_plasticity"),
    "attention_plasticity.results": ("HeadResult",),
    "attention_plasticity.statistics": (
        "compute_first_component_residual_stats",
        "compute_noise_normality_stats",
        "compute_scalar_position_predictability",
        "fit_multioutput_linear_regressor",
        "make_pos_rotation",
        "orientation_from_keys",
    ),
    "qk_dump.errors": (
        "ConfigError",
        "DumpError",
        "HeadError",
        "HubError",
        "OutputError",
        "ToolkitError",
    ),
    "qk_dump.hub": ("open_dump",),
    "qk_dump.layout": ("Dump",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AttentionPlasticity",
    "ConfigError",
    "Dump",
    "DumpError",
    "HeadError",
    "HeadResult",
    "HubError",
    "OutputError",
    "Run",
    "RunnerConfig",
    "ToolkitError",
    "__version__",
    "analyze_dump",
    "analyze_head",
    "compute_attention_plasticity",
    "compute_first_component_residual_stats",
    "compute_noise_normality_stats",
    "compute_scalar_position_predictability",
    "fit_multioutput_linear_regressor",
    "load_config",
    "make_config",
    "make_pos_rotation",
    "open_dump",
    "open_run",
    "open_sample",
    "orientation_from_keys",
    "sample_key_pairs",
]


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
