"""`attention-plasticity verify`: weights recomputed from captured vectors, a dump captured again.

Weights are the model's own, and not when anything is mixed up.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import qk_sniffer
from attention_plasticity.cli import main
from qk_dump.record import RECORD
from qk_sniffer.engines.engine import AttentionRule, Rotation, Rotations
from qk_sniffer.engines.hf.logits import allowed
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.rotary import RotationCheck
from qk_sniffer.notebook import Tap, TappedRows
from qk_sniffer.verify import comparison
from qk_sniffer.verify.command import summary_lines
from qk_sniffer.verify.comparison import LayerCheck, Verification, rule_weights, verify_model
from sniffing import sniff
from tiny_models import ARCHITECTURES
from tiny_texts import save_tiny_model, some_text

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds = ("llama", "gemma3_text", "smollm3", "gpt2")
    return {kind: save_tiny_model(folder / kind, kind) for kind in kinds}


def verify(*words: object) -> int:
    return main(["verify", *(str(word) for word in words)])


def told_by(err: str) -> str:
    """The error's line; bars of libraries that were imported before the command stand above it."""
    *above, line = err.splitlines()
    assert all(not part.strip() or "it/s" in part for part in above)
    return line


def rows_of(output: str) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = [line.split("  ") for line in output.splitlines() if "e-" in line and "  " in line]
    return [[cell.strip() for cell in line if cell.strip()] for line in lines]


def test_a_faithful_model(models: dict[str, Path], capsys: Captured) -> None:
    assert verify(models["smollm3"]) == 0
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert [row[:3] for row in rows] == [
        ["0", "full", "4 / 2"],
        ["1", "full", "4 / 2"],
        ["2", "full", "4 / 2"],
        ["3", "full, NoPE", "4 / 2"],
    ]
    assert all(max(map(float, row[3:5])) < 2e-6 for row in rows)
    assert all((row[5], row[7]) == ("1e-05", "ok") for row in rows)
    assert all(float(row[6]) < 1e-4 for row in rows[:3])
    assert rows[3][6] == "no RoPE"
    last = out.splitlines()[-1]
    assert last.startswith("Faithful: weights and attention columns of")
    assert "in all 4 checked layers" in last
    assert last.endswith("; 256 tokens, float32.")


