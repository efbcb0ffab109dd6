"""The row of a key head, from counts of the queries of its query heads: loops over pairs."""

import math
from functools import partial

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.measure import key_heads
from attention_plasticity.measure.attention import INSIDE_LAST_BIN
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.measure.key_heads import FEW_QUERIES, NO_PAIRS, seen_pairs
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.read.layer import NO_COLUMNS
from attention_plasticity.read.pool import NO_ATTENDED_KEYS
from attention_plasticity.read.rows import read_keys
from dumps import add_rotary, make_dump
from helpers.attention_dumps import make_attention_dump
from listed_choices import listed_error, listed_plasticity
from reference import read_rows
from reference_checks import influences_of
from reference_groups import layer_facts, leave_out, turned


def row_of(root, q_heads, **settings):
    """The row of key head 0 whose query heads are the first ones."""
    opened, config = ap.open_dump(root), ap.make_config(**settings)
    row = analyze_group(opened, 0, 0, range(q_heads), config).key_head
    assert_reasons(row)
    return row


def assert_reasons(row):
    """Every missing value has a reason, and no other value."""
    assert set(row.values) == set(KEY_HEADS.names)
    with_error = {name for one in KEY_HEADS.with_error for name in (one, f"{one}_se")}
    assert {name for name in with_error if math.isnan(row.values[name])} == set(row.missing)
    assert all(row.missing.values())


def assert_equal(found, expected, atol=1e-9):
    np.testing.assert_allclose(found.value, expected.value, rtol=0, atol=atol)
    np.testing.assert_allclose(found.influences, expected.influences, rtol=0, atol=atol)
    assert found.groups == expected.groups


def sees(t, key, window, *, chunked):
    if window is None:
        return key < t
    return key < t and (key // window == t // window if chunked else t - key < window)


class Loops:
    """The rows of a key head and its query heads, as the analysis reads them."""

    def __init__(self, root, window=None, *, chunked=False):
        self.config, self.window, self.chunked = ap.make_config(), window, chunked
        self.dump = ap.open_dump(root)
        self.keys = read_keys(self.dump, 0, 0, self.config)
        self.queries = [read_rows(root, f"l00h{q:02d}q", self.config) for q in range(2)]
        self.visible = Visible(window, chunked)


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (300, False), (512, True)], ids=str)
def test_pairs_and_queries_against_a_loop(tmp_path, window, chunked, monkeypatch):
    monkeypatch.setattr(key_heads, "_MOST_PAIRS", 150)
    kind = (
        "chunked_attention" if chunked else "full_attention" if not window else "sliding_attention"
    )
    make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=130, examples=16, window=window)
    add_rotary(tmp_path, type=kind, window=window)
    row, loops = row_of(tmp_path, 2), Loops(tmp_path, window, chunked=chunked)
    assert row.values["n_groups"] >= 8
    assert row.missing["received_gini"] == NO_ATTENDED_KEYS
    assert row.missing["far_mass"] == NO_COLUMNS
    keys, bins = loops.keys, loops.keys.texts.bins
    rng = Streams(loops.config.seed, 0, 0).rng(Purpose.SEEN_PAIRS)
    pairs = seen_pairs(keys, loops.visible, 150, rng)
    record = layer_facts(tmp_path, 0).get("rotary")
    listed = []  # group of the pair, then groups and choices of the queries of each head
    for i, j, t in zip(pairs.first, pairs.second, pairs.position, strict=True):
        assert i != j
        assert keys.text[i] == keys.text[j]
        assert all(sees(t, keys.position[one], window, chunked=chunked) for one in (i, j))
        if window is None and t < bins.size:
            continue  # the first bin has no queries that see an earlier one
        w = keys.rows.vectors[i].astype(float) - keys.rows.vectors[j]
        heads = [choices(head, bins.size, float(t), w, record) for head in loops.queries]
        listed.append((int(keys.text[i]) % 16, heads))
    known = [one for one in listed if not math.isnan(listed_plasticity(one[1]))]
    assert row.values["n_pairs"] == len(known) > 20
    numbers = [sum(map(len, heads)) for _, heads in known]
    assert row.values["n_queries"] == pytest.approx(np.mean(numbers))
    groups = {g for _, heads in known for head in heads for g, _ in head}
    for name, score in (("aligned_plasticity", listed_plasticity), ("static_error", listed_error)):
        expected = leave_out(partial(mean_of_pairs, known, score), groups)
        assert_equal(row.quantities[name], expected, 1e-6)


def choices(head, size, t, w, record):
    """Groups of the queries in the bin of t, and whether each prefers the first key."""
    own = np.floor(head.position / size) == math.floor(t / size)
    if own.sum() < 2:
        return []
    Q = turned(head.vectors[own], t - head.position[own], record)
    group, prefers = head.example_id[own] % 16, 0.5 * (1 + np.sign(Q @ w))
    return list(zip(group.tolist(), prefers.tolist(), strict=True))


def mean_of_pairs(listed, score, keeps):
    """Mean over the pairs of kept groups of the score of the queries of kept groups."""
    values = [
        score([[one for one in head if keeps(one[0])] for head in heads])
        for group, heads in listed
        if keeps(group)
    ]
    return float(np.nanmean(values))


def test_received_attention_and_far_mass_of_a_group(tmp_path):
    root = make_attention_dump(tmp_path, q_heads=2, share=0.35, received=True, texts=5, length=40)
    row = row_of(root, 2, distant_from=8)
    assert 0 < row.values["received_half"] < 0.5
    assert 0 < row.values["received_gini"] < 1
    dump, config = ap.open_dump(root), ap.make_config(distant_from=8)
    heads = [ap.analyze_head(0, head, 0, dump, config) for head in range(2)]
    far = [influences_of(head)["attn_far_mass", None] for head in heads]
    assert row.values["far_mass"] == pytest.approx(np.mean([one["value"] for one in far]))
    influences = np.mean([[one[f"group_{g:02d}"] for g in range(16)] for one in far], axis=0)
    np.testing.assert_allclose(row.quantities["far_mass"].influences, influences, atol=1e-12)


def test_missing_values_have_reasons(tmp_path):
    add_rotary(make_dump(tmp_path / "alone", layers=1, q_heads=2, k_heads=1, n=8, examples=64))
    row = row_of(tmp_path / "alone", 2)
    assert row.missing["static_error"] in (FEW_QUERIES, NO_PAIRS)
    config = ap.make_config(single_example=True)
    assert analyze_group(ap.open_dump(tmp_path / "alone"), 0, 0, [0], config).key_head is None
    few = make_attention_dump(tmp_path / "few", texts=3, received=True, bins=4)
    row = row_of(few, 1)
    assert math.isfinite(row.values["received_gini"])
    assert row.missing["received_gini_se"] == FEW_GROUPS
    assert row.missing["far_mass"] == INSIDE_LAST_BIN
    assert "add-rotary" in row.missing["aligned_plasticity"]
    assert "add-rotary" in row.missing["static_error"]
