"""Public functions about position and normality. They are in `attention_plasticity.numeric`."""

from attention_plasticity.numeric.normality import (
    compute_first_component_residual_stats,
    compute_noise_normality_stats,
)
from attention_plasticity.numeric.position import (
    LinearFit,
    compute_scalar_position_predictability,
    fit_multioutput_linear_regressor,
    make_pos_rotation,
    orientation_from_keys,
)

__all__ = [
    "LinearFit",
    "compute_first_component_residual_stats",
    "compute_noise_normality_stats",
    "compute_scalar_position_predictability",
    "fit_multioutput_linear_regressor",
    "make_pos_rotation",
    "orientation_from_keys",
]
