"""Why values of a head are missing: one head for every reason."""

import math

import numpy as np
import pytest

from attention_plasticity import analyze_head, open_sample
from attention_plasticity.measure import plasticity, seeds
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.measure.plasticity import EMPTY_FIFTH, NO_COUNTS
from attention_plasticity.measure.seeds import FEW_QUERIES, ONE_DIMENSION, ONE_POSITION
from attention_plasticity.metrics import TABLES
from attention_plasticity.read.layer import SINGLE_EXAMPLE
from dumps import head_rows
from head_pairs import analyze, without_rope, write_pair
from helpers.attention_dumps import Layer, make_attention_dump
from reference_checks import assert_reasons_are_complete, influences_of


def several(**changes):
    """600 rows of eight texts."""
    return {**head_rows(n=600, d=4, examples=8, seed=1), **changes}


def one_text():
    """600 rows of one text."""
    return head_rows(n=600, d=4, examples=1, seed=1)


def own_texts(rows):
    return {**rows, "example_id": np.arange(len(rows["example_id"]))}


def flat(rows, dimensions):
    vectors = rows["vectors"].copy()
    vectors[:, dimensions] = 1.0
    return {**rows, "vectors": vectors}


def chosen(rows, which):
    return {name: values[which] for name, values in rows.items()}


def moved(rows, kilotokens):
    position = rows["position"] + 1024 * kilotokens
    return {**rows, "position": position, "bucket": position // 1024}


CASES = {
    "one position": (
        lambda: (own_texts(several(position=np.full(600, 900))), several()),
        {},
        {"q_mae_ratio": ONE_POSITION},
    ),
    "three queries": (
        lambda: (chosen(several(), slice(3)), several()),
        {},
        {"q_resid0_kurt": FEW_QUERIES, "q_noise_med_abs_kurt": FEW_QUERIES},
    ),
    "one dimension": (
        lambda: (head_rows(n=200, d=1, examples=8), head_rows(n=200, d=1, examples=8, seed=2)),
        {},
        {"q_noise_med_ks_p": ONE_DIMENSION, "q_noise_med_abs_skew": ONE_DIMENSION},
    ),
    "queries of the first bin": (
        lambda: (several(), several()),
        {"bin_size": 2048},
        {"ap_aligned": plasticity.NO_QUERY_BIN, "ap_phase_se": plasticity.NO_QUERY_BIN},
    ),
    "keys after the queries": (
        lambda: (moved(several(), 1), moved(several(), 3)),
        {"bin_size": 1024},
        {"ap_overall": seeds.NO_EARLIER_KEYS, "ap_aligned": plasticity.NO_EARLIER_KEYS},
    ),
    "keys of different texts": (
        lambda: (several(), own_texts(several())),
        {},
        {"ap_overall": seeds.NO_PAIRS, "ap_pooled": plasticity.NO_PAIRS},
    ),
    "late queries": (
        lambda: (chosen(several(), several()["bucket"] >= 5), several()),
        {},
        {
            "ap_aligned_first20": EMPTY_FIFTH,
            "ap_aligned_drop": "there is no plasticity in the first fifth of the context",
        },
    ),
    "one text": (
        lambda: (one_text(), one_text()),
        {},
        {
            "ap_aligned_se": FEW_GROUPS,
            "ap_aligned_counted": NO_COUNTS,
            "ap_aligned_counted_se": NO_COUNTS,
            "kernel_R2": "the layer has no rotary embedding",
        },
    ),
    "one sequence": (
        lambda: (several(), several()),
        {"single_example": True},
        {"ap_aligned_se": SINGLE_EXAMPLE, "n_text_groups": SINGLE_EXAMPLE},
    ),
}


@pytest.mark.parametrize(("heads", "settings", "reasons"), CASES.values(), ids=CASES)
def test_every_missing_value_has_its_reason(tmp_path, heads, settings, reasons):
    result = analyze(without_rope(write_pair(tmp_path, *heads())), **settings)
    missing = result.missing["head_metrics"]
    assert {name: missing[name] for name in reasons} == reasons
    assert_reasons_are_complete(result)


def heads_of_all_kinds(tmp_path):
    """Heads with many, few and unknown texts, with and without a window."""
    yield analyze_head(14, 2, dump=open_sample())
    for number, layer in enumerate((Layer(), Layer(window=14), Layer(window=16, chunked=True))):
        for texts in (2, 3, 5, 18):
            entry = layer.entry(0) | {"rope": True, "rotary": {"frequencies": [1.0, 0.1]}}
            root = tmp_path / f"{number} {texts}"
            how = {"layer": layer, "texts": texts, "received": True, "share": 0.6}
            make_attention_dump(root, **how, manifest={"layers": [entry]})
            yield analyze(root, bin_size=16)
    yield analyze(root, single_example=True)


def test_an_error_belongs_to_a_value_without_bias(tmp_path):
    """In every table: a value with an error is known, and it is the value of its influences."""
    checked = set()
    for result in heads_of_all_kinds(tmp_path):
        assert_reasons_are_complete(result)
        of_heads = influences_of(result)
        for kind, columns in {"head_metrics": result.metrics, **result.tables}.items():
            for name in columns:
                assert not name.endswith(("_bias", "_corrected"))
                if not name.endswith("_se"):
                    continue
                value = name.removesuffix("_se")
                pairs = (columns[value], columns[name])
                rows = [pairs] if kind == "head_metrics" else zip(*pairs, strict=True)
                for number, error in rows:
                    assert math.isfinite(number) or math.isnan(error), (kind, name)
                    if kind in ("head_metrics", "drift", "roles") and math.isfinite(error):
                        checked.add(value)
                        if not value.startswith("repeated_"):
                            assert of_heads[value, None]["value"] == number
                            assert of_heads[value, None]["n_groups"] >= 4
    missing = {
        metric.error_of
        for kind in ("head_metrics", "drift", "roles")
        for metric in TABLES[kind].columns
        if metric.error_of is not None and not metric.column.startswith("repeated_")
    } - checked
    assert missing == set()
