"""Dumps that cannot become a complete file, and heads that are filled by a rule."""

import json
import sys

import pytest

from commands_here import run_here
from dumps import head_rows, write_columns
from helpers.export_dumps import full_dump, provenance, read_safetensors
from qk_dump.heads import HeadId
from qk_dump.layers import RotaryRecord

ROTARY = ("triattention", "expected-attention")
VECTORS = (*ROTARY, "q-filters")


def change(root, edit):
    facts = json.loads((root / "dump.json").read_text())
    edit(facts)
    (root / "dump.json").write_text(json.dumps(facts))


def refused(dump, kind, *words):
    folder = dump.with_name("refused")
    done = run_here("export", dump, folder, "--to", kind, *words)
    assert done.returncode in (1, 2), done.stdout
    assert not folder.exists()
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def without_rope(facts):
    facts["layers"][1] = {"layer": 1, "type": "full_attention", "rope": False, "head_dim": 8}


def interleaved_second(facts):
    facts["layers"][1]["rotary"]["pairing"] = "interleaved"


def half_rotary(facts):
    for entry in facts["layers"]:
        entry["rotary"] = RotaryRecord((1.0, 0.1)).to_json()


@pytest.mark.parametrize(
    ("edit", "kinds", "message"),
    [
        (without_rope, ROTARY, "layers 1 have no rotary embedding (NoPE)"),
        (
            lambda facts: facts["layers"][1].update(selective=True),
            VECTORS,
            "layer 1: the content of keys decides which keys a query sees",
        ),
        (lambda facts: facts["layers"][1].pop("rotary"), VECTORS, "layer 1: there is no rotary"),
        (interleaved_second, ("expected-attention",), "kvpress turns halves"),
        (interleaved_second, ("triattention",), "layer 1: RoPE has the pairing interleaved"),
        (half_rotary, ROTARY, "layer 0: RoPE turns 4 of 8 dimensions"),
        (dict.clear, ("q-filters",), "dump.json does not have num_layers"),
        (
            lambda facts: facts.update(num_layers=3),
            VECTORS,
            "query heads that were not captured (4 of 12): layer 2: 0-3",
        ),
    ],
)
def test_a_model_that_the_format_cannot_describe(tmp_path, edit, kinds, message):
    dump = full_dump(tmp_path / "dump")
    change(dump, edit)
    for kind in kinds:
        assert message in refused(dump, kind)


def test_mixed_widths_in_files(tmp_path):
    dump = full_dump(tmp_path / "dump")
    write_columns(dump, HeadId(1, 3, "q"), **head_rows(60, d=10, context=256))
    message = refused(dump, "q-filters")
    assert "l01h03q has vectors of 10 dimensions, l00h00q of 8" in message


@pytest.mark.parametrize("kind", VECTORS)
def test_missing_heads_are_refused_or_filled(tmp_path, kind):
    dump = full_dump(tmp_path / "dump")
    (dump / "l01h02q").rename(tmp_path / "elsewhere")
    message = refused(dump, kind)
    assert "query heads that were not captured (1 of 8): layer 1: 2." in message
    assert "--missing mean" in message
    done = run_here("export", dump, tmp_path / "filled", "--to", kind, "--missing", "mean")
    assert done.returncode == 0
    told = "layer 1: 2. A query head that was not captured has the mean of the captured heads"
    assert told in " ".join(done.stderr.split())
    facts = provenance(tmp_path / "filled")
    assert facts["rules"]["missing"]["heads"] == [[1, 2]]
    assert len(facts["heads"]) == 7


def test_the_rule_is_the_mean_of_the_layer(tmp_path):
    dump = full_dump(tmp_path / "dump")
    words = ("--to", "expected-attention")
    assert run_here("export", dump, tmp_path / "whole", *words).returncode == 0
    (dump / "l01h02q").rename(tmp_path / "elsewhere")
    assert run_here("export", dump, tmp_path / "part", *words, "--missing", "mean").returncode == 0
    whole, part = (
        read_safetensors(tmp_path / name / "model.safetensors") for name in ("whole", "part")
    )
    for name in ("query_mean", "query_cov"):
        expected = whole[name].copy()
        expected[1, 2] = (whole[name][1, 0] + whole[name][1, 1] + whole[name][1, 3]) / 3
        assert part[name] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "gguf"), "--to: expected one of triattention, expected-attention"),
        (("--to", "q-filters", "--share", "0.5"), "--share: can only be used with --to duo"),
    ],
)
def test_wrong_words(tmp_path, words, message):
    done = run_here("export", tmp_path / "dump", tmp_path / "out", *words)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("module", "kind", "extra"),
    [("torch", "triattention", "capture"), ("safetensors", "q-filters", "export")],
)
def test_a_missing_library_is_named(tmp_path, monkeypatch, module, kind, extra):
    dump = full_dump(tmp_path / "dump")
    monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    message = refused(dump, kind)
    assert message == (
        f"error: {module}: is not installed; run pip install -e '.[{extra}]' in a clone of the "
        "toolkit\n"
    )
