"""Tokens of whole captures: ids, their texts, attention to tokens, and captures without them."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import qk_sniffer
from attention_plasticity import analyze_dump
from attention_plasticity.metrics import ROLES
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.attention_columns import ATTENTION_COLUMNS, KEY_COLUMNS
from qk_dump.reader import read_head
from qk_dump.received_columns import RECEIVED_COLUMNS
from qk_dump.source import open_dump
from qk_dump.tokens import read_tokens
from qk_sniffer.model.layout import decoder_of, run_backbone
from qk_sniffer.pipeline.token_texts import token_texts
from sniffing import attended_tables, same_bytes, sniff, tables_of
from tiny_models import ARCHITECTURES
from tiny_texts import some_text, tiny_tokenizer

LENGTHS = [90, 0, 40, 200]
SECRET = "xqjvk zrwpt blomf gnuxy ydhks "


def all_tables(dump: Path) -> dict[str, pa.Table]:
    return tables_of(dump) | attended_tables(dump)


@cache
def ids_of(example: int) -> list[int]:
    return tiny_tokenizer()(some_text(LENGTHS[example], seed=example))["input_ids"]


def test_rows_have_their_token_and_the_file_of_tokens_its_text(whole: Path) -> None:
    used = set()
    for folder, table in all_tables(whole).items():
        name = folder.removeprefix("attended/")
        if name == "examples":
            continue
        assert table.num_rows
        rows = table.to_pandas()
        expected = [ids_of(e)[p] for e, p in zip(rows.example_id, rows.position, strict=True)]
        assert rows.token_id.tolist() == expected
        assert {*rows.layer} == {int(name[1:3])}
        assert {*rows["head"]} == {int(name[4:6])}
        used |= {*rows.token_id, *(rows.argmax_token if name.endswith("q") else ())}
    vocabulary = tiny_tokenizer().get_vocab()
    texts = {number: token for token, number in vocabulary.items() if number in used}
    assert read_tokens(whole) == texts


def test_attention_to_keys_of_a_capture_is_that_of_a_tap(whole: Path) -> None:
    """The columns of sampled rows, in batches of one text, against all rows of each text."""
    reference = ARCHITECTURES["llama"].model()
    tables = {name: read(whole, name) for name in ("l00h01q", "l03h02q", "l02h01k")}
    for example in (0, 2, 3):
        with qk_sniffer.tap(reference, attention=True) as tapped:
            run_backbone(decoder_of(reference), torch.tensor([ids_of(example)]))
        for name, rows in tables.items():
            mine = rows.of_texts(np.array([example]))
            heard, place = tapped.rows(name), mine.position.astype(int)
            assert mine.token_id.tolist() == heard.token_id[place].tolist()
            if name.endswith("k"):
                np.testing.assert_allclose(mine.value_norm, heard.value_norm[place], rtol=1e-5)
                continue
            assert mine.attention.columns.keys() == heard.attention.columns.keys()
            for column, values in mine.attention.columns.items():
                np.testing.assert_allclose(
                    values, heard.attention.columns[column][place], atol=1e-4
                )


def read(dump: Path, head: str) -> Any:
    file = dump / head / "data.parquet"
    return read_head(
        [file], max_rows=10**6, seed=0, with_examples=True, with_attention=True, with_tokens=True
    )


def test_texts_of_a_padded_batch_have_the_tokens_of_each_alone(
    model: Path, texts: Path, whole: Path, tmp_path: Path
) -> None:
    """Integers are equal, weights up to rounding: matrix products have other shapes."""
    assert sniff(model, texts, tmp_path, inference__batch_size=4) == 0
    assert (tmp_path / "tokens.parquet").read_bytes() == (whole / "tokens.parquet").read_bytes()
    alone, together = all_tables(whole), all_tables(tmp_path)
    for name, table in alone.items():
        for column in table.column_names:
            if column in ("vector", "mass_by_distance", "received"):
                continue
            mine, theirs = (side[name][column] for side in (alone, together))
            if not pa.types.is_floating(mine.type):
                assert mine == theirs, (name, column)
            else:
                np.testing.assert_allclose(mine.to_numpy(), theirs.to_numpy(), atol=1e-4)


def test_a_capture_without_tokens_is_refused_token_strings(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"capture__tokens": "false", "capture__capture_token_strings": "true"}
    assert sniff(model, texts, tmp_path, **settings) == 2
    assert "capture_token_strings: would write the tokens that tokens: false leaves out" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("attention", [True, False])
def test_a_private_capture_shows_no_token(model: Path, tmp_path: Path, attention: bool) -> None:
    """No file has a piece of the texts, no column has ids of tokens or depends on them."""
    folder, dump = tmp_path / "texts", tmp_path / "dump"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(SECRET * (4 + number))
    settings = {"capture__tokens": "false", "capture__attention": str(attention).lower()}
    assert sniff(model, folder, dump, capture__sampler__type="all", **settings) == 0
    assert not (dump / "tokens.parquet").exists()
    pieces = [SECRET[start : start + 6].encode() for start in range(len(SECRET) - 6)]
    allowed = {"bucket", "example_id", "position", "vector", "sliding_window", "layer", "head"}
    if attention:
        allowed |= {*ATTENTION_COLUMNS, *KEY_COLUMNS, "value_norm", *RECEIVED_COLUMNS}
    ids = tiny_tokenizer()(SECRET * 4)["input_ids"]
    for path in (path for path in dump.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(piece in content for piece in pieces), path
        if path.suffix != ".parquet":
            assert b"xqjvk" not in content
            continue
        table = pq.read_table(path)
        for name in table.column_names:
            values = table[name].to_pylist()
            assert not any(isinstance(value, str) and "blomf" in value for value in values)
            mine = [
                v for v, e in zip(values, table["example_id"].to_pylist(), strict=True) if e == 0
            ]
            assert mine != ids, (path, name)
        if path.name == "data.parquet":
            assert set(table.column_names) <= allowed
    assert open_dump(dump).manifest.capture["capture"]["tokens"] is False


def test_the_same_vectors_are_captured_without_tokens(
    model: Path, texts: Path, whole: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    assert sniff(model, texts, private, capture__tokens="false") == 0
    for name, table in all_tables(private).items():
        assert table == all_tables(whole)[name].select(table.column_names)
    assert sniff(model, texts, private, overwrite="true") == 0  # and back, with all files
    assert same_bytes(private, whole)
    assert read_tokens(private) == read_tokens(whole)
    assert sniff(model, texts, private, overwrite="true", capture__tokens="false") == 0
    assert read_tokens(private) is None


def byte_level(*pieces: str) -> PreTrainedTokenizerFast:
    """A tokenizer like that of GPT-2 with these pieces besides the letter a."""
    vocabulary = {piece: number for number, piece in enumerate(("a", *pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_byte_level_tokens_are_plain_text() -> None:
    """A piece of a character is shown by its bytes."""
    tokenizer = byte_level("Ġthe", "Ċ", "Ã©", "âĢ", "ĠâĢ")
    assert token_texts(tokenizer, range(6)) == {
        0: "a",
        1: " the",
        2: "\n",
        3: "é",
        4: r"\xe2\x80",
        5: r" \xe2\x80",
    }


def test_tokens_with_a_space_keep_it() -> None:
    """Tokenizers like that of Llama 2 remove a space at the beginning of a text."""
    vocabulary = {token: number for number, token in enumerate(("▁a", "▁the", "the", "<0xE2>"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert fast.decode([1]) == "the"
    assert token_texts(fast, [1, 2, 3]) == {1: " the", 2: "the", 3: "<0xE2>"}


def test_the_analysis_of_a_dump_does_not_depend_on_the_new_columns(
    whole: Path, tmp_path: Path
) -> None:
    """Tables are the same, byte for byte, as those of a dump of an earlier version.

    Only roles, their influences and words need the columns of single keys and of tokens.
    """
    earlier = Path(shutil.copytree(whole, tmp_path / "earlier"))
    old = {"bucket", "example_id", "position", "vector", "sliding_window", *ATTENTION_COLUMNS}
    old |= {*RECEIVED_COLUMNS}  # attended pairs need them
    for file in earlier.glob("*/data.parquet"):
        table = pq.read_table(file)
        names = [name for name in table.column_names if name in old]
        pq.write_table(table.select(names).replace_schema_metadata(None), file)
    (earlier / "tokens.parquet").unlink()
    tables = []
    for place, dump in enumerate((whole, earlier)):
        out = tmp_path / f"out{place}"
        analyze_dump(dump, output_dir=out, max_workers=1, layers=[3], heads=[1])
        tables.append({path.name: path.read_bytes() for path in out.glob("*.csv")})
    for found in tables:
        found.pop("head_roles.csv")
        lines = found["head_influences.csv"].splitlines()
        kept = [line for line in lines if line.split(b",")[3].decode() not in ROLES.with_error]
        found["head_influences.csv"] = b"\n".join(kept)
    assert tables[0].pop("head_words.csv")
    assert len(tables[0]) > 3
    assert tables[0] == tables[1]
