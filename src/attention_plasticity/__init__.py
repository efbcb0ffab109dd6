"""Attention plasticity: how flexibly attention heads choose between keys as context grows.

Names are imported when first used, so that `import attention_plasticity` stays light.
"""

from qk_toolkit.lazy_names import lazy_names

TYPE_CHECKING = False  # importing `typing` here would delay a command's own signal handlers
__version__ = "0.2.0"

if TYPE_CHECKING:
    from attention_plasticity.api import Run, analyze_dump, open_run, report
    from attention_plasticity.compare.summary import summary
    from attention_plasticity.comparison import Comparison, compare_runs
    from attention_plasticity.config import RunnerConfig, load_config, make_config
    from attention_plasticity.demo.sample import open_sample
    from attention_plasticity.head_analysis import analyze_head
    from attention_plasticity.measure.result import HeadResult
    from attention_plasticity.plasticity import (
        AttentionPlasticity,
        compute_attention_plasticity,
        sample_key_pairs,
    )
    from attention_plasticity.statistics import (
        compute_first_component_residual_stats,
        compute_noise_normality_stats,
        compute_scalar_position_predictability,
        fit_multioutput_linear_regressor,
        make_pos_rotation,
        orientation_from_keys,
    )
    from qk_dump.layout import Dump
    from qk_dump.source import open_dump
    from qk_toolkit.errors import (
        ConfigError,
        DumpError,
        HeadError,
        HubError,
        OutputError,
        StoreError,
        ToolkitError,
    )

_MODULES = {
    "attention_plasticity.api": ("Run", "analyze_dump", "open_run", "report"),
    "attention_plasticity.comparison": ("Comparison", "compare_runs"),
    "attention_plasticity.compare.summary": ("summary",),
    "attention_plasticity.config": ("RunnerConfig", "load_config", "make_config"),
    "attention_plasticity.demo.sample": ("open_sample",),
    "attention_plasticity.head_analysis": ("analyze_head",),
    "attention_plasticity.plasticity": (
        "AttentionPlasticity",
        "compute_attention_plasticity",
        "sample_key_pairs",
    ),
    "attention_plasticity.measure.result": ("HeadResult",),
    "attention_plasticity.statistics": (
        "compute_first_component_residual_stats",
        "compute_noise_normality_stats",
        "compute_scalar_position_predictability",
        "fit_multioutput_linear_regressor",
        "make_pos_rotation",
        "orientation_from_keys",
    ),
    "qk_toolkit.errors": (
        "ConfigError",
        "DumpError",
        "HeadError",
        "HubError",
        "OutputError",
        "StoreError",
        "ToolkitError",
    ),
    "qk_dump.source": ("open_dump",),
    "qk_dump.layout": ("Dump",),
}

__all__ = [
    "AttentionPlasticity",
    "Comparison",
    "ConfigError",
    "Dump",
    "DumpError",
    "HeadError",
    "HeadResult",
    "HubError",
    "OutputError",
    "Run",
    "RunnerConfig",
    "StoreError",
    "ToolkitError",
    "__version__",
    "analyze_dump",
    "analyze_head",
    "compare_runs",
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
    "report",
    "sample_key_pairs",
    "summary",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
