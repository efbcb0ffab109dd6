"""Tables of rotary bands and of the rotary kernel, with numbers that are easy to recognise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from run_tables import add_table

BANDS = 5
WAVELENGTHS = (6.0, 30.0, 200.0, 4000.0, 90_000.0)


def bands_table() -> pd.DataFrame:
    """Shares that sum to .9, and other numbers that are easy to recognise."""
    rng = np.random.default_rng(0)
    rows = []
    for layer, head in np.ndindex(2, 3):
        shares = rng.dirichlet(np.ones(BANDS)) * 0.9
        for band, wavelength in enumerate(WAVELENGTHS):
            rows.append(
                {
                    "layer": layer,
                    "q_head": head,
                    "k_head": 0,
                    "band": band,
                    "wavelength": wavelength,
                    "norm_product": 1.0 + band + layer,
                    "norm_product_se": 0.1,
                    "variance_share": shares[band],
                    "variance_share_se": 0.01,
                    "q_concentration": 0.1 * band,
                    "q_concentration_se": 0.02,
                    "k_concentration": 1.0 - 0.1 * band,
                    "k_concentration_se": np.nan,
                    "kernel_amplitude": 0.5 * band,
                    "kernel_phase": 0.1,
                    "n_groups": 8,
                }
            )
    return pd.DataFrame(rows)


def kernel_table() -> pd.DataFrame:
    """The kernel of head 1 varies most; it is 2 below the mean logit."""
    rows = []
    for head, distance in np.ndindex(2, 12):
        logit = -(1.0 + head) * float(distance)
        row = {"layer": 3, "q_head": head, "k_head": 0, "first_distance": 2**distance}
        row |= {"last_distance": 2 ** (distance + 1) - 1, "distance": 2.0**distance}
        row |= {"mean_logit": logit, "mean_logit_se": 0.2, "kernel": logit - 2.0}
        rows.append(row | {"n_pairs": 100, "n_groups": 9})
    return pd.DataFrame(rows)


def add_bands(folder: Path) -> Path:
    """Give a run the tables of bands and of the kernel."""
    add_table(folder, "bands", bands_table())
    return add_table(folder, "kernel", kernel_table())
