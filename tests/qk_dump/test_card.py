"""README.md: what `datasets` and people read first."""

import re

import numpy as np
import pytest
import yaml

from dumps import head_rows, write_columns
from qk_dump.card import card, is_card
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.side_files import Example, write_examples, write_tokens

SOME_HEADS = [HeadId(0, 0, "k"), HeadId(0, 0, "q"), HeadId(0, 1, "q"), HeadId(100, 12, "k")]
MANIFEST = DumpManifest(
    model="org/model-1",
    revision="abc123",
    num_examples=12_000,
    sampler={"type": "log_uniform", "base_rate": 2.0, "seed": None},
    bucket_type="log",
    min_bucket_size=128,
    pre_rope=True,
)


def parts(text):
    first, front, body = re.split(r"^---\n", text, maxsplit=2, flags=re.MULTILINE)
    assert first == ""
    return yaml.safe_load(front), body


def test_more_heads_than_the_viewer_takes_are_not_named(monkeypatch):
    monkeypatch.setattr("qk_dump.card.MOST_CONFIGS", 12)
    heads = [HeadId(layer, 0, kind) for layer in range(4) for kind in "qk"]
    front, body = parts(card(MANIFEST, heads[:7], examples=True, tokens=True, analysis=True))
    assert len(front["configs"]) == 12
    front, body = parts(card(MANIFEST, heads, examples=True, tokens=True, analysis=True))
    names = [one["config_name"] for one in front["configs"]]
    assert names == ["heads", "queries", "keys", "examples", "tokens"]
    assert 'load_dataset("path/to/this/folder", data_files="l00h00q/*.parquet"' in body


def test_the_text_tells_what_was_captured_and_how_to_go_on():
    drawn = HeadId(0, 0, "k", attended=True)
    assert "The folder `attended` has" in card(MANIFEST, [*SOME_HEADS, drawn], examples=True)
    _, body = parts(card(MANIFEST, SOME_HEADS, examples=True))
    assert "attended" not in body
    for fact in (
        "- model: `org/model-1`",
        "- revision: `abc123`",
        "- heads: `2 of queries, 2 of keys`",
        "- texts: `12000`",
        "- sampler: `type log_uniform, base_rate 2.0`",
        "- buckets: `type log, min_bucket_size 128`",
        "- vectors: `before the rotary embedding`",
        'load_dataset("path/to/this/folder", "l00h00k", split="train")',
        "attention-plasticity analyze path/to/this/folder",
    ):
        assert fact in body


@pytest.mark.parametrize(
    "name",
    [
        "a\n---\nconfigs: []",
        "<script>alert(1)</script>",
        "`code` & <b>",
        "x: [y, 'z\"",
        "caf\udce9\x00\x1b[31m",
    ],
)
def test_no_value_can_break_out_of_its_place(name):
    manifest = DumpManifest(model=name, revision=name, sampler={name: name})
    text = card(manifest, SOME_HEADS, examples=True)
    text.encode("utf-8")
    front, body = parts(text)
    assert list(front) == ["pretty_name", "tags", "configs"]
    assert len(front["configs"]) == 3 + 4
    assert "\n" not in front["pretty_name"]
    assert "<script" not in body
    assert "<b>" not in body
    assert body.count("\n") == parts(card(MANIFEST, SOME_HEADS, examples=True))[1].count("\n") - 3
    values = [line for line in body.splitlines() if line.startswith(("#", "-"))]
    assert all(line.count("`") in (0, 2) for line in values)


def test_a_card_of_ours_is_known_from_others(tmp_path):
    path = tmp_path / "README.md"
    assert not is_card(path)
    path.write_text("# My notes")
    assert not is_card(path)
    path.write_bytes(b"\xff")
    assert not is_card(path)
    path.write_text(card(MANIFEST, SOME_HEADS, examples=True))
    assert is_card(path)


WIDTHS = {0: 4, 1: 6}  # by layer


def write_dump(root):
    """Two layers of different widths, keys drawn by attention, texts and tokens, without a card."""
    heads = [
        HeadId(layer, head, kind) for layer in WIDTHS for head in (0, 1) for kind in ("q", "k")
    ]
    heads.append(HeadId(0, 1, "k", attended=True))
    for head in heads:
        rows = head_rows(20, WIDTHS[head.layer])
        if head.kind == "k":
            received = np.full((20, 2), 0.2 if head.attended else 0.1)
            rows |= {"received": received, "inclusion": np.full(20, 0.5)}
        write_columns(root, head, sliding_window=16 if head.layer else None, **rows)
    write_examples(root, [Example(i, f"text {i}", 14, "") for i in range(5)])
    write_tokens(root, {0: "token 0"})
    layers = [{"layer": layer, "head_dim": width} for layer, width in WIDTHS.items()]
    return DumpManifest(layers=layers), heads


def test_datasets_loads_any_head_and_the_examples(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    dump = tmp_path / "dump"
    manifest, heads = write_dump(dump)
    (dump / "README.md").write_text(card(manifest, heads, examples=True, tokens=True))

    def load(name):
        cache = str(tmp_path / "cache")
        return datasets.load_dataset(str(dump), name, split="train", cache_dir=cache)

    head = load("l00h00q")
    assert head.num_rows == 20
    assert head.features["vector"].feature.dtype == "float32"
    other = load("l01h01k")
    assert len(other[0]["vector"]) == 6
    assert set(other["sliding_window"]) == {16}
    assert load("examples")[4] == {"example_id": 4, "original_id": "text 4", "num_tokens": 14}
    assert load("tokens")[0] == {"id": 0, "text": "token 0"}
    names = {head.config_name for head in heads} | {"queries", "keys", "examples", "tokens"}
    assert set(datasets.get_dataset_config_names(str(dump))) == names
    for name in ("queries", "keys"):
        assert load(name).num_rows == 40  # of the layers with one width
    assert load("attended-l00h01k")[1]["received"] == pytest.approx([0.2, 0.2])
