"""The part of the tables that a figure of a comparison draws. Figure and caption read it here.

Captions of the figures of a comparison, as plain text for a paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.comparison.cautions import Concerned, texts_about
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.runs import ALL_LAYERS, ComparedRun, main_of, whole_runs
from attention_plasticity.comparison.scores import correlation_text
from attention_plasticity.metrics import ALIGNED_DROP
from attention_plasticity.plots.shown import capitalised, phase_sentence
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.names import PAIR_WORDS, clean
from qk_toolkit.arrays import Array
from qk_toolkit.formatting import count

MOST_LINES = 12  # of profiles; with more, types of layers are left out
_SETTINGS = ("pair_sampling", "single_example", "equal_texts", "seed")


@dataclass(frozen=True)
class Drawn:
    """Rows and columns of the table of means."""

    rows: pd.DataFrame
    names: tuple[str, ...]
    shown: PlasticityColumns

    @cached_property
    def values(self) -> Array:
        """(rows, names)."""
        return self.rows[list(self.names)].to_numpy(dtype=np.float64)

    @cached_property
    def halves(self) -> Array:
        """(rows, names) half widths of the intervals; NaN if an error is not known."""
        errors = self.rows.reindex(columns=[f"{name}_se" for name in self.names])
        return half_width(errors.to_numpy(dtype=np.float64), self.freedom + 1.0)

    @cached_property
    def freedom(self) -> Array:
        """(rows, names) degrees of freedom of the intervals; NaN if they are not known."""
        columns = [f"{name}_df" for name in self.names]
        return self.rows.reindex(columns=columns).to_numpy(dtype=np.float64)

    @property
    def halves_of_values(self) -> Array:
        """(points,) half widths of the values that are drawn."""
        return self.halves[np.isfinite(self.values)]

    @property
    def ends(self) -> tuple[Array, Array]:
        """(rows, names) twice: lower and upper ends of the intervals, or the values alone."""
        reach = np.nan_to_num(self.halves)
        return self.values - reach, self.values + reach

    @property
    def runs(self) -> list[str]:
        """The names of the runs."""
        return list(dict.fromkeys(self.rows["run"].astype(str)))


@dataclass(frozen=True)
class DrawnProfiles:
    """Rows of the table of profiles: a line per run, and per type of layers."""

    rows: pd.DataFrame
    shown: PlasticityColumns
    without_types: bool = False  # whether rows of types of layers were left out

    @property
    def lines(self) -> list[pd.DataFrame]:
        """The rows of every line."""
        return [line for _, line in self.rows.groupby(["run", "layer_type"], sort=False)]

    @property
    def runs(self) -> list[str]:
        """The names of the runs."""
        return list(dict.fromkeys(self.rows["run"].astype(str)))

    @property
    def has_positions(self) -> bool:
        """Whether the positions of all values are known."""
        return bool(self.rows["position"].notna().all())

    @property
    def halves(self) -> Array:
        """(points,) half widths of the intervals; NaN if they are not known."""
        return self.rows["half_width"].to_numpy(dtype=np.float64)

    @property
    def ends(self) -> tuple[Array, Array]:
        """(points,) twice: lower and upper ends of the intervals, or the values alone."""
        values, reach = self.rows["plasticity"].to_numpy(np.float64), np.nan_to_num(self.halves)
        return values - reach, values + reach


def drawn_profiles(profiles: pd.DataFrame, shown: PlasticityColumns) -> DrawnProfiles:
    """The profiles of runs, and of their types of layers unless these are too many lines."""
    if len(profiles[["run", "layer_type"]].drop_duplicates()) <= MOST_LINES:
        return DrawnProfiles(profiles, shown)
    rows = profiles[profiles["layer_type"] == ALL_LAYERS]
    return DrawnProfiles(rows, shown, without_types=len(rows) < len(profiles))


def drawn_trajectory(compared: pd.DataFrame) -> Drawn:
    """Plasticity of every run over the whole context, and at one position in both fifths."""
    shown = main_of(compared)
    return Drawn(whole_runs(compared), (shown.level, *shown.fifths), shown)


def drawn_drops(compared: pd.DataFrame) -> Drawn:
    """The drop of every run."""
    return Drawn(whole_runs(compared), (ALIGNED_DROP,), AT_ONE_POSITION)


def profiles_caption(data: ComparisonData) -> str:
    """The caption of `profiles`."""
    drawn = drawn_profiles(data.profiles, data.shown)
    what = (
        f"{capitalised(drawn.shown.name)}, by query position: the mean over heads, one line per "
        f"run. {phase_sentence(drawn.shown)}"
    )
    if drawn.without_types:
        what += f" Types of layers are left out, because they need more than {MOST_LINES} lines."
    elif len(drawn.lines) > len(data.runs):
        what += " Lines with gaps are the heads of one type of layers."
    groups = drawn.rows["n_groups"].to_numpy(dtype=np.float64)
    return _caption(data, what, drawn.shown, _errors("Bands", drawn.halves, groups - 1.0), "means")


def trajectory_caption(data: ComparisonData) -> str:
    """The caption of `trajectory`."""
    drawn = drawn_trajectory(data.table)
    parts = ", in its first fifth and in its last fifth" if drawn.shown.fifths else ""
    grey = " Grey: the drop from the first to the last fifth." if drawn.shown.fifths else ""
    what = (
        f"{capitalised(drawn.shown.name)}, over training: the mean over heads over the whole "
        f"context{parts}, one point per checkpoint.{grey} {phase_sentence(drawn.shown)}"
    )
    return _caption(data, what, drawn.shown, _errors_of(drawn), "means")


def scores_caption(data: ComparisonData) -> str:
    """The caption of `scores`."""
    drawn = drawn_drops(data.table)
    what = (
        f"Drop of {drawn.shown.name} from the first to the last fifth of the context, mean over "
        f"heads, against benchmark scores; one point per run. {phase_sentence(drawn.shown)} "
        "Intervals of correlations are 95 % intervals by Fisher's z, with the variance 1/(n - 3) "
        "for Pearson's correlation and (1 + r²/2)/(n - 3) for Spearman's."
    )
    found = [f"Correlation of the {correlation_text(found)}." for found in data.relations]
    told = " ".join([what, *found])
    return _caption(data, told, drawn.shown, _errors_of(drawn), "correlations", "means")


def sample_sentences(data: ComparisonData) -> str:
    """The models, texts and key pairs of the runs, for captions of tables."""
    models = _by_value({run.label: _model(run) for run in data.runs})
    texts = _by_value({run.label: run.run.texts.get("count") for run in data.runs})
    pairs = _by_value({run.label: run.run.pair_sampling for run in data.runs})
    model = f"Models: {_listed(models)}." if len(models) > 1 else f"Model: {next(iter(models))}."
    number, way = next(iter(texts)), str(next(iter(pairs)))
    sentences = [model, f"Texts: {_listed(texts)}." if len(texts) > 1 else ""]
    if len(texts) == 1:
        known = "The number of texts is not recorded." if number is None else ""
        sentences.append(known or f"{count(int(number), 'text')} in every run.")
    if len(pairs) > 1:
        sentences.append(f"Pair sampling: {_listed(pairs)}.")
    elif way in PAIR_WORDS:
        sentences.append(f"Key pairs: {PAIR_WORDS[way]} (pair sampling: {way}).")
    return " ".join(filter(None, sentences))


def _by_value(values: Mapping[str, Any]) -> dict[Any, list[str]]:
    """The labels of the runs that have each value."""
    found: dict[Any, list[str]] = {}
    for label, value in values.items():
        found.setdefault(value, []).append(label)
    return found


def _listed(found: Mapping[Any, Sequence[str]]) -> str:
    """`12 (a, b), 9 (c)`."""
    words = {value: "not recorded" if value is None else clean(str(value)) for value in found}
    return ", ".join(f"{words[value]} ({', '.join(found[value])})" for value in found)


def _model(run: ComparedRun) -> str:
    return clean(run.run.dump.get("model") or "not recorded")


def _caption(
    data: ComparisonData, what: str, shown: PlasticityColumns, errors: str, *concerned: Concerned
) -> str:
    cautions = [clean(text) for text in texts_about(data.cautions, *concerned)]
    lines = [what, "", f"{count(len(data.runs), 'run')}:"]
    settings = [_settings(run, shown) for run in data.runs]
    shared = settings[0] if len(set(settings)) == 1 else None
    for run, own in zip(data.runs, settings, strict=True):
        lines.append(f"- {run_line(run, own if shared is None else '')}")
    if shared:
        lines.append(f"Settings of all runs: {shared}.")
    lines += ["", errors]
    if cautions:
        lines += ["", "Cautions:", *(f"- {text}" for text in cautions)]
    return "\n".join(lines) + "\n"


def run_line(run: ComparedRun, settings: str = "") -> str:
    """`a: model m, 270 heads in 30 layers, context 8,192 tokens, 12 texts`."""
    heads = len(run.run.head_metrics)
    layers = sum(map(len, run.layers.values()))
    parts = [f"model {_model(run)}"]
    parts.append(f"{count(heads, 'head')} in {count(layers, 'layer')}")
    if len(run.layers) > 1:
        types = (f"{len(found)} {type_words(name)}" for name, found in run.layers.items())
        parts[-1] += f" ({', '.join(types)})"
    context = "not known" if math.isnan(run.run.context) else f"{run.run.context:,.0f} tokens"
    parts.append(f"context {context}")
    if texts := run.run.texts.get("count"):
        parts.append(count(int(texts), "text"))
    if settings:
        parts.append(settings)
    return f"{run.label}: {', '.join(parts)}"


def _settings(run: ComparedRun, shown: PlasticityColumns) -> str:
    """`query_model positional, pair_sampling bucket`; empty if they are not recorded.

    Plasticity at one position has bins, and a query model of its own.
    """
    own = run.run.settings
    if shown is AT_ONE_POSITION:
        known = {"bin_size": run.run.info.get("bin_size")}
    else:
        known = {"query_model": own.get("query_model")}
    pairs = "num_pairs_per_bin" if shown is AT_ONE_POSITION else "num_pairs_per_bucket"
    known |= {name: own.get(name) for name in (pairs, *_SETTINGS)}
    return ", ".join(f"{name} {value}" for name, value in known.items() if _is_set(value))


def _is_set(value: object) -> bool:
    return value is not None and value is not False


def _errors_of(drawn: Drawn) -> str:
    """How the intervals of a table of means are made."""
    values = np.isfinite(drawn.values)
    text = _errors("Whiskers", drawn.halves[values], drawn.freedom[values])
    known = np.isfinite(drawn.halves[values]).any()
    if known and drawn.rows.reindex(columns=["eligible_heads"]).notna().to_numpy().any():
        text += (
            " Where heads were sampled at random, the intervals also contain the choice of heads, "
            "and the degrees of freedom are at most the number of heads minus 1."
        )
    return text


def _errors(mark: str, halves: Array, freedom: Array) -> str:
    """How intervals are made, from half widths and degrees of freedom of the drawn values."""
    known = np.isfinite(halves)
    if not known.any():
        return "Standard errors are not known."
    fewest, most = (f"{number:.0f}" for number in (freedom[known].min(), freedom[known].max()))
    listed = fewest if fewest == most else f"{fewest} to {most}"
    where = "" if known.all() else ", where they are known"
    return (
        f"{mark} are 95 % intervals over texts{where}: Student's t with {listed} degrees of "
        "freedom, the groups of texts behind a value minus 1. All heads of a run share their "
        "texts; the influences of a group are averaged over heads first."
    )
