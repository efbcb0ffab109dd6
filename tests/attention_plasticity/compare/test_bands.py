"""Shares of rotary bands, against plain sums over the rows of the CSV files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.compare.bands import NOT_TURNED, wavelengths
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.compare.summary import summary
from attention_plasticity.metrics import GROUP_COLUMNS
from plain_runs import STUDENT_11, edit_info, length, opened, rows_of, small_models

GROUPS = 12
SCALES = {"m0": 1.0, "m1": 2.0}
WAVES = {name: [10.0 * scale * 2.0**band for band in range(12)] for name, scale in SCALES.items()}
"""The wavelengths of the bands of two models: twelve, so an eighth has one or two."""
EIGHTHS = (0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[NamedRun]:
    """Two models with bands on the same texts, and one without bands."""
    folder = tmp_path_factory.mktemp("bands")
    models = small_models(folder, 3)
    for seed, name in enumerate(WAVES):
        _add_bands(folder / name, WAVES[name], np.random.default_rng(seed))
    return [opened(one.run.folder, one.label) for one in models]


def _add_bands(folder: Path, waves: list[float], rng: np.random.Generator) -> None:
    """Shares that sum to .9 in every head, and influences of 12 groups on each eighth."""
    heads = pd.read_csv(folder / "head_metrics.csv")[["layer", "q_head", "k_head"]]
    bands, rows = [], []
    for layer, head, key_head in heads.to_numpy().tolist():
        shares = rng.dirichlet(np.ones(len(waves))) * 0.9
        ids = {"layer": layer, "q_head": head, "k_head": key_head}
        for band, wave in enumerate(waves):
            share = {"variance_share": shares[band], "wavelength": wave, "norm_product": 1.0}
            bands.append({**ids, "band": band, **share})
        for number in {*EIGHTHS, None}:
            influences = dict.fromkeys(GROUP_COLUMNS, 0.0)
            influences |= dict(zip(GROUP_COLUMNS, rng.normal(0, 0.01, GROUPS), strict=False))
            what = {"quantity": "unturned_share" if number is None else "band_share"}
            value = {"bin": math.nan if number is None else number, "value": 0.0}
            rows.append({**ids, **what, **value, "n_groups": GROUPS, **influences})
    pd.DataFrame(bands).to_csv(folder / "head_bands.csv", index=False)
    file = folder / "head_influences.csv"
    pd.concat([pd.read_csv(file), pd.DataFrame(rows)]).to_csv(file, index=False, na_rep="nan")
    edit_info(folder, tables__bands="head_bands.csv")
    edit_info(folder, input__texts={"count": GROUPS, "digest": "same"})


def vector(run: NamedRun, number: int | None) -> np.ndarray:
    """Share and influences of an eighth as means over heads, from the rows of the files."""
    name = "unturned_share" if number is None else "band_share"
    influences = [
        [float(row[group]) for group in GROUP_COLUMNS]
        for row in rows_of(run.run.folder, "influences")
        if row["quantity"] == name and (number is None or float(row["bin"]) == number)
    ]
    assert len(influences) == 29
    share = sum(
        float(row["variance_share"]) / 29
        for row in rows_of(run.run.folder, "bands")
        if EIGHTHS[int(row["band"])] == number
    )
    return np.array([0.1 if number is None else share, *np.mean(influences, axis=0)])


@pytest.mark.parametrize("number", [0, 1, 7, None])
def test_shares_and_errors_are_those_of_plain_sums(
    runs: list[NamedRun], number: int | None
) -> None:
    table = summary(runs, "band").set_index(["run", "minus", "group"])
    name = NOT_TURNED if number is None else str(number + 1)
    zero, one = (vector(run, number) for run in runs[:2])
    for place, (share, *groups) in (
        (("m0", "", name), zero),
        (("m1", "", name), one),
        (("m1", "m0", name), one - zero),
    ):
        row, error = table.loc[place], length(groups)
        assert row["mean"] == pytest.approx(share, abs=1e-12)
        assert row["se"] == pytest.approx(error, abs=1e-12)
        assert row["high"] - row["mean"] == pytest.approx(STUDENT_11 * error, rel=1e-8)


def test_eighths_have_the_wavelengths_of_their_bands(runs: list[NamedRun]) -> None:
    found = wavelengths(runs[1].run)
    assert list(found) == [str(place) for place in range(1, 9)]
    for number in range(8):
        own = [wave for wave, place in zip(WAVES["m1"], EIGHTHS, strict=True) if place == number]
        assert found[str(number + 1)] == (min(own), max(own))
    assert wavelengths(runs[2].run) == {}
