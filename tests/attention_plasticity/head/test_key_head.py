"""Rows of key heads of small dumps: planted heads, and plain loops over all pairs and queries."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.head.key_head import NO_ATTENDED_KEYS
from attention_plasticity.run.key_heads import FEW_QUERIES, KeyHeadRow, key_head_row
from dumps import add_rotary, head_rows, make_dump
from listed_choices import Choices, listed_error, listed_plasticity
from one_position import tapped_dump
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.reader import HeadRows, read_head
from qk_dump.received_columns import ReceivedRows
from qk_dump.writer import write_head


def row_of(dump: Path, q_heads: int, layer: int = 0, k_head: int = 0, **fields: Any) -> KeyHeadRow:
    """The row of a key head whose query heads are the first ones."""
    opened, config = ap.open_dump(dump), ap.make_config(**fields)
    heads = [ap.analyze_head(layer, q, k_head, opened, config) for q in range(q_heads)]
    row = key_head_row(heads)
    assert row is not None
    return row


def planted(root: Path, signs: list[float]) -> Path:
    """Keys on a line, and query heads that all look in one direction of it."""
    for number, sign in enumerate(signs):
        rows = head_rows(n=300, d=4, examples=12, seed=number)
        rows["vectors"] *= 0.0
        rows["vectors"][:, 0] = sign * np.random.default_rng(number).uniform(1, 2, 300)
        write_head(root, HeadId(0, number, "q"), **rows)
    keys = head_rows(n=300, d=4, examples=12, seed=99)
    keys["vectors"][:, 1:] = 0.0
    write_head(root, HeadId(0, 0, "k"), **keys)
    return add_rotary(root, width=4, rope=False, rotary=None)


def test_two_opposed_query_heads(tmp_path: Path) -> None:
    """No ranking without a query is right for both; each alone needs no query."""
    both = row_of(planted(tmp_path, [1.0, -1.0]), 2)
    assert both.values["n_q_heads"] == 2
    for name in ("static_error", "plasticity", "aligned_plasticity"):
        together = 0.5 if name == "static_error" else 1.0
        assert both.values[name] == pytest.approx(together)
        assert both.values[f"{name}_heads"] == 0.0
        assert both.values[f"{name}_se"] == pytest.approx(0.0, abs=1e-12)
    alone = row_of(tmp_path, 1)
    assert alone.values["static_error"] == alone.values["plasticity"] == 0.0
    assert alone.values["n_q_heads"] == 1


def read(dump: Path, head: HeadId) -> HeadRows:
    files = ap.open_dump(dump).require_files(head)
    return read_head(files, max_rows=1 << 20, seed=0, with_examples=True, with_received=True)


def sees(t: float, key: float, window: int | None, *, chunked: bool) -> bool:
    if window is None:
        return key < t
    return key < t and (key // window == t // window if chunked else t - key < window)


def choices(
    queries: list[HeadRows], keys: HeadRows, i: int, j: int, window: int | None, *, chunked: bool
) -> Choices:
    """What the later queries of every head choose that see both keys."""
    found: Choices = []
    for head in queries:
        own = []
        assert head.example_id is not None
        assert keys.example_id is not None
        for q, t, text in zip(head.vectors, head.position, head.example_id, strict=True):
            places = (keys.position[i], keys.position[j])
            if text == keys.example_id[i] and all(
                sees(t, place, window, chunked=chunked) for place in places
            ):
                one, other = (float(q.astype(float) @ keys.vectors[key]) for key in (i, j))
                own.append(0.5 if one == other else float(one > other))
        found.append(own)
    return found


def listed_values(
    queries: list[HeadRows],
    keys: HeadRows,
    weight: np.ndarray,
    tokens: np.ndarray,
    window: int | None = None,
    *,
    chunked: bool = False,
) -> dict[int, list[tuple[float, float, float]]]:
    """Weight, plasticity and static error of every pair, by text."""
    assert keys.example_id is not None
    found = {}
    share: dict[int, float] = {}
    for text in np.unique(keys.example_id).tolist():
        own = np.flatnonzero((keys.example_id == text) & (weight > 0)).tolist()
        pairs = [
            (i, j)
            for i, j in combinations(own, 2)
            if window is None
            or (
                keys.position[i] // window == keys.position[j] // window
                if chunked
                else abs(keys.position[i] - keys.position[j]) < window
            )
        ]
        if not pairs:
            continue
        total = sum(weight[i] * weight[j] for i, j in pairs)
        share[text] = sum(tokens[i] for i in own)
        values = []
        for i, j in pairs:
            chosen = choices(queries, keys, i, j, window, chunked=chunked)
            if min(map(len, chosen)) >= 2:
                part = share[text] * weight[i] * weight[j] / total
                values.append((part, listed_plasticity(chosen), listed_error(chosen)))
        found[text] = values
    return found


def means(values: dict[int, list[tuple[float, float, float]]]) -> tuple[float, float]:
    rows = np.array([row for own in values.values() for row in own])  # (pairs, 3)
    return tuple((rows[:, 0] @ rows[:, 1:] / rows[:, 0].sum()).tolist())  # type: ignore[return-value]


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (300, False), (512, True)], ids=str)
def test_all_pairs_and_queries_against_a_loop(
    tmp_path: Path, window: int | None, chunked: bool
) -> None:
    kind = (
        "chunked_attention" if chunked else "full_attention" if not window else "sliding_attention"
    )
    make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=130, examples=16, window=window)
    add_rotary(tmp_path, type=kind, window=window)
    row = row_of(tmp_path, 2)
    queries = [read(tmp_path, HeadId(0, q, "q")) for q in range(2)]
    keys = read(tmp_path, HeadId(0, 0, "k"))
    ones = np.ones(len(keys))
    values = listed_values(queries, keys, ones, ones, window, chunked=chunked)
    expected = means(values)
    assert row.values["plasticity"] == pytest.approx(expected[0])
    assert row.values["static_error"] == pytest.approx(expected[1])
    assert row.values["n_pairs"] == sum(map(len, values.values()))
    left = [means({t: v for t, v in values.items() if t % 16 != g}) for g in range(16)]
    groups = row.values["n_groups"]
    for name, number in (("plasticity", 0), ("static_error", 1)):
        spread = np.array([one[number] for one in left]) - expected[number]
        jackknife = math.sqrt((groups - 1) / groups * (spread**2).sum())
        assert row.values[f"{name}_se"] == pytest.approx(jackknife, rel=0.15)
    assert row.values["attended_plasticity_se"] != row.values["attended_plasticity_se"]
    assert row.missing["attended_plasticity"] == NO_ATTENDED_KEYS


def test_attended_pairs_against_a_loop(tmp_path: Path) -> None:
    """Keys in proportion to the attention of both heads of the group over their inclusion."""
    rng = np.random.default_rng(3)
    for q in range(2):
        write_head(tmp_path, HeadId(0, q, "q"), **head_rows(n=120, examples=6, seed=q))
    for attended, n in ((False, 60), (True, 30)):
        rows = head_rows(n=n, examples=6, seed=[7, attended])
        received = ReceivedRows(rng.random((n, 2), np.float32), rng.uniform(0.2, 1, n))
        head = HeadId(0, 0, "k", attended=attended)
        write_head(tmp_path, head, received=received, **rows)
    add_rotary(tmp_path)
    row = row_of(tmp_path, 2)
    queries = [read(tmp_path, HeadId(0, q, "q")) for q in range(2)]
    base = read(tmp_path, HeadId(0, 0, "k"))
    drawn = read_head(
        ap.open_dump(tmp_path).attended_files(0, 0),
        max_rows=1 << 20,
        seed=0,
        with_examples=True,
        with_received=True,
    )
    assert base.received is not None
    assert drawn.received is not None
    keys = HeadRows(
        **{
            **vars(base),
            **{
                name: np.concatenate([getattr(base, name), getattr(drawn, name)])
                for name in ("bucket", "position", "vectors", "example_id")
            },
        }
    )
    received = np.concatenate([base.received.received, drawn.received.received]).astype(float)
    inclusion = np.concatenate([base.received.inclusion, drawn.received.inclusion])
    weight = np.where(keys.position >= 4, received.sum(axis=1) / inclusion, 0.0)
    expected = means(listed_values(queries, keys, weight, 1.0 / inclusion))
    assert row.values["attended_plasticity"] == pytest.approx(expected[0])
    assert row.values["attended_static_error"] == pytest.approx(expected[1])
    assert 0 < row.values["received_half"] < 0.5
    assert 0 < row.values["received_gini"] < 1


def captured(root: Path, rate: float | None) -> Path:
    """Two query heads whose preferences turn in the text, captured at all positions or by log."""
    rng = np.random.default_rng(0)
    texts, length, d = 16, 1024, 4
    example = np.repeat(np.arange(texts), length)
    position = np.tile(np.arange(length), texts)
    bucket = np.floor(np.log2(position + 1)).astype(int)
    probability = np.ones(len(position)) if rate is None else np.minimum(1, rate / 2.0**bucket)
    for kind, heads in (("q", 2), ("k", 1)):
        for head in range(heads):
            X = rng.standard_normal((len(position), d)).astype(np.float32)
            if kind == "q":
                X[:, 0] += (1 - 2 * head) * np.where(position < 200, 3.0, 0.5)
            kept = np.random.default_rng([head, kind == "q"]).random(len(X)) < probability
            write_head(
                root,
                HeadId(0, head, kind),  # type: ignore[arg-type]
                bucket=bucket[kept],
                example_id=example[kept],
                position=position[kept],
                vectors=X[kept],
            )
    sampler: dict[str, Any] = {"type": "all"}
    if rate is not None:
        sampler = {"type": "log_uniform", "base_rate": rate}
    layers = [{"layer": 0, "type": "full_attention", "rope": False}]
    manifest = DumpManifest(layers=layers, bucket_type="log", min_bucket_size=1, sampler=sampler)
    write_manifest(root, manifest)
    return root


def test_means_are_over_tokens(tmp_path: Path) -> None:
    """A capture that keeps early rows more often has the same values up to its errors."""
    every = row_of(captured(tmp_path / "all", None), 2).values
    some = row_of(captured(tmp_path / "some", 32.0), 2).values
    for name in ("plasticity", "static_error", "aligned_plasticity", "static_error_heads"):
        error = math.hypot(every[f"{name}_se"], some[f"{name}_se"])
        assert abs(every[name] - some[name]) < 3.5 * error, name
        assert error < 0.05


def test_few_queries_and_unknown_texts(tmp_path: Path) -> None:
    make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=60, examples=60)
    row = row_of(tmp_path, 2)
    assert math.isnan(row.values["static_error"])
    assert row.missing["static_error"] in (
        FEW_QUERIES,
        "no text has two keys that a later query can see",
    )
    config = ap.make_config(single_example=True)
    head = ap.analyze_head(0, 0, 0, ap.open_dump(tmp_path), config)
    assert key_head_row([head]) is None


def test_without_errors(tmp_path: Path) -> None:
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=120, examples=16)
    add_rotary(tmp_path)
    fields: dict[str, Any] = {"num_pairs_per_bucket": 64}
    known = row_of(tmp_path, 1, **fields).values
    row = row_of(tmp_path, 1, error_bars=False, counting=False, **fields)
    for name in ("plasticity", "static_error", "aligned_plasticity"):
        assert row.values[name] == known[name]
        assert math.isnan(row.values[f"{name}_se"])
        assert row.missing[f"{name}_se"] == "error_bars is off"


def counted_at_one_position(
    queries: list[np.ndarray], keys: np.ndarray, window: int | None, rng: np.random.Generator
) -> tuple[float, float]:
    """Of queries of different texts at one position: of the group, and of its heads alone.

    Queries and keys are (texts, positions, d). A token, and two earlier keys that it sees.
    """
    texts, length, _ = keys.shape
    together, alone = [], []
    for _ in range(6000):
        text, t = int(rng.integers(texts)), int(rng.integers(2, length))
        first = 0 if window is None else max(0, t - window + 1)
        if t - first < 2:
            continue
        i, j = rng.choice(np.arange(first, t), 2, replace=False)
        w = keys[text, i] - keys[text, j]
        prefer = [[float(head[other, t] @ w) > 0 for other in range(texts)] for head in queries]
        disagree = [
            np.mean([one[a] != other[b] for a in range(texts) for b in range(texts) if a != b])
            for one in prefer
            for other in prefer
        ]
        together.append(2.0 * np.mean(disagree))
        alone.append(2.0 * np.mean(disagree[:: len(prefer) + 1]))
    return float(np.mean(together)), float(np.mean(alone))


@pytest.mark.parametrize(("model", "layer"), [("llama", 1), ("gemma3_text", 0)])
def test_one_position_against_a_count_at_each_position(
    tmp_path: Path, model: str, layer: int
) -> None:
    """The count needs no rotation: all queries are at the position of the token."""
    dump = tapped_dump(tmp_path, model, [layer], texts=8, length=128)
    layout = dump.manifest
    assert layout is not None
    assert layout.num_q_heads is not None
    assert layout.num_k_heads is not None
    group = layout.num_q_heads // layout.num_k_heads
    assert group > 1
    row = row_of(tmp_path, group, layer)
    every = {head: read(tmp_path, head) for head in dump.folders if head.layer == layer}

    def placed(head: HeadId) -> np.ndarray:
        rows = every[head]
        assert rows.example_id is not None
        order = np.lexsort((rows.position, rows.example_id))
        return rows.vectors[order].astype(float).reshape(8, 128, -1)

    queries = [placed(HeadId(layer, q, "q")) for q in range(group)]
    keys = HeadId(layer, 0, "k")
    window = every[keys].sliding_window
    assert (window is None) == (model == "llama")
    rng = np.random.default_rng(0)
    expected = counted_at_one_position(queries, placed(keys), window, rng)
    found = row.values["aligned_plasticity"], row.values["aligned_plasticity_heads"]
    for value, count in zip(found, expected, strict=True):
        assert value == pytest.approx(count, abs=0.035)


def test_vectors_captured_before_rope(tmp_path: Path) -> None:
    """They are turned to their positions first."""
    rows = []
    for pre_rope in (False, True):
        root = tmp_path / str(pre_rope)
        tapped_dump(root, "llama", [1], texts=6, length=64, pre_rope=pre_rope)
        rows.append(row_of(root, 2, 1).values)
    for name in ("plasticity", "static_error", "aligned_plasticity", "plasticity_se"):
        assert rows[0][name] == pytest.approx(rows[1][name], abs=0.003)
