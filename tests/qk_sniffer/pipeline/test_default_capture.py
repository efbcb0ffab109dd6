"""Captures with all defaults: sampler auto, tokens, and keys drawn by attention together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import qk_sniffer
from qk_dump.attended_keys import read_attended
from qk_dump.attention_columns import ATTENTION_COLUMNS, KEY_COLUMNS, TOKEN_COLUMNS
from qk_dump.keep_probabilities import keep_probabilities
from qk_dump.received_columns import RECEIVED_COLUMNS
from qk_dump.source import open_dump
from qk_dump.tokens import read_tokens
from qk_sniffer.cli import main
from qk_sniffer.config import make_config
from qk_sniffer.model.layout import decoder_of, run_backbone
from qk_sniffer.pipeline.encoding import TextEncoder
from qk_sniffer.pipeline.synthetic import open_source
from sniffing import attended_tables, sniff, tables_of
from tiny_models import ARCHITECTURES, VOCABULARY
from tiny_texts import tiny_tokenizer

NUMBER, LENGTH = 40, 380  # texts, and tokens of each: auto keeps 0.4 of the keys
LENGTHS = [LENGTH - 1] * NUMBER
REPEATED: Any = "synthetic:repeated"
EVERY_ROW = {"bucket", "example_id", "position", "vector", "sliding_window", "layer", "head"}
OF_TOKENS = {"token_id", *TOKEN_COLUMNS}


def capture(model: Path, texts: Path, dump: Path, *flags: str) -> Path:
    given = {"model.name": model, "dataset.path": texts, "output.data_root": dump}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    assert main([*words, *flags]) == 0
    return dump


@pytest.fixture(scope="module")
def whole(model: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(model, texts, tmp_path_factory.mktemp("whole"))


def tokens_of(path: Path, **synthetic: int) -> list[list[int]]:
    dataset = {"path": str(path)} | ({"synthetic": synthetic} if synthetic else {})
    config = make_config(dataset=dataset, model={"name": "m"}, output={"data_root": "o"})
    encoder = TextEncoder(config, tiny_tokenizer(), 512, VOCABULARY)
    return [list(encoder.tokens(text)) for text in open_source(config.dataset)]


def heads_of(dump: Path) -> dict[str, pa.Table]:
    tables = tables_of(dump) | attended_tables(dump)
    return {name: table for name, table in tables.items() if name != "examples"}


def test_files_have_all_columns(whole: Path) -> None:
    tables = heads_of(whole)
    assert len(tables) == 16 + 8 + 8
    for name, table in tables.items():
        of_queries = {*ATTENTION_COLUMNS, *KEY_COLUMNS, *TOKEN_COLUMNS}
        own = of_queries if name.endswith("q") else {"value_norm", *RECEIVED_COLUMNS}
        assert set(table.column_names) == EVERY_ROW | own | {"token_id"}
        assert table.num_rows
        for column in set(table.column_names) - {"sliding_window"}:
            assert table[column].null_count == 0, (name, column)
        if name.startswith("attended/"):
            assert table.schema == tables[name.removeprefix("attended/")].schema


def test_rows_have_their_tokens(whole: Path, texts: Path) -> None:
    check_tokens(whole, tokens_of(texts))


def check_tokens(dump: Path, texts: list[list[int]]) -> None:
    ids = np.array(texts)  # (texts, s)
    used = set()
    for table in heads_of(dump).values():
        place = table["example_id"].to_numpy(), table["position"].to_numpy()
        np.testing.assert_array_equal(table["token_id"].to_numpy(), ids[place])
        for column in {"token_id", "argmax_token"} & {*table.column_names}:
            used |= {*table[column].to_pylist()}
    names = {number: token for token, number in tiny_tokenizer().get_vocab().items()}
    assert read_tokens(dump) == {number: names[number] for number in used}


def test_made_texts_have_the_same_columns(model: Path, whole: Path, tmp_path: Path) -> None:
    options = {"capture__sampler__base_rate": 2.0, "capture__attended_keys": 20}
    made = {"number": 4, "length": 100}
    options |= {f"dataset__synthetic__{name}": value for name, value in made.items()}
    assert sniff(model, REPEATED, tmp_path, **options) == 0
    others = heads_of(whole)
    for name, table in heads_of(tmp_path).items():
        assert table.num_rows
        assert table.schema == others[name].schema
    check_tokens(tmp_path, tokens_of(REPEATED, **made))


def test_drawn_keys_are_those_of_a_capture_of_all_keys(whole: Path, texts: Path) -> None:
    """Their vectors and value norms, against a tap of the first text."""
    reference = ARCHITECTURES["llama"].model()
    with qk_sniffer.tap(reference, attention=True) as tapped:
        run_backbone(decoder_of(reference), torch.tensor(tokens_of(texts)[:1]))
    dump = open_dump(whole)
    for layer, head in dump.key_heads:
        drawn = read_attended(dump, layer, head, max_rows=10**6, seed=0)
        assert drawn is not None
        mine = drawn.of_texts(np.array([0]))
        known, place = tapped.keys(layer, head), mine.position.astype(int)
        assert len(mine) > 4
        assert mine.token_id.tolist() == known.token_id[place].tolist()
        np.testing.assert_allclose(mine.value_norm, known.value_norm[place], rtol=1e-5)
        np.testing.assert_allclose(mine.vectors, known.vectors[place], atol=1e-5)


def test_inclusion_weights_the_rows_to_all_tokens(whole: Path) -> None:
    """Σ 1 / inclusion is the number of tokens; the base sample has the chosen rates."""
    dump, tables = open_dump(whole), heads_of(whole)
    sums = []
    for layer, head in dump.key_heads:
        name = f"l{layer:02d}h{head:02d}k"
        both = [tables[name], tables[f"attended/{name}"]]
        for table in both:
            base = keep_probabilities(dump.manifest, "k", table["position"].to_numpy()).values
            assert base is not None
            assert (base < 0.5).all()
            assert (table["inclusion"].to_numpy() >= base).all()
        sums.append(sum(float(np.sum(1 / table["inclusion"].to_numpy())) for table in both))
    assert np.mean(sums) == pytest.approx(NUMBER * LENGTH, rel=0.03)
    plan = dump.manifest.capture["capture"]
    assert plan["attended_keys"] == -(-2048 // NUMBER)
    assert plan["sampler"]["type"] == "auto"


def test_a_private_capture_differs_in_tokens_alone(
    model: Path, texts: Path, whole: Path, tmp_path: Path
) -> None:
    private = capture(model, texts, tmp_path / "private", "--capture.tokens", "false")
    assert read_tokens(private) is None
    tables, others = heads_of(private), heads_of(whole)
    assert tables.keys() == others.keys()
    for name, table in tables.items():
        assert set(others[name].column_names) - set(table.column_names) == (
            OF_TOKENS & set(others[name].column_names)
        )
        assert table == others[name].select(table.column_names)
    for path in private.rglob("data.parquet"):
        assert OF_TOKENS.isdisjoint(pq.read_schema(path).names)


def test_a_saved_tap_has_the_same_columns(whole: Path, tmp_path: Path) -> None:
    model = ARCHITECTURES["llama"].model()
    few: dict[str, Any] = {"sampler": "uniform", "base_rate": 2.0, "min_bucket_size": 16}
    ids = torch.tensor(tokens_of(REPEATED, number=2, length=100))
    plain = saved(model, ids, tmp_path / "plain", **few)
    assert {name: set(table.column_names) for name, table in heads_of(plain).items()} == {
        name: set(table.column_names) for name, table in heads_of(whole).items()
    }
    found = {n for table in heads_of(plain).values() for n in table["token_id"].to_pylist()}
    assert found <= set(read_tokens(plain) or ())
    private = saved(model, ids, tmp_path / "private", **few, tokens=False)
    assert read_tokens(private) is None
    assert all(OF_TOKENS.isdisjoint(table.column_names) for table in heads_of(private).values())


def saved(model: Any, ids: torch.Tensor, folder: Path, **options: Any) -> Path:
    with torch.no_grad(), qk_sniffer.tap(model, attention=True, attended_keys=9, **options) as t:
        model(ids)
    return t.save(folder, tokenizer=tiny_tokenizer())
