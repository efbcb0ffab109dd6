"""Parts of the context and shares of rotary bands, against plain sums over the CSV files."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.compare.bands import NOT_TURNED, wavelengths
from attention_plasticity.compare.lengths import fifth_parts, length_parts, part_start
from attention_plasticity.compare.summary import summary
from attention_plasticity.metrics import GROUP_COLUMNS
from helpers.plain_runs import (
    STUDENT_11,
    edit_info,
    length,
    mean_vector,
    opened,
    rows_of,
    small_models,
)
from helpers.report_runs import NEAR
from helpers.run_tables import add_bins, add_errors, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return small_models(tmp_path_factory.mktemp("lengths"), 2, "aa")


def test_the_parts_of_long_and_short_contexts():
    names = {tokens: [part.name for part in length_parts(tokens)] for tokens in (16384, 131072)}
    assert names[16384] == ["0–2K", "2–4K", "4–8K", "8–16K"]
    assert names[131072] == ["0–8K", "8–16K", "16–32K", "32–64K", "64–128K"]
    assert [part.name for part in length_parts(131073)][-1] == "128–256K"
    assert [part.name for part in length_parts(16385)] == ["0–8K", "8–16K", "16–32K"]
    assert [part.name for part in length_parts(896)] == ["0–128", "128–256", "256–512", "512–1K"]
    for tokens in (1, 2, 100, 8192, 40_000):
        parts = length_parts(tokens)
        assert parts[0].start == 0
        assert parts[-1].start < tokens <= parts[-1].end
        assert [part_start(part.name) for part in parts] == [part.start for part in parts]
    assert [part_start(part.name) for part in fifth_parts(100)] == [0, 20, 40, 60, 80]


def expected(folder, bins, first, start_near):
    """Value and error of the metrics of a part, whose drops are from another part.

    Near keys have values from bin 2 on.
    """
    own, pooled, start, start_pooled = (
        mean_vector(folder, quantity, part)  # (17,) value and influences
        for part in (bins, first)
        for quantity in ("ap_bin", "ap_bin_pooled")
    )
    vectors = {
        "ap_aligned": own,
        "ap_phase": pooled - own,
        "ap_aligned_drop": start - own,
        "ap_phase_drop": start_pooled - start - (pooled - own),
    }
    near = bins if bins.start >= NEAR else range(NEAR, bins.stop)
    vectors["ap_aligned_near"] = mean_vector(folder, "ap_bin_near", near)
    if start_near is not None:
        begin = mean_vector(folder, "ap_bin_near", start_near)
        vectors["ap_aligned_near_drop"] = begin - vectors["ap_aligned_near"]
    return {name: (vector[0], length(vector[1:])) for name, vector in vectors.items()}


@pytest.mark.parametrize(
    ("by", "part", "bins", "first", "start_near"),
    [
        ("length", "128–256", range(2, 4), range(1, 2), None),  # bin 0 has no value
        ("length", "512–1K", range(8, 14), range(1, 2), range(2, 4)),
        # bin b is at 64 b + 32 of 896 tokens
        ("fifth", "20–40 %", range(3, 6), range(1, 3), range(2, 3)),
    ],
)
def test_values_and_errors_are_those_of_plain_sums(runs, by, part, bins, first, start_near):
    table = summary(runs, by)
    chosen = (table["run"] == "m1") & (table["minus"] == "") & (table["group"] == part)
    rows = table[chosen].set_index("metric")
    plain = expected(runs[1].run.folder, bins, first, start_near)
    assert set(rows.index) == set(plain)
    for metric, (value, error) in plain.items():
        row = rows.loc[metric]
        assert row["mean"] == pytest.approx(value, abs=1e-12)
        assert row["se"] == pytest.approx(error, abs=1e-12)
        assert row["high"] - row["mean"] == pytest.approx(STUDENT_11 * error, rel=1e-8)
        assert row["heads"] == 29
    if by == "fifth":
        metrics = {"ap_aligned", "ap_phase", "ap_aligned_near"}
        assert set(table[table["group"] == "0–20 %"]["metric"]) == metrics


def test_near_keys_of_other_contexts_are_not_compared(runs, tmp_path):
    """Their distances are those of the first fifth of each run."""
    copied = shutil.copytree(runs[1].run.folder, tmp_path / "other")
    edit_info(copied, longest_text=1500)
    table = summary([runs[0], opened(copied, "other")], "length")
    assert not table["metric"].str.contains("near").any()
    assert summary([runs[0]], "length")["metric"].str.contains("near").any()


GROUPS = 12
SCALES = {"m0": 1.0, "m1": 2.0}
WAVES = {name: [10.0 * scale * 2.0**band for band in range(12)] for name, scale in SCALES.items()}
"""The wavelengths of the bands of two models: twelve, so an eighth has one or two."""
EIGHTHS = (0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7)


@pytest.fixture(scope="module")
def banded(tmp_path_factory):
    """Two models with bands on the same texts, and one without bands."""
    folder = tmp_path_factory.mktemp("bands")
    models = small_models(folder, 3)
    for seed, name in enumerate(WAVES):
        _add_bands(folder / name, WAVES[name], np.random.default_rng(seed))
    return [opened(one.run.folder, one.label) for one in models]


def _add_bands(folder, waves, rng):
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


def vector(run, number):
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
def test_shares_and_errors_are_those_of_plain_sums(banded, number):
    table = summary(banded, "band").set_index(["run", "minus", "group"])
    name = NOT_TURNED if number is None else str(number + 1)
    zero, one = (vector(run, number) for run in banded[:2])
    for place, (share, *groups) in (
        (("m0", "", name), zero),
        (("m1", "", name), one),
        (("m1", "m0", name), one - zero),
    ):
        row, error = table.loc[place], length(groups)
        assert row["mean"] == pytest.approx(share, abs=1e-12)
        assert row["se"] == pytest.approx(error, abs=1e-12)
        assert row["high"] - row["mean"] == pytest.approx(STUDENT_11 * error, rel=1e-8)


def test_eighths_have_the_wavelengths_of_their_bands(banded):
    found = wavelengths(banded[1].run)
    assert list(found) == [str(place) for place in range(1, 9)]
    for number in range(8):
        own = [wave for wave, place in zip(WAVES["m1"], EIGHTHS, strict=True) if place == number]
        assert found[str(number + 1)] == (min(own), max(own))
    assert wavelengths(banded[2].run) == {}


def test_values_by_distance_are_means_over_heads(tmp_path):
    """A group is the middle of the distances in tokens, so runs with other bins can be compared."""
    folder = add_errors(add_bins(write_run(tmp_path / "run")))
    table = summary([folder], "distance").set_index("group")
    own = pd.read_csv(folder / "head_distance.csv")
    rows = pd.read_csv(folder / "head_influences.csv").query("quantity == 'ap_distance'")
    assert list(table.index) == ["256", "512", "768"]
    for number, group in enumerate(table.index, start=1):
        mean = own[own["distance_bin"] == number]["plasticity"].mean()
        assert table.loc[group, "mean"] == pytest.approx(mean)
        shares = rows[rows["bin"] == number][list(GROUP_COLUMNS)].mean()
        assert table.loc[group, "se"] == pytest.approx(math.sqrt((shares**2).sum()))
    assert set(table["metric"]) == {"ap_aligned"}
