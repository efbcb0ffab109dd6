"""Means over heads, and runs whose heads are a random sample of the heads of a model."""

import json
import math
import shutil

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.figures import caption_of
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.head_means import EligibleHeads, eligible_heads, mean_estimate
from attention_plasticity.tables.intervals import mean_half_width, mean_over_heads
from dumps import make_dump
from runs_here import analyse

LAYERS, HEADS, TEXTS, SAMPLED = 4, 4, 8, 5
TYPES = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
CAPTURED = [(0, 1), (0, 2), (1, 0), (2, 3), (3, 3)]


def manifest(**capture):
    """dump.json of a model with four layers of four heads."""
    settings = {"layers": None, "heads": None, "full_attention_only": False, "head_sampling": None}
    layers = [{"layer": n, "type": name, "rope": False} for n, name in enumerate(TYPES)]
    return {
        "num_layers": LAYERS,
        "num_q_heads": HEADS,
        "num_k_heads": 2,
        "layers": layers,
        "capture": {"capture": settings | capture},
    }


FIVE = {"head_sampling": {"count": SAMPLED, "seed": 0}}
BY_TYPE = {"full_attention": 12, "sliding_attention": 4}


@pytest.mark.parametrize(
    ("dump", "all_heads", "expected"),
    [
        (manifest(**FIVE), True, EligibleHeads(16, BY_TYPE)),
        (manifest(**FIVE, full_attention_only=True), True, EligibleHeads(12, {TYPES[0]: 12})),
        (
            manifest(**FIVE, layers=[1, 2], heads=[0, 1, 3]),
            True,
            EligibleHeads(6, {"full_attention": 3, "sliding_attention": 3}),
        ),
        (manifest(**FIVE), False, None),
        (manifest(layers=[0], heads=[1]), True, None),
        ({}, True, None),
    ],
)
def test_heads_are_a_sample_only_if_the_capture_drew_them(dump, all_heads, expected):
    assert eligible_heads(dump, all_heads=all_heads) == expected


def test_a_mean_of_heads_averages_influences_first():
    rng = np.random.default_rng(0)
    shares = rng.normal(size=(3, len(GROUP_COLUMNS)))
    values = [0.2, math.nan, 0.6]
    mean = mean_estimate(values, shares.tolist(), [8, 0, 6])
    own = shares[[0, 2]].mean(axis=0)
    assert mean.value == pytest.approx(0.4)
    assert (mean.heads, mean.groups) == (2, 6)
    assert mean.influences == pytest.approx(own)
    assert mean.standard_error == mean.text_error == pytest.approx(np.linalg.norm(own))
    assert mean.freedom == 5
    nothing = mean_estimate([math.nan], shares[:1].tolist(), [8])
    assert (nothing.heads, nothing.groups) == (0, 0)
    assert math.isnan(nothing.value)
    assert math.isnan(nothing.standard_error)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    whole = make_dump(
        root / "whole", layers=LAYERS, q_heads=HEADS, k_heads=2, examples=TEXTS, n=900
    )
    names = {f"l{layer:02d}h{head:02d}q" for layer, head in CAPTURED}
    for folder in list(whole.glob("l*q")):
        if folder.name not in names:
            shutil.rmtree(folder)
    (whole / "dump.json").write_text(json.dumps(manifest(**FIVE) | {"eligible_q_heads": 16}))
    runs = {
        "sampled": {},
        "other seed": {"seed": 1},
        "chosen": {"layers": [0, 1, 2]},
    }
    return {name: analyse(whole, root / name, **fields) for name, fields in runs.items()}


def expected_errors(run, name, eligible):
    """Standard errors without and with the choice of heads, by the formula of docs/method.md."""
    rows = run.influences[run.influences["quantity"] == name]
    rows = rows[rows["layer"].isin(run.layer_types)]
    u = rows[list(GROUP_COLUMNS)].to_numpy()  # (heads, groups)
    texts, heads = (u.mean(axis=0) ** 2).sum(), len(u)
    spread = rows["value"].var(ddof=1)
    between = max(0.0, spread - (u**2).sum(axis=1).mean() + texts)
    return math.sqrt(texts), math.sqrt(texts + (1 - heads / eligible) * between / heads)


def test_run_json_and_tables_have_the_choice_of_heads(outcomes):
    run = ap.open_run(outcomes["sampled"].place.folder)
    assert run.eligible_heads == 16
    full = run.select(layer_type="full")
    for found, part, eligible in (
        (run.info["means"], run, 16),
        (run.info["means_by_layer_type"]["full_attention"], full, 12),
    ):
        for name in ("ap_aligned", "ap_aligned_drop"):
            texts, both = expected_errors(part, name, eligible)
            record, mean = found[name], mean_over_heads(part, name)
            assert record["standard_error"] == pytest.approx(both)
            assert record["standard_error_texts"] == pytest.approx(texts)
            assert (record["heads"], record["eligible_heads"]) == (len(part.head_metrics), eligible)
            assert mean.standard_error == pytest.approx(both)
            assert mean.freedom == min(TEXTS, len(part.head_metrics)) - 1
    one = run.info["means_by_layer_type"]["sliding_attention"]["ap_aligned"]
    assert one["standard_error"] is None  # one head has no spread
    assert one["standard_error_texts"] > 0


def test_page_and_figures_have_it(outcomes):
    run = ap.open_run(outcomes["sampled"].place.folder)
    about, tables = run_content(run, "x")
    assert about["groups"][0]["eligible_heads"] == 16
    assert {one["name"]: one["eligible_heads"] for one in about["groups"][1:]} == BY_TYPE
    mean = mean_over_heads(run, "ap_aligned")
    assert about["groups"][0]["means"]["ap_aligned"][1] == pytest.approx(mean_half_width(mean))
    fixed = run_content(ap.open_run(outcomes["chosen"].place.folder), "x")[1]
    half, narrow = (found["mean_0"]["half_width"] for found in (tables, fixed))
    assert (half > narrow).all()
    for kind in ("profile", "plasticity"):
        caption = caption_of(run.plot(kind)) or ""
        assert "over heads, which are a random sample of 16 heads" in caption


def test_differences_contain_the_choice_of_heads(outcomes):
    """Of the differences of heads, as both runs have the same heads."""
    runs = [ap.open_run(outcomes[name].place.folder) for name in ("sampled", "other seed")]
    table = ap.summary(runs, None, ["ap_aligned"], labels=["a", "b"])
    [row] = table[table["minus"] == "a"].to_dict("records")
    a, b = (run.influences[run.influences["quantity"] == "ap_aligned"] for run in runs)
    values = b["value"].to_numpy() - a["value"].to_numpy()
    shares = [part[list(GROUP_COLUMNS)].to_numpy() for part in (b, a)]
    texts = sum((u.mean(axis=0) ** 2).sum() for u in shares)
    own = sum((u**2).sum(axis=1).mean() for u in shares)
    between = max(0.0, values.var(ddof=1) - own + texts)
    expected = math.sqrt(texts + (1 - 5 / 16) * between / 5)
    assert row["se"] == pytest.approx(expected)
    assert row["heads"] == 5