def test_windows_are_tested_by_texts_that_leave_them(
    models: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    text = tmp_path / "text.md"
    text.write_text(some_text(60))
    assert verify(models["gemma3_text"], "--text", text) == 0
    out = capsys.readouterr().out
    assert [row[1] for row in rows_of(out)] == ["sliding 8", "full"] * 2
    assert "not tested" not in out
    assert "61 tokens" in out  # a begin token comes first
    assert verify(models["gemma3_text"], "--text", text, "--max_length=8") == 0
    assert "The windows of layers 0,2 are not tested" in capsys.readouterr().out


def test_settings_reach_the_check(models: dict[str, Path], capsys: Captured) -> None:
    words = ("--dtype", "float16", "--layers", "1,3", "--tolerance", "1e-9", "--max-length", "20")
    assert verify(models["llama"], *words) == 1
    out = capsys.readouterr().out
    assert [(row[0], row[5]) for row in rows_of(out)] == [("1", "1e-09"), ("3", "1e-09")]
    assert out.endswith("20 tokens, float16.\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--name: is required (model on the Hub, or a local folder)"),
        (["no/such-model"], "model.name: no/such-model: is neither a local folder nor a model "),
        (["./nowhere"], "model.name: ./nowhere: does not exist"),
        (["{llama}", "--layers", "2-4"], "capture.layers: 4 given, there are 0-3"),
        (["{llama}", "--text", "{empty}"], "--text: the text is 0 tokens long, expected 2"),
        (["{llama}", "--text", "{llama}"], "--text: {llama}: cannot be read: Is a directory"),
        (["{llama}", "--model.trust_remote_code"], "--model.trust_remote_code: unknown flag; did"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(
    words: list[str], told: str, models: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    names = {"llama": models["llama"], "empty": empty}
    assert verify(*(word.format(**names) for word in words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told_by(err).startswith(f"error: {told.format(**names)}")


def test_a_model_that_fails_on_the_text_ends_with_1(
    models: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    text = tmp_path / "long.txt"
    text.write_text(some_text(700))
    assert verify(models["gpt2"], "--text", text, "--max_length", 600) == 1
    told = "error: the model failed on the text (600 tokens), try a smaller --max_length: "
    assert told_by(capsys.readouterr().err).startswith(told)


def test_a_wrong_rotary_record_is_reported_in_the_last_line() -> None:
    layers = probe(ARCHITECTURES["llama"].model("eager")).layers
    problem = Rotations(Rotation(problem="the reason"))
    checks = (
        LayerCheck(layers[0], 1e-7, 0, 1e-5, 0.0, RotationCheck(1e-5, True)),
        LayerCheck(layers[1], 1e-7, 0, 1e-5, 0.0, RotationCheck(0.5, False)),
        LayerCheck(replace(layers[2], rotations=problem), 1e-7, 0, 1e-5, 0.0),
    )
    found = Verification(checks, 50, "float32")
    assert found.failed == [checks[1]]
    lines = summary_lines(found)
    assert "Layers 2 have no rotary record in a capture: the reason." in lines
    assert lines[-1].startswith("NOT faithful: layers 1 differ by more than the tolerance, or turn")
    assert summary_lines(Verification(checks[:1], 50, "float32"))[-1].startswith("Faithful")


LENGTHS = [8, 90, 30]


def verify_dump(model: Path, dump: Path, *words: str) -> int:
    return main(["verify", str(model), "--dump", str(dump), *words])


def test_a_dump_of_transformers_is_equal(model: Path, whole: Path, capsys: Captured) -> None:
    assert verify_dump(model, whole) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [f"layer {layer}" for layer in range(4)]
    assert lines[4] == "Equal: no layer differs by more than 0.0001; text 0, 9 tokens, float32."


def test_the_model_may_have_another_name(
    model: Path, whole: Path, tmp_path: Path, capsys: Captured
) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "a copy"))
    words = ("--device_map", "cpu", "--trust_remote_code", "false")
    assert verify_dump(copy, whole, *words) == 0
    told = capsys.readouterr()
    assert "Equal: no layer differs" in told.out
    assert "its files are not those" not in told.err
    weights = load_file(copy / "model.safetensors")
    scaled = {name: 1.5 * weight for name, weight in weights.items()}
    save_file(scaled, copy / "model.safetensors", {"format": "pt"})
    assert verify_dump(copy, whole) == 1
    told = capsys.readouterr()
    assert "NOT equal: layers 0-3 differ" in told.out
    assert f"{copy}: its files are not those of the model that was captured" in told.err


def test_settings_of_the_capture_are_no_flags(model: Path, whole: Path, capsys: Captured) -> None:
    assert verify_dump(model, whole, "--dtype", "bfloat16") == 2
    assert told_by(capsys.readouterr().err).startswith("error: --dtype: has no effect with --dump")


@pytest.mark.parametrize("kind", ["repeated", "shuffled"])
def test_a_dump_of_made_texts(
    kind: str, model: Path, texts: Path, tmp_path: Path, capsys: Captured
) -> None:
    own = {"repeated": {"length": 24, "number": 4, "seed": 3}, "shuffled": {"texts": texts}}[kind]
    fields = {f"dataset__synthetic__{name}": value for name, value in own.items()}
    assert sniff(model, Path(f"synthetic:{kind}"), tmp_path / "dump", **fields) == 0
    capsys.readouterr()
    assert verify_dump(model, tmp_path / "dump") == 0
    assert "Equal: no layer differs" in capsys.readouterr().out


@pytest.mark.parametrize(("head", "column"), [("l02h01k", "vector"), ("l01h03q", "entropy")])
def test_a_changed_number_is_found(
    model: Path, texts: Path, tmp_path: Path, capsys: Captured, head: str, column: str
) -> None:
    dump = tmp_path / "dump"
    assert sniff(model, texts, dump) == 0
    file = dump / head / "data.parquet"
    table = pq.read_table(file)
    place, field = table.column_names.index(column), table.schema.field(column)
    values = table[column].to_pylist()
    values[0] = (np.array(values[0]) + 0.01).tolist()
    changed = table.set_column(place, field, pa.array(values, field.type))
    record = {RECORD: pq.read_metadata(file).metadata[RECORD.encode()]}
    pq.write_table(changed.replace_schema_metadata(record), file)
    capsys.readouterr()
    assert verify_dump(model, dump) == 1
    told = capsys.readouterr().out
    assert f"NOT equal: layers {int(head[1:3])} differ by more than 0.0001" in told


LENGTH = 40
FEW_TOKENS = 13  # so that tokens repeat
SLIDING, CHUNKED = "gemma3_text", "llama4_text"


def tokens(length: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, FEW_TOKENS, (length,), generator=generator).tolist()


def eager(model_type: str, **options: Any) -> Any:
    return ARCHITECTURES[model_type].model("eager", **options)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on processors without bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_precisions_are_given_their_rounding(dtype: torch.dtype) -> None:
    found = verify_model(eager("gpt_oss", dtype=dtype), tokens())
    assert not found.failed
    assert found.worst.difference > 1e-5  # which float32 would not pass
    assert found.dtype == str(dtype).removeprefix("torch.")


def test_the_tolerance_grows_with_the_scores() -> None:
    assert allowed("float32", 30.0) == 1e-5
    assert allowed("bfloat16", 2.0) == 2e-2
    assert allowed("bfloat16", 64.0) == 0.25
    assert allowed("float32", 2.0**20) == 2.0**-4
    assert allowed("float64", 1.0) == 1e-5


Rows = Callable[[Tap, int, int], TappedRows]


def mispaired(original: Rows) -> Rows:
    return lambda tapped, layer, head: original(tapped, layer, 1 - head)


def shifted(original: Rows) -> Rows:
    def rows(tapped: Tap, layer: int, head: int) -> TappedRows:
        right = original(tapped, layer, head)
        moved = right.with_columns({"vector": np.roll(right.vectors, 1, axis=0)})
        return TappedRows(moved.columns)

    return rows


@pytest.mark.parametrize(
    ("model_type", "mistake"), [("llama", mispaired), ("gpt_oss", shifted), (CHUNKED, mispaired)]
)
def test_other_vectors_are_noticed_in_every_layer(
    model_type: str, mistake: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tap, "keys", mistake(Tap.keys))
    found = verify_model(eager(model_type), tokens())
    assert len(found.failed) == 4
    assert min(layer.difference for layer in found.layers) > 1e-2


def with_rule(monkeypatch: pytest.MonkeyPatch, change: Callable[[AttentionRule], Any]) -> None:
    """Recompute the weights by another rule."""

    def wrong(q: Any, k: Any, rule: AttentionRule, head: int) -> Any:
        return rule_weights(q, k, change(rule), head)

    monkeypatch.setattr(comparison, "rule_weights", wrong)


@pytest.mark.parametrize(
    ("model_type", "change", "wrong"),
    [
        ("llama", {"scale": 0.2525}, [0, 1, 2, 3]),  # off by a hundredth
        (SLIDING, {"window": 9}, [0, 2]),
        (SLIDING, {"window": None}, [0, 2]),
        (CHUNKED, {"chunked": False}, [0, 1, 2]),
    ],
)
def test_a_wrong_rule_is_noticed_where_it_matters(
    model_type: str, change: dict[str, Any], wrong: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = model_type == "llama"
    with_rule(monkeypatch, lambda r: replace(r, **change) if r.window or everywhere else r)
    found = verify_model(eager(model_type), tokens())
    assert [layer.facts.layer for layer in found.failed] == wrong
    assert found.worst.difference == max(layer.difference for layer in found.layers)


@pytest.mark.parametrize("model_type", ["smollm3", "stablelm", "deepseek_v3"])
def test_vectors_before_the_rotary_embedding_are_noticed(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "tap", partial(qk_sniffer.tap, pre_rope=True))
    found = verify_model(eager(model_type), tokens())
    turned = [layer.facts.layer for layer in found.layers if layer.facts.rope]
    assert [layer.facts.layer for layer in found.failed] == turned


def test_sinks_and_caps_have_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, lambda rule: replace(rule, sinks=None))
    assert len(verify_model(eager("gpt_oss"), tokens()).failed) == 4
    monkeypatch.undo()
    model = eager("gemma2")
    for layer in model.model.layers:  # scores near the cap of 50
        layer.self_attn.q_proj.weight.data.mul_(40)
    assert not verify_model(model, tokens()).failed
    with_rule(monkeypatch, lambda rule: replace(rule, softcap=None))
    assert verify_model(model, tokens()).failed


def test_nan_never_passes() -> None:
    model = eager("llama")
    model.model.layers[2].self_attn.k_proj.weight.data[:16] = math.nan
    found = verify_model(model, tokens(), tolerance=1e9)
    assert [layer.facts.layer for layer in found.failed] == [2, 3]
    assert math.isnan(found.worst.difference)
    assert found.worst.facts.layer == 2


def test_nothing_stays_behind_and_outputs_are_the_same() -> None:
    model, ids = eager("llama"), torch.tensor([tokens()])
    with torch.inference_mode():
        before = model(input_ids=ids, use_cache=False).logits
        verify_model(model, tokens())
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


def test_weights_by_hand() -> None:
    q, k = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 1.0], [0.5, 4.0]])
    rule = AttentionRule(0.5, None, None, chunked=False)
    logits, weights = rule_weights(q, k, rule, 0)
    np.testing.assert_array_equal(logits, [[1.5, -math.inf], [1.0, 4.0]])
    both = math.exp(1) + math.exp(4)
    np.testing.assert_allclose(weights, [[1, 0], [math.exp(1) / both, math.exp(4) / both]])
    bias = torch.tensor([[1.0, 9.0], [2.0, 3.0]])[None, None]
    logits, _ = rule_weights(q, k, replace(rule, softcap=2.0, extra=bias), 0)
    expected = [
        [1 + 2 * math.tanh(0.75), -math.inf],
        [2 + 2 * math.tanh(0.5), 3 + 2 * math.tanh(2)],
    ]
    np.testing.assert_allclose(logits, expected)
    _, weights = rule_weights(q, k, replace(rule, sinks=torch.tensor([2.5])), 0)
    share = math.exp(1.5) / (math.exp(1.5) + math.exp(2.5))
    np.testing.assert_allclose(weights[0], [share, 0])
