"""Shares of rotary bands per model, against plain sums over the rows of the CSV files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.family.bands import NOT_TURNED, band_table
from attention_plasticity.family.bands_figure import bands_figure
from attention_plasticity.family.matched import Pair
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.plots.captions import caption_of
from attention_plasticity.tables.finished_run import FinishedRun
from family_models import small_models
from qk_toolkit.errors import ConfigError

GROUPS = 12
SCALES = {"m0": 1.0, "m1": 2.0}
WAVES = {name: [10.0 * scale * 2.0**band for band in range(12)] for name, scale in SCALES.items()}
"""The wavelengths of the bands of two models: twelve, so an eighth has one or two."""
EIGHTHS = (0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    """Two models with bands on the same texts, and one without bands."""
    folder = tmp_path_factory.mktemp("bands")
    names = [run.label for run in small_models(folder, 3)]
    for seed, name in enumerate(WAVES):
        _add_bands(folder / name, WAVES[name], np.random.default_rng(seed))
    return labelled([FinishedRun.open(folder / name) for name in names], names)


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
    info = json.loads((folder / "run.json").read_text())
    info["tables"]["bands"] = "head_bands.csv"
    info["input"]["texts"] = {"count": GROUPS, "digest": "same"}
    (folder / "run.json").write_text(json.dumps(info))


def mean_shares(run: ComparedRun) -> dict[str, float]:
    """Means over heads of the sums of shares, from the rows of the file."""
    found: dict[str, float] = {}
    for row in pd.read_csv(run.run.folder / "head_bands.csv").to_dict("records"):
        name = str(EIGHTHS[row["band"]] + 1)
        found[name] = found.get(name, 0.0) + row["variance_share"] / 29
    return {**found, NOT_TURNED: 0.1}


def groups_of(run: ComparedRun, number: int | None) -> list[float]:
    """Mean influences of the groups over heads."""
    rows = pd.read_csv(run.run.folder / "head_influences.csv")
    name = "unturned_share" if number is None else "band_share"
    place = -1 if number is None else number
    own = rows[(rows["quantity"] == name) & (rows["bin"].fillna(-1) == place)]
    return [own[group].sum() / len(own) for group in GROUP_COLUMNS]


def test_means_and_differences_are_those_of_plain_sums(runs: list[ComparedRun]) -> None:
    table = band_table(runs, [Pair(runs[1], runs[0])])
    assert set(table["run"]) == {"m0", "m1"}
    words = [*map(str, range(1, 9)), NOT_TURNED]
    assert table["eighth"][:9].tolist() == words
    assert set(table["layer_type"]) == {"all", "full_attention", "sliding_attention"}
    table = table[table["layer_type"] == "all"]
    rows = {(row["run"], row["minus"], row["eighth"]): row for row in table.to_dict("records")}
    for run in runs[:2]:
        means = mean_shares(run)
        for name in words:
            assert rows[run.label, "", name]["mean"] == pytest.approx(means[name], abs=1e-12)
            assert rows[run.label, "", name]["heads"] == 29
        ends = [rows[run.label, "", "1"][name] for name in ("shortest", "longest")]
        assert ends == [10.0 * SCALES[run.label], 20.0 * SCALES[run.label]]
        assert math.isnan(rows[run.label, "", NOT_TURNED]["longest"])
    for number in (3, None):
        found = rows["m0", "", NOT_TURNED if number is None else str(number + 1)]
        spread = math.sqrt(sum(value**2 for value in groups_of(runs[0], number)))
        assert found["standard_error"] == pytest.approx(spread)
        reach = spread * stats.t.ppf(0.975, GROUPS - 1)
        assert found["high"] - found["mean"] == pytest.approx(reach)
    both = [groups_of(run, 0) for run in (runs[1], runs[0])]
    spread = math.sqrt(sum((a - b) ** 2 for a, b in zip(*both, strict=True)))
    found = rows["m1", "m0", "1"]
    assert found["standard_error"] == pytest.approx(spread)
    assert found["mean"] == pytest.approx(mean_shares(runs[1])["1"] - mean_shares(runs[0])["1"])


def test_without_influences_there_are_no_intervals(runs: list[ComparedRun], tmp_path: Path) -> None:
    """As in a run of an earlier version."""
    folder = tmp_path / "old"
    folder.mkdir()
    for path in runs[0].run.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    rows = pd.read_csv(folder / "head_influences.csv")
    kept = rows[~rows["quantity"].isin(["band_share", "unturned_share"])]
    kept.to_csv(folder / "head_influences.csv", index=False, na_rep="nan")
    table = band_table(labelled([FinishedRun.open(folder)], ["old"]), [])
    assert table[table["layer_type"] == "all"]["mean"].sum() == pytest.approx(1.0)
    assert table["low"].isna().all()


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_the_figure_has_a_line_per_model(runs: list[ComparedRun], width: float) -> None:
    pairs = [Pair(runs[1], runs[0])]
    figure = bands_figure(band_table(runs[:2], pairs), runs[:2], width=width)
    assert len(figure.axes) == 2
    assert "difference from m0" in figure.axes[1].get_ylabel()
    caption = caption_of(figure)
    assert caption is not None
    assert "the difference of the same heads from m0" in caption
    assert "m1: 20–40, 80–80," in caption
    assert len(bands_figure(band_table(runs[:2], []), runs[:2], width=width).axes) == 1
    with pytest.raises(ConfigError, match="nothing to draw"):
        bands_figure(band_table(runs[2:], []), runs[2:])
