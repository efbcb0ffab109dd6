"""Scores of what a head does, on texts and on repeated tokens, and its example words."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity.metrics import IDS, ROLES, WORDS
from head_pairs import analyze
from helpers.attention_dumps import Layer, make_attention_dump
from qk_dump.side_files import write_tokens
from reference_checks import assert_quantity, influences_of
from reference_groups import mean_of_rows, tokens_of

UNKNOWN_CHUNKS = {"layers": [{"layer": 0, "type": "chunked_attention", "scale": 0.4}]}
LAYERS = {
    "all keys": (Layer(), {}),
    "few texts": (Layer(), {"texts": 3}),
    "window": (Layer(window=14), {"share": 0.8}),
    "window of two": (Layer(window=2), {}),
    "chunks": (Layer(window=16, chunked=True), {"texts": 8}),
    "chunks of unknown size": (Layer(), {"manifest": UNKNOWN_CHUNKS}),
    "some queries without attention": (Layer(), {"unknown": 0.4}),
    "few bins": (Layer(), {"bins": 4}),
    "sharp": (Layer(scale=4.0), {}),
    "many early rows": (Layer(), {"log_rate": 8.0, "bucket_size": 2, "length": 64}),
}
NEED_VISIBLE_KEYS = {
    *("previous_mass", "local_mass", "first_mass", "sink_rate"),
    *("duplicate_chance", "duplicate_excess", "induction_chance", "induction_excess"),
}
"""Scores that are means over queries that see enough keys, or that count visible keys."""


def visible_keys(p, layer):
    """The positions that a query at p sees."""
    if layer.window is None:
        return range(p + 1)
    first = p // layer.window * layer.window if layer.chunked else max(0, p - layer.window + 1)
    return range(first, p + 1)


def scores(row, layer, distant_from, bins):
    """The scores of one query, of which the head has means."""
    p, masses = int(row["position"]), row["mass_by_distance"]
    seen = visible_keys(p, layer)
    found = {"self_mass": masses[0], "top_weight": math.exp(row["max_logit"] - row["lse"])}
    found["top_weight"] = min(1.0, found["top_weight"])
    found["effective_keys"] = math.exp(row["entropy"])
    if bins > 4:
        distant = sum(masses[distant_from.bit_length() :])
        far = max(distant - row["sink_mass"], 0.0) if p - distant_from + 1 > 4 else 0.0
        found["far_mass"] = far
        if len(seen) > 1:
            found["previous_mass"] = masses[1]
        if len(seen) > 2:
            found["local_mass"] = masses[2] + masses[3]
    if p > 0 and 0 in seen:
        found["first_mass"] = row["first_mass"]
        found["sink_rate"] = float(row["first_mass"] > 0.3)
    for name in ("duplicate", "induction"):
        if row[f"{name}_keys"] > 0:
            found[f"{name}_mass"] = row[f"{name}_mass"]
            found[f"{name}_chance"] = row[f"{name}_keys"] / len(seen)
            found[f"{name}_excess"] = found[f"{name}_mass"] - found[f"{name}_chance"]
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_every_score_equals_the_reference(tmp_path, name):
    layer, how = LAYERS[name]
    root = make_attention_dump(tmp_path, layer=layer, **how)
    result = analyze(root, distant_from=8)
    table = {column: values[0] for column, values in result.tables["roles"].items()}
    assert set(IDS) | set(table) | {"role", "likely_role"} == set(ROLES.names)
    rows = pq.read_table(root / "l00h00q" / "data.parquet").to_pylist()
    rows = [row for row in rows if row["lse"] is not None]
    of_rows = [scores(row, layer, 8, how.get("bins", 24)) for row in rows]
    group = np.array([row["example_id"] % 16 for row in rows])
    weight = np.array([tokens_of(root, row["position"], "q") for row in rows])
    assert table["n_queries"] == len(rows)
    assert table["n_groups"] == len(set(group.tolist()))
    unknown = {"far_mass", "previous_mass", "local_mass"} if "bins" in how else set()
    unknown |= NEED_VISIBLE_KEYS if name == "chunks of unknown size" else set()
    unknown |= {"local_mass"} if layer.window == 2 else set()
    for column in ROLES.with_error:
        if column in unknown or column.startswith("repeated_"):
            assert math.isnan(table[column])
            assert math.isnan(table[f"{column}_se"])
            continue
        own = [number for number, found in enumerate(of_rows) if column in found]
        values = [of_rows[number][column] for number in own]
        expected = mean_of_rows(values, weight[own], group[own])
        assert_quantity(result, column, expected, 1e-9, "roles")
    assert math.isnan(table["repeated_groups"])
    assert "roles" not in result.missing


def repeated_dump(root):
    manifest = {"synthetic": {"type": "repeated", "length": 24}}
    return make_attention_dump(root, texts=5, seed=9, manifest=manifest)


def test_scores_on_repeated_tokens_come_from_their_own_dump(tmp_path):
    """They have their own groups of texts, and no influences: their texts are others."""
    root, repeated = make_attention_dump(tmp_path / "texts"), repeated_dump(tmp_path / "repeated")
    result = analyze(root, repeated=str(repeated))
    roles = result.tables["roles"]
    rows = pq.read_table(repeated / "l00h00q" / "data.parquet").to_pylist()
    for name in ("induction", "duplicate", "previous"):
        used = [
            row
            for row in rows
            if (row["position"] > 0 if name == "previous" else row[f"{name}_keys"] > 0)
        ]
        values = [
            row["mass_by_distance"][1] if name == "previous" else row[f"{name}_mass"]
            for row in used
        ]
        group = np.array([row["example_id"] for row in used])
        expected = mean_of_rows(values, np.ones(len(used)), group)
        found = [roles[f"repeated_{name}{end}"][0] for end in ("", "_se")]
        np.testing.assert_allclose(found, expected[:2], atol=1e-9)
        assert (f"repeated_{name}", None) not in influences_of(result)
    assert roles["repeated_groups"] == [5]
    plain = analyze(root).tables["roles"]
    others = [name for name in plain if not name.startswith("repeated_")]
    assert {name: plain[name] for name in others} == {name: roles[name] for name in others}


def words_of(root):
    write_tokens(root, {number: f"word {number}" for number in range(12)})
    return analyze(root)


def test_words_are_those_of_queries_and_their_strongest_keys(tmp_path):
    root = make_attention_dump(tmp_path, unknown=0.2)
    assert "words" not in analyze(root).tables  # texts of tokens are not known
    table = words_of(root).tables["words"]
    assert (*IDS, *table) == WORDS.names
    rows = {
        (row["example_id"], row["position"]): row
        for row in pq.read_table(root / "l00h00q" / "data.parquet").to_pylist()
    }
    kinds = table["kind"]
    assert kinds == ["strongest"] * 8 + ["typical"] * 5
    for place in range(len(kinds)):
        word = {name: values[place] for name, values in table.items()}
        row = rows[word["example_id"], word["q_position"]]
        assert word["weight"] == pytest.approx(math.exp(row["max_logit"] - row["lse"]), rel=1e-6)
        assert word["k_position"] == row["argmax_position"]
        assert word["distance"] == word["q_position"] - word["k_position"] >= 0
        assert word["query_token"] == f"word {row['token_id']}"
        assert word["key_token"] == f"word {row['argmax_token']}"
    strongest = table["weight"][:8]
    assert strongest == sorted(strongest, reverse=True)
    known = [row for row in rows.values() if row["lse"] is not None and row["argmax_position"] > 0]
    assert strongest[0] == pytest.approx(
        max(math.exp(row["max_logit"] - row["lse"]) for row in known), rel=1e-6
    )
    assert table["weight"][8:] == sorted(table["weight"][8:])
