"""The part of the table that a figure of a comparison draws. Figure and caption read it here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.comparison.runs import ALL_LAYERS, main_of, whole_runs
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.main_plasticity import PlasticityColumns

Floats = npt.NDArray[np.float64]

MOST_LINES = 12  # of profiles; with more, types of layers are left out


@dataclass(frozen=True)
class Drawn:
    """Rows and columns of the table of means."""

    rows: pd.DataFrame
    names: tuple[str, ...]
    shown: PlasticityColumns
    without_types: bool = False  # whether rows of types of layers were left out

    @cached_property
    def values(self) -> Floats:
        """(rows, names)."""
        return self.rows[list(self.names)].to_numpy(dtype=np.float64)

    @cached_property
    def halves(self) -> Floats:
        """(rows, names) half widths of the intervals; NaN if an error is not known."""
        errors = self.rows.reindex(columns=[f"{name}_se" for name in self.names])
        return half_width(errors.to_numpy(dtype=np.float64), self.freedom + 1.0)

    @cached_property
    def freedom(self) -> Floats:
        """(rows, names) degrees of freedom of the intervals; NaN if they are not known.

        A table of an earlier version has the groups of texts of the run only.
        """
        columns = [f"{name}_df" for name in self.names]
        if set(columns) <= set(self.rows.columns):
            return self.rows[columns].to_numpy(dtype=np.float64)
        groups = self.rows.reindex(columns=["n_text_groups"]).to_numpy(dtype=np.float64)
        return np.broadcast_to(groups - 1.0, self.values.shape)

    @property
    def halves_of_values(self) -> Floats:
        """(points,) half widths of the values that are drawn."""
        return self.halves[np.isfinite(self.values)]

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """(rows, names) twice: lower and upper ends of the intervals, or the values alone."""
        reach = np.nan_to_num(self.halves)
        return self.values - reach, self.values + reach

    @property
    def types(self) -> list[str]:
        """The type of layers of every row."""
        if "layer_type" not in self.rows:
            return [ALL_LAYERS] * len(self.rows)
        return [str(name) for name in self.rows["layer_type"]]

    @property
    def runs(self) -> list[str]:
        """The names of the runs."""
        return list(dict.fromkeys(self.rows["run"].astype(str)))

    @property
    def not_corrected(self) -> list[str]:
        """The names of the runs that are not corrected for bias."""
        if "corrected" not in self.rows:
            return self.runs
        plain = self.rows.loc[~self.rows["corrected"].astype(bool), "run"]
        return list(dict.fromkeys(plain.astype(str)))


def drawn_profiles(compared: pd.DataFrame) -> Drawn:
    """The fifths of every run, and of every type of layers unless these are too many lines."""
    shown = main_of(compared)
    if len(compared) <= MOST_LINES:
        return Drawn(compared, shown.fifths, shown)
    rows = whole_runs(compared)
    return Drawn(rows, shown.fifths, shown, without_types=len(rows) < len(compared))


def drawn_trajectory(compared: pd.DataFrame) -> Drawn:
    """Plasticity of every run over the whole context, and in the first and last fifth."""
    shown = main_of(compared)
    names = (shown.level, shown.fifths[0], shown.fifths[-1])
    return Drawn(whole_runs(compared), names, shown)


def drawn_drops(compared: pd.DataFrame) -> Drawn:
    """The drop of every run."""
    shown = main_of(compared)
    return Drawn(whole_runs(compared), (shown.drop,), shown)
