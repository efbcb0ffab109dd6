"""Which heads a run will analyse, paired how."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.config import make_config
from attention_plasticity.read.layout import HeadLayout, head_layout
from attention_plasticity.run.plan import (
    Group,
    Plan,
    estimate,
    make_plan,
    split_groups,
    whole_plan,
)
from dumps import head_rows, make_dump, write_columns
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.remote import DumpPath
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import format_heads
from qk_toolkit.settings import parse_indices


def dump_of(
    root: Path, q: Iterable[int], k: Iterable[int], layers: Iterable[int] = (0,), **facts: Any
) -> Dump:
    """A dump of empty folders: planning looks at names alone."""
    for layer in layers:
        for kind, heads in (("q", q), ("k", k)):
            for head in heads:
                (root / HeadId(layer, head, kind).folder).mkdir(parents=True)  # type: ignore[arg-type]
    if facts:
        write_manifest(root, DumpManifest(**facts))
    return open_dump(root)


def plan(dump: Dump, **fields: Any) -> Plan:
    return make_plan(dump, make_config(**fields))


def refusal(dump: Dump, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(dump, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def numbers(layout: HeadLayout) -> tuple[int, int, int]:
    return layout.num_layers, layout.num_q_heads, layout.num_k_heads


# the layout


def test_a_complete_dump_tells_its_layout_by_its_folders(tmp_path: Path) -> None:
    layout = head_layout(dump_of(tmp_path, range(6), range(2), layers=(0, 1, 2)), make_config())
    assert numbers(layout) == (3, 6, 2)
    assert "counted from the folders" in layout.source


def test_dump_json_tells_the_layout(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [3], [1], num_layers=9, num_q_heads=4, num_k_heads=2)
    layout = head_layout(dump, make_config())
    assert numbers(layout) == (9, 4, 2)
    assert layout.source == "from dump.json"


def test_the_config_tells_the_layout(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [3], [1])
    layout = head_layout(dump, make_config(num_layers=7, num_q_heads=4, num_k_heads=2))
    assert numbers(layout) == (7, 4, 2)
    assert layout.source == "from the config"


def test_config_and_dump_json_complete_each_other(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [3], [1], num_k_heads=2)
    assert numbers(head_layout(dump, make_config(num_q_heads=4))) == (1, 4, 2)


def test_a_manifest_without_numbers_leaves_it_to_the_folders(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, range(4), range(2), model="some")
    assert numbers(head_layout(dump, make_config())) == (1, 4, 2)


def test_layers_on_disk_count_beyond_those_dump_json_tells(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [0], [0], layers=(0, 4), num_layers=2)
    assert head_layout(dump, make_config()).num_layers == 5


def test_the_config_may_scan_fewer_layers_than_there_are(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [0], [0], layers=(0, 1, 2), num_layers=3)
    assert plan(dump, num_layers=2).heads == [(0, 0), (1, 0)]


# contradictions


@pytest.mark.parametrize("where", ["config", "dump.json"])
def test_a_key_head_beyond_the_number_of_key_heads_is_refused(tmp_path: Path, where: str) -> None:
    told: dict[str, Any] = {"num_q_heads": 8, "num_k_heads": 2}
    dump = dump_of(tmp_path, range(8), range(4), **(told if where == "dump.json" else {}))
    message = refusal(dump, **(told if where == "config" else {}))
    assert "num_k_heads: 2" in message
    assert "l00h02k" in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("where", ["config", "dump.json"])
def test_a_query_head_beyond_the_number_of_query_heads_is_refused(
    tmp_path: Path, where: str
) -> None:
    told: dict[str, Any] = {"num_q_heads": 4, "num_k_heads": 2}
    dump = dump_of(tmp_path, [0, 4], [0], **(told if where == "dump.json" else {}))
    message = refusal(dump, **(told if where == "config" else {}))
    assert "num_q_heads: 4" in message
    assert "l00h04q" in message


def test_heads_of_unselected_layers_contradict_as_well(tmp_path: Path) -> None:
    dump_of(tmp_path, range(2), range(2))
    dump = dump_of(tmp_path, range(2), [3], layers=(1,))
    assert "l01h03k" in refusal(dump, num_q_heads=2, num_k_heads=2, layers=[0])


@pytest.mark.parametrize("field", ["num_q_heads", "num_k_heads"])
def test_a_config_that_contradicts_dump_json_is_refused(tmp_path: Path, field: str) -> None:
    dump = dump_of(tmp_path, [0], [0], num_q_heads=8, num_k_heads=2)
    message = refusal(dump, **{field: 4})
    assert message.startswith(f"{field}: is 4 in the config, but ")
    assert str(tmp_path / "dump.json") in message


@pytest.mark.parametrize(("q", "k"), [([0, 5], [0, 1]), ([0, 1], [1]), ([1, 2], [0])])
def test_a_sampled_dump_without_numbers_is_refused(
    tmp_path: Path, q: list[int], k: list[int]
) -> None:
    message = refusal(dump_of(tmp_path, q, k))
    assert str(tmp_path) in message
    assert "Set num_q_heads and num_k_heads" in message


def test_layers_with_different_heads_and_no_numbers_are_refused(tmp_path: Path) -> None:
    dump_of(tmp_path, range(4), range(2))
    dump = dump_of(tmp_path, range(2), range(2), layers=(1,))
    assert "holds only some query heads" in refusal(dump)


def test_counted_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    message = refusal(dump_of(tmp_path, range(3), range(2)))
    assert "num_q_heads: 3 is not a multiple of num_k_heads 2" in message
    assert "counted from the folders" in message


def test_heads_of_config_and_dump_json_together_must_divide(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [0], [0], num_k_heads=3)
    assert "num_q_heads: 4" in refusal(dump, num_q_heads=4)


@pytest.mark.parametrize(
    ("q", "k", "missing"), [([0], [], "key"), ([], [0], "query")], ids=["no keys", "no queries"]
)
def test_a_dump_of_one_kind_alone_is_refused(
    tmp_path: Path, q: list[int], k: list[int], missing: str
) -> None:
    assert f"holds no {missing} heads" in refusal(dump_of(tmp_path, q, k))


# pairing


def test_query_heads_of_one_key_head_form_a_group(tmp_path: Path) -> None:
    made = plan(dump_of(tmp_path, range(6), range(2), layers=(0, 2)))
    assert made.groups == (
        Group(0, 0, (0, 1, 2)),
        Group(0, 1, (3, 4, 5)),
        Group(2, 0, (0, 1, 2)),
        Group(2, 1, (3, 4, 5)),
    )
    assert made.heads == [(layer, head) for layer in (0, 2) for head in range(6)]
    assert made.not_captured == tuple((1, head) for head in range(6))


def test_heads_that_were_not_captured_are_listed_and_not_planned(tmp_path: Path) -> None:
    made = plan(dump_of(tmp_path, [1, 6], [0, 3], num_layers=1, num_q_heads=8, num_k_heads=4))
    assert made.groups == (Group(0, 0, (1,)), Group(0, 3, (6,)))
    assert made.not_captured == ((0, 0), (0, 2), (0, 3), (0, 4), (0, 5), (0, 7))


def test_a_query_head_without_its_key_head_is_planned_so_that_it_can_fail(tmp_path: Path) -> None:
    made = plan(dump_of(tmp_path, [0, 3], [0], num_q_heads=4, num_k_heads=2))
    assert Group(0, 1, (3,)) in made.groups


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 63)), min_size=1),
)
def test_every_captured_query_head_meets_the_key_head_of_its_group(
    k_heads: int, per_key: int, picks: set[tuple[int, int]]
) -> None:
    q_heads = k_heads * per_key
    captured = {(layer, head % q_heads) for layer, head in picks}
    root = Path("nowhere")
    folders: dict[HeadId, DumpPath] = {HeadId(layer, head, "q"): root for layer, head in captured}
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


def test_layers_and_heads_can_be_selected(tmp_path: Path) -> None:
    made = plan(dump_of(tmp_path, range(4), range(2), layers=range(3)), layers="1-2", heads=[0, 3])
    assert made.groups == (
        Group(1, 0, (0,)),
        Group(1, 1, (3,)),
        Group(2, 0, (0,)),
        Group(2, 1, (3,)),
    )
    assert made.not_captured == ()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layers", "1,3-4", "layers: expected numbers from 0-1, got 3-4"),
        ("heads", [4], "heads: expected numbers from 0-3, got 4"),
        ("layers", [], "layers: expected numbers from 0-1, got none"),
        ("heads", [], "heads: expected numbers from 0-3, got none"),
    ],
)
def test_a_selection_out_of_range_is_refused(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    dump = dump_of(tmp_path, range(4), range(2), layers=(0, 1))
    assert refusal(dump, **{field: value}) == message


def test_a_selection_without_captured_heads_is_refused_with_those_there_are(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [0, 1, 2, 5], [0], num_q_heads=8, num_k_heads=1)
    assert "The dump contains layer 0: 0-2,5." in refusal(dump, heads=[3, 4])


def test_the_whole_plan_has_the_heads_that_are_not_selected(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, range(4), range(2), layers=(0, 1))
    made = plan(dump, layers=[1], heads=[3])
    assert made.heads == [(1, 3)]
    assert whole_plan(dump, made.layout) == plan(dump)


# words


def test_heads_are_told_by_layer_whatever_their_order() -> None:
    heads = [(2, 5), (0, 8), (0, 1), (0, 0), (0, 2), (0, 3)]
    assert format_heads(heads) == "layer 0: 0-3,8; layer 2: 5"
    assert format_heads([(7, 1), (3, 1), (2, 1), (9, 0)]) == "layers 2-3,7: 1; layer 9: 0"


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1))
def test_told_heads_are_read_back(heads: set[tuple[int, int]]) -> None:
    found = set()
    for part in format_heads(heads).split("; "):
        layers, _, indices = re.sub(r"^layers? ", "", part).partition(": ")
        for layer in parse_indices(layers):  # type: ignore[attr-defined]
            found |= {(layer, head) for head in parse_indices(indices)}  # type: ignore[attr-defined]
    assert found == heads


# the estimate


def test_an_estimate_counts_rows_and_those_that_will_be_used(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=50))
    config = make_config(max_tokens_per_head=20)
    found = estimate(dump, make_plan(dump, config), config)
    assert (found.rows, found.rows_used, found.problems) == (150, 60, ())


def test_an_estimate_counts_the_selected_heads_and_each_key_head_once(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=2, q_heads=4, k_heads=2, n=10))
    config = make_config(layers=[1], heads=[2, 3])
    assert estimate(dump, make_plan(dump, config), config).rows == 30


def test_an_estimate_of_memory_grows_with_the_rows_used(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=1000, d=16))
    few, many = (
        estimate(dump, make_plan(dump, config), config).worker_memory
        for config in (make_config(max_tokens_per_head=10), make_config())
    )
    assert many - few >= (1000 - 10) * 16 * 4 * 2


def test_an_estimate_lists_unreadable_files_and_goes_on(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=50))
    broken = tmp_path / "l00h00q" / "data.parquet"
    broken.write_text("no Parquet")
    config = make_config()

    found = estimate(dump, make_plan(dump, config), config)

    assert found.rows == 100
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{broken}: ")


def test_an_estimate_goes_on_without_the_key_head_or_any_shard(tmp_path: Path) -> None:
    write_columns(tmp_path, HeadId(0, 1, "q"), **head_rows(n=50))
    (tmp_path / "l00h00q").mkdir()
    dump = open_dump(tmp_path)
    config = make_config(num_q_heads=2, num_k_heads=1)
    assert estimate(dump, make_plan(dump, config), config).rows == 50


@pytest.mark.parametrize("groups", [0, 1])
def test_an_estimate_goes_on_when_the_first_head_has_no_rows(tmp_path: Path, groups: int) -> None:
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=50))
    path = tmp_path / "l00h00q" / "data.parquet"
    schema = pq.read_schema(path)
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(groups):
            writer.write_table(schema.empty_table())
    config = make_config()

    found = estimate(dump, make_plan(dump, config), config)

    assert found.rows == 100
    assert found.worker_memory > 0


@given(
    sizes=st.lists(st.integers(1, 9), max_size=6),
    workers=st.integers(1, 8),
)
def test_sharing_out_loses_no_head_and_keeps_workers_busy(sizes: list[int], workers: int) -> None:
    groups = [Group(0, k_head, tuple(range(size))) for k_head, size in enumerate(sizes)]
    parts = split_groups(groups, workers)
    heads = [(part.k_head, q_head) for part in parts for q_head in part.q_heads]
    assert heads == [(group.k_head, q_head) for group in groups for q_head in group.q_heads]
    if workers == 1:
        assert parts == groups
    else:
        assert len(parts) >= min(sum(sizes), 3 * workers)


def test_groups_that_suffice_are_left_whole() -> None:
    groups = [Group(0, k_head, (0, 1, 2, 3)) for k_head in range(6)]
    assert split_groups(groups, 2) == groups
