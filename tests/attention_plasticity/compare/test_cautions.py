"""What a reader of a comparison must know: methods, contexts, samples, texts and heads."""

import pytest

from attention_plasticity.compare.cautions import (
    head_cautions,
    obstacles,
    pairing_cautions,
    run_cautions,
)
from attention_plasticity.compare.runs import NamedRun, minus_first
from helpers.plain_runs import edit_info, edit_table, opened, small_models
from helpers.run_tables import metrics_table, write_run

LAYOUT = {"num_layers": 5, "num_q_heads": 6, "num_k_heads": 2}


@pytest.fixture
def folders(tmp_path):
    """Three runs with plasticity over a bucket only."""
    return [write_run(tmp_path / name, model=f"owner/{name}") for name in "abc"]


def named(folders):
    return [opened(folder, label) for folder, label in zip(folders, "abc", strict=False)]


def told(folders):
    """The cautions about means; the last is about buckets."""
    found = [caution.text for caution in run_cautions(named(folders))]
    assert "no RoPE-aligned plasticity, so plasticity over a bucket" in found[-1]
    return found[:-1]


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"query_model": "full"}, 1),
        ({"pair_sampling": "context"}, 1),
        ({"pair_sampling": "local", "max_rel_dist": 0.1}, 1),
        ({"max_rel_dist": 0.1}, 0),  # matters to local pairs only
    ],
)
def test_other_methods_are_obstacles(settings, count, tmp_path):
    pair = [write_run(tmp_path / "a"), write_run(tmp_path / "b", **settings)]
    found = obstacles(named(pair))
    assert len(found) == count
    for caution in found:
        assert "differs: a " in caution.text
        assert "; analyse the dumps again with the same " in caution.text
    (pair[1] / "run.json").unlink()
    assert not obstacles(named(pair))


def test_what_is_not_equal_is_noted(folders):
    assert told(folders) == []
    metrics_table().assign(q_position_max=99).to_csv(folders[0] / "head_metrics.csv", index=False)
    kinds = {"few_texts": "Fewer than 4 texts.", "attended_unknown": "Of attended pairs."}
    edit_info(folders[1], warnings=[{"kind": kind, "text": text} for kind, text in kinds.items()])
    edit_info(folders[1], heads__not_captured=5, heads__failed=1)
    (folders[2] / "run.json").unlink()
    notes = told(folders)
    assert "different contexts (100 to 768 tokens)" in notes[0]
    assert notes[1:] == [
        "b: 5 heads were not captured.",
        "b: 1 head failed.",
        "b: Fewer than 4 texts.",
        "c: no run.json, so the settings are not known.",
    ]


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({"bin_size": 256}, "different bins (a 256, b 512). "),
        (
            {"input__dump__sampler": {"type": "log_uniform", "base_rate": 16.0, "seed": 1}},
            "different samplers (a log_uniform, base_rate 16.0, b uniform, base_rate 4.0, "
            "key_base_rate 8.0). Means over captured queries",
        ),
        (
            {"config__layers": [0, 1, 2], "config__heads": [3]},
            "different chosen heads (a layers 0-2, heads 3, b all). The means go over",
        ),
        ({"input__dump__sampler": None, "input__dump__bucket_type": None}, None),
    ],
)
def test_different_samples_are_noted(changes, caution, tmp_path):
    sampler = {"type": "uniform", "base_rate": 4.0, "key_base_rate": 8.0, "seed": 0}
    pair = [write_run(tmp_path / name) for name in "ab"]
    for folder in pair:
        edit_info(folder, bin_size=512, input__dump__min_bucket_size=512)
        edit_info(folder, input__dump__sampler=sampler)
    edit_info(pair[0], **changes)
    found = told(pair)
    assert len(found) == (0 if caution is None else 1)
    if caution is not None:
        assert f"The runs have {caution}" in found[0]


def test_other_texts_are_noted(tmp_path):
    runs = small_models(tmp_path, 3, "aab")
    [caution] = pairing_cautions(runs)
    assert caution.text.startswith(
        "m2: not compared text by text with m0, because the texts differ"
    )
    assert caution.concerns == "differences"
    edit_info(runs[1].run.folder, input__texts={"count": 12, "digest": None})
    [unknown] = pairing_cautions([runs[0], opened(runs[1].run.folder, "m1")])
    assert "the original ids of the texts are not known in m1" in unknown.text


@pytest.mark.parametrize(
    ("layout", "left_out", "expected"),
    [
        (LAYOUT, [], None),
        (
            LAYOUT,
            [1],
            "m1 minus m0 is over the 23 heads that both have: m1 23 heads (layer 0: 0-5;",
        ),
        ({**LAYOUT, "num_layers": 6}, [], "m1 minus m0 is a difference of means over different"),
    ],
)
def test_other_heads_are_noted(layout, left_out, expected, tmp_path):
    runs = small_models(tmp_path, 2, "aa")
    folder = edit_info(runs[1].run.folder, head_layout=layout)
    known = {"ap_aligned": lambda table: table["ap_aligned"].mask(table["layer"].isin(left_out))}
    edit_table(folder, "metrics", lambda table: table.assign(**known))
    found = head_cautions(minus_first([runs[0], opened(folder, "m1")]))
    assert len(found) == (expected is not None)
    if expected:
        assert found[0].text.startswith(expected)


def test_types_of_layers_that_differ_are_noted(tmp_path):
    [one] = small_models(tmp_path, 1)
    part = NamedRun("part", one.run.select(layer_type="full"))
    texts = [caution.text for caution in run_cautions([one, part])]
    assert any(
        "Compare the rows of one type, not the means over all layers" in text for text in texts
    )
    assert "part: whole run: 1 head failed." in texts
