"""Which heads a run will analyse, paired how."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.config import make_config
from attention_plasticity.read.layout import head_layout
from attention_plasticity.run.plan import Group, estimate, make_plan, whole_plan
from dumps import make_dump
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError


def dump_of(root, q, k, layers=(0,), **facts):
    """A dump of empty folders: planning looks at names alone."""
    for layer in layers:
        for kind, heads in (("q", q), ("k", k)):
            for head in heads:
                (root / HeadId(layer, head, kind).folder).mkdir(parents=True)
    if facts:
        write_manifest(root, DumpManifest(**facts))
    return open_dump(root)


def plan(dump, **fields):
    return make_plan(dump, make_config(**fields))


# the layout


@pytest.mark.parametrize(
    ("config", "recorded", "expected", "source"),
    [
        ({}, {"model": "some"}, (3, 4, 2), "counted from the folders"),
        ({}, {"num_layers": 9, "num_q_heads": 8, "num_k_heads": 4}, (9, 8, 4), "from dump.json"),
        ({"num_layers": 7, "num_q_heads": 8, "num_k_heads": 4}, {}, (7, 8, 4), "from the config"),
        ({"num_q_heads": 8}, {"num_k_heads": 2}, (3, 8, 2), "from dump.json"),
        ({}, {"num_layers": 2, "num_q_heads": 4, "num_k_heads": 2}, (3, 4, 2), "from dump.json"),
        ({"num_layers": 2}, {}, (2, 4, 2), "counted from the folders"),
    ],
)
def test_where_the_layout_comes_from(config, recorded, expected, source, tmp_path):
    """Of the config, dump.json and the folders, in this order; more layers may be on disk."""
    dump = dump_of(tmp_path, range(4), range(2), layers=(0, 1, 2), **recorded)
    layout = head_layout(dump, make_config(**config))
    assert (layout.num_layers, layout.num_q_heads, layout.num_k_heads) == expected
    assert source in layout.source
    assert {layer for layer, _ in plan(dump, **config).heads} == set(range(min(3, expected[0])))


EIGHT = {"num_q_heads": 8, "num_k_heads": 2}
FOUR = {"num_q_heads": 4, "num_k_heads": 2}
REFUSED = {
    "key head, config": (range(8), range(4), EIGHT, {}, ["num_k_heads: 2", "l00h02k"]),
    "query head, config": ([0, 4], [0], FOUR, {}, ["num_q_heads: 4", "l00h04q"]),
    "two numbers": ([0], [0], {"num_k_heads": 4}, EIGHT, ["num_k_heads: is 4 in the config, but"]),
    "fewer layers": (
        [0],
        [0],
        {"num_layers": 1},
        {"num_layers": 3},
        ["num_layers: is 1 in the"],
    ),
    "more layers": ([0], [0], {"num_layers": 4}, {"num_layers": 3}, ["but 3 in"]),
    "a sample of queries": ([0, 5], [0, 1], {}, {}, ["Set num_q_heads and num_k_heads"]),
    "a sample of keys": ([0, 1], [1], {}, {}, ["Set num_q_heads and num_k_heads"]),
    "no multiple": (
        range(3),
        range(2),
        {},
        {},
        ["is not a multiple of", "counted from"],
    ),
    "no keys": ([0], [], {}, {}, ["holds no key heads"]),
    "no queries": ([], [0], {}, {}, ["holds no query heads"]),
    "layers": (range(4), range(2), {"layers": "0,3-4"}, {}, ["from 0-0, got 3-4"]),
    "heads": (range(4), range(2), {"heads": [4]}, {}, ["heads: expected numbers from 0-3, got 4"]),
    "none captured": (
        *([0, 1, 2, 5], [0], {"heads": [3, 4]}, {"num_q_heads": 8, "num_k_heads": 1}),
        ["The dump contains layer 0: 0-2,5."],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_that_cannot_be_made_is_refused(name, tmp_path):
    q, k, config, recorded, told = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        plan(dump_of(tmp_path, q, k, **recorded), **config)
    assert "\n" not in str(caught.value)
    for words in told:
        assert words in str(caught.value)


# pairing


def test_a_query_head_without_its_key_head_is_planned_so_that_it_can_fail(tmp_path):
    made = plan(dump_of(tmp_path, [0, 3], [0], num_q_heads=4, num_k_heads=2))
    assert Group(0, 1, (3,)) in made.groups


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 63)), min_size=1),
)
def test_every_captured_query_head_meets_the_key_head_of_its_group(k_heads, per_key, picks):
    q_heads = k_heads * per_key
    captured = {(layer, head % q_heads) for layer, head in picks}
    root = Path("nowhere")
    folders = {HeadId(layer, head, "q"): root for layer, head in captured}
    manifest = DumpManifest(num_layers=4, num_q_heads=q_heads, num_k_heads=k_heads)

    made = make_plan(Dump(root, folders, manifest), make_config())

    for group in made.groups:
        assert {q_head // (q_heads // k_heads) for q_head in group.q_heads} == {group.k_head}
    keys = [(group.layer, group.k_head) for group in made.groups]
    assert len(set(keys)) == len(keys)
    assert made.heads == sorted(captured)
    everything = {(layer, head) for layer in range(4) for head in range(q_heads)}
    assert set(made.not_captured) == everything - captured


# selection


def test_layers_and_heads_can_be_selected(tmp_path):
    made = plan(dump_of(tmp_path, range(4), range(2), layers=range(3)), layers="1-2", heads=[0, 3])
    assert made.groups == (
        Group(1, 0, (0,)),
        Group(1, 1, (3,)),
        Group(2, 0, (0,)),
        Group(2, 1, (3,)),
    )
    assert made.not_captured == ()


def test_the_whole_plan_has_the_heads_that_are_not_selected(tmp_path):
    dump = dump_of(tmp_path, range(4), range(2), layers=(0, 1))
    made = plan(dump, layers=[1], heads=[3])
    assert made.heads == [(1, 3)]
    assert whole_plan(dump, made.layout) == plan(dump)


# the estimate


@pytest.mark.parametrize("content", ["no Parquet", "no rows", "no file"])
def test_an_estimate_goes_on_without_a_head(content, tmp_path):
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=50))
    broken = tmp_path / "l00h00q" / "data.parquet"
    if content == "no Parquet":
        broken.write_text(content)
    elif content == "no rows":
        pq.write_table(pq.read_schema(broken).empty_table(), broken)
    else:
        broken.unlink()
    config = make_config()
    found = estimate(dump, make_plan(dump, config), config)
    assert found.rows == 100
    assert len(found.problems) == 1
    assert "l00h00q" in found.problems[0]
