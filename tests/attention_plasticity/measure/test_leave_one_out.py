"""Plasticity in bins against fits from the rows without each group: values, errors, influences."""

import math

import numpy as np
import pytest

from attention_plasticity import make_config
from attention_plasticity.metrics import GROUP_COLUMNS
from head_pairs import analyze
from helpers.attention_dumps import Layer, make_attention_dump
from reference_bins import reference_bins
from reference_checks import (
    assert_influences,
    assert_quantity,
    assert_reasons_are_complete,
    influences_of,
)

HALVES = {"rotary": {"frequencies": [0.8, 0.05]}}
INTERLEAVED = {"rotary": {"frequencies": [0.8, 0.05], "pairing": "interleaved", "start": 1}}
NO_ROPE = {"rope": False}
LOG = {"log_rate": 8.0, "bucket_size": 2}

CASES = {
    "no RoPE": (Layer(), NO_ROPE, {"texts": 6}, {}),
    "halves": (Layer(), HALVES, {"texts": 5, "share": 0.6}, {}),
    "interleaved, weights": (Layer(), INTERLEAVED, {"texts": 9, **LOG}, {}),
    "local pairs": (Layer(), HALVES, {"texts": 5, "share": 0.7}, {"pair_sampling": "local"}),
    "any pairs, weights": (Layer(), HALVES, {"texts": 6, **LOG}, {"pair_sampling": "context"}),
    "window": (Layer(window=14), HALVES, {"texts": 7, "share": 0.8}, {}),
    "window, weights": (
        Layer(window=20),
        INTERLEAVED,
        {"texts": 8, **LOG},
        {"pair_sampling": "context"},
    ),
    "chunks": (Layer(window=16, chunked=True), HALVES, {"texts": 6, "share": 0.8}, {}),
    "two texts in a group": (Layer(), HALVES, {"texts": 20, "share": 0.3}, {}),
    "three texts": (Layer(), HALVES, {"texts": 3}, {}),
}


@pytest.mark.parametrize(("layer", "rope", "dump", "how"), CASES.values(), ids=CASES)
def test_everything_equals_fits_without_each_group(tmp_path, layer, rope, dump, how):
    """Scores are float32 in the package, so that the last digits differ."""
    manifest = {"layers": [layer.entry(0) | {"rope": True} | rope]}
    received = {"received": True} if "share" in dump or "log_rate" in dump else {}
    root = make_attention_dump(tmp_path, layer=layer, manifest=manifest, **dump, **received)
    settings = {"bin_size": 8, "num_pairs_per_bin": 24, "max_rel_dist": 0.2, **how}
    result = analyze(root, **settings)
    expected = reference_bins(root, make_config(**settings), context=48, cells=dump["texts"] < 7)
    assert ("ap_attended" in expected.metrics) == bool(received)
    for name, quantity in expected.metrics.items():
        assert math.isfinite(quantity.value), name
        assert math.isnan(quantity.error) == (dump["texts"] < 4)
        assert_quantity(result, name, quantity, 1e-6)
    rows = influences_of(result)
    for name, of_bins in expected.bins.items():
        assert len(of_bins) >= (5 if name != "ap_bin_near" else 3)
        for number, quantity in of_bins.items():
            assert_influences(rows[name, number], quantity, 5e-6)
    bins = result.tables["bins"]
    for name, cells in expected.cells.items():
        places = list(zip(bins["q_bin"], bins["k_bin"], strict=True))
        assert set(cells) <= set(places)
        for place, value, error in zip(places, bins[name], bins[f"{name}_se"], strict=True):
            right = cells[place][:2] if place in cells else (math.nan, math.nan)
            np.testing.assert_allclose((value, error), right, rtol=0, atol=1e-5, err_msg=str(place))
    assert_distances(result, expected)
    parts = [rows[f"ap_aligned_drop_{name}", None] for name in ("position", "distance")]
    for name in ("value", *GROUP_COLUMNS):  # exactly, also in every influence
        total = rows["ap_aligned_drop", None][name]
        np.testing.assert_allclose(sum(part[name] for part in parts), total, atol=1e-15)
    assert_reasons_are_complete(result)


def assert_distances(result, expected):
    """The table of distances has the values of cells at equal distances."""
    table = result.tables["distances"]
    numbers = table["distance_bin"]
    assert len(numbers) >= 2
    for name, of_distances in expected.distances.items():
        assert set(of_distances) <= set(numbers)
        for number, value, error in zip(numbers, table[name], table[f"{name}_se"], strict=True):
            known = number in of_distances
            right = of_distances[number][:2] if known else (math.nan, math.nan)
            np.testing.assert_allclose(
                (value, error), right, rtol=0, atol=1e-5, err_msg=str(number)
            )
    for name in ("first20", "last20"):
        assert math.fsum(table[f"{name}_share"]) == pytest.approx(1.0)
