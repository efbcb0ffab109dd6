"""The name of a model, from headers that the library `gguf` writes, and from damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from qk_sniffer.model.gguf import model_title


def header(path: Path, fields: dict[str, Any], first: tuple[str, ...] = ()) -> Path:
    """A GGUF file of a header only. The lists of `first` are written before the fields."""
    writer = gguf.GGUFWriter(path, "llama")
    for name in first:
        writer.add_array(name, ["a", "bc"])
    writer.add_array("general.numbers", [1.5, 2.5])
    for name, value in fields.items():
        writer.add_string(f"general.{name}", value)
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", [f"t{number}" for number in range(2000)])
    writer.add_string("general.late", "after the vocabulary")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({"name": "SmolLM2 135M Instruct", "basename": "x"}, "SmolLM2 135M Instruct"),
        ({"name": "  Größe\n1 ", "size_label": "1B"}, "Größe 1"),
        ({"name": ".", "basename": "SmolLM2", "size_label": "135M"}, "SmolLM2 135M"),
        ({"basename": "SmolLM2"}, "SmolLM2"),
        ({"size_label": "135M"}, "a.Q4_1"),
        ({}, "a.Q4_1"),
        ({"name": "n" * 1000}, "n" * 100),
    ],
)
def test_the_title_is_the_name_in_the_header(
    fields: dict[str, str], title: str, tmp_path: Path
) -> None:
    assert model_title(header(tmp_path / "a.Q4_1.gguf", fields)) == title
    later = header(tmp_path / "a.Q4_1.gguf", fields, first=("general.tags", "general.languages"))
    assert model_title(later) == title


def test_a_damaged_header_gives_the_name_of_the_file(tmp_path: Path) -> None:
    path = header(tmp_path / "a.gguf", {"name": "A model"})
    whole = path.read_bytes()
    end = whole.index(b"A model")
    numbers = whole.index(b"general.numbers") + len("general.numbers") + 8
    endless = whole[:numbers] + b"\xff" * 8 + whole[numbers + 8 :]  # numbers in the list
    cut = [whole[:length] for length in (0, 10, end, end + 3)]
    for damaged in (*cut, endless, b"GGUF" + b"\xff" * 60, b"text" + whole[4:]):
        path.write_bytes(damaged)
        assert model_title(path) == "a"
