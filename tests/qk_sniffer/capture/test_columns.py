"""The columns of whole captures of a tiny model: attention, tokens, keys drawn by attention."""

from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers.models.llama import modeling_llama

import qk_sniffer
from qk_dump.columns import UNITS, written_names
from qk_dump.heads import HeadId
from qk_dump.positions import keep_probabilities
from qk_dump.side_files import read_tokens
from qk_dump.source import open_dump
from qk_sniffer.config import make_config
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.texts.encoding import TextEncoder
from qk_sniffer.texts.synthetic import open_source
from sniffing import attended_tables, sniff, tables_of
from tiny_models import ARCHITECTURES, VOCABULARY
from tiny_texts import save_texts, tiny_tokenizer

LENGTHS = [300, 8, 50, 400]
NUMBER = 20  # keys drawn by attention
FEW = {"capture__sampler__base_rate": 1.0, "capture__attended_keys": NUMBER}
ALL = {"attention": True, "tokens": True}
SECRET = "xqjvk zrwpt blomf gnuxy ydhks "
RECEIVED = set(UNITS["received"])


@pytest.fixture(scope="module")
def whole(model, texts, tmp_path_factory):
    dump = tmp_path_factory.mktemp("whole")
    assert sniff(model, texts, dump, **FEW) == 0
    return dump


def heads_of(dump):
    tables = tables_of(dump) | attended_tables(dump)
    return {name: table for name, table in tables.items() if name != "examples"}


def column(table, name):
    values = table[name].to_pylist()
    return np.array([np.nan if value is None else value for value in values])


@cache
def ids_of(path):
    config = make_config(
        dataset={"path": str(path)}, model={"name": "m"}, output={"data_root": "o"}
    )
    encoder = TextEncoder(config, tiny_tokenizer(), 512, VOCABULARY)
    return [list(encoder.tokens(text)) for text in open_source(config.dataset)]


def test_files_have_the_columns_of_their_kind_and_no_unknown_value(whole):
    tables = heads_of(whole)
    assert len(tables) == 16 + 8 + 8
    for name, table in tables.items():
        kind = name[-1]
        names = written_names(kind, **ALL, received=kind == "k")
        assert table.column_names == [*names, "layer", "head"]
        assert table.num_rows
        for one in {*table.column_names} - {"sliding_window"}:
            assert table[one].null_count == 0, (name, one)
        if name.startswith("attended/"):
            assert table.schema == tables[name.removeprefix("attended/")].schema


def test_columns_are_those_of_a_tap_of_all_rows(whole, texts):
    """Sampled rows and drawn keys, in batches of one text, against all rows of each text."""
    reference = ARCHITECTURES["llama"].model()
    for example in (0, 2, 3):
        with qk_sniffer.tap(reference, sampler="all", attention=True) as tapped:
            run_backbone(decoder_of(reference), torch.tensor([ids_of(texts)[example]]))
        for name in ("l00h01q", "l03h02q", "l02h01k", "attended/l02h01k"):
            table = heads_of(whole)[name]
            mine = table.filter(np.array(table["example_id"]) == example)
            heard = tapped.rows(name.removeprefix("attended/"))
            place = column(mine, "position")
            assert len(place)
            for one in {*mine.column_names} & {*heard.columns} - {
                "example_id",
                "bucket",
            } - RECEIVED:
                if one != "sliding_window":
                    expected = heard.columns[one][place]
                    np.testing.assert_allclose(column(mine, one), expected, atol=1e-4)


def test_rows_have_their_token_and_the_file_of_tokens_its_text(whole, texts):
    used = set[int]()
    for name, table in heads_of(whole).items():
        ids = ids_of(texts)
        places = zip(column(table, "example_id"), column(table, "position"), strict=True)
        assert table["token_id"].to_pylist() == [ids[text][place] for text, place in places]
        used |= {*table["token_id"].to_pylist()}
        used |= {*table["argmax_token"].to_pylist()} if name.endswith("q") else set()
    names = {number: token for token, number in tiny_tokenizer().get_vocab().items()}
    assert read_tokens(whole) == {number: names[number] for number in used}


def test_weights_of_captured_pairs_follow_from_the_attention_columns(model, texts, tmp_path):
    """Every position is kept: weights of every query sum to 1, and no other key is drawn."""
    assert sniff(model, texts, tmp_path, capture__sampler__type="all", dataset__max_samples=3) == 0
    tables = heads_of(tmp_path)
    for queries, keys in (("l00h00q", "l00h00k"), ("l03h03q", "l03h01k")):
        rows, others = tables[queries], tables[keys]
        for text in (0, 2):
            mine = rows.filter(np.array(rows["example_id"]) == text)
            theirs = others.filter(np.array(others["example_id"]) == text)
            logits = column(mine, "vector") @ column(theirs, "vector").T / 4  # (n, n)
            weights = np.exp(logits - column(mine, "lse")[:, None])
            weights[column(mine, "position")[:, None] < column(theirs, "position")] = 0
            masses = column(mine, "mass_by_distance")
            np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
            np.testing.assert_allclose(masses.sum(axis=1), 1, atol=1e-5)
            np.testing.assert_allclose(masses[:, 0], np.diag(weights), atol=1e-5)
            assert set(theirs["inclusion"].to_pylist()) == {1.0}
            np.testing.assert_allclose(column(theirs, "received").sum(axis=0), 1, atol=1e-5)
        assert tables[f"attended/{keys}"].num_rows == 0
        assert tables[f"attended/{keys}"].schema == others.schema


def test_drawn_keys_are_not_in_the_base_sample_and_weights_make_up_for_all(whole):
    dump, tables = open_dump(whole), heads_of(whole)
    assert list(dump.attended) == [
        HeadId(layer, head, "k", attended=True) for layer in range(4) for head in range(2)
    ]
    numbers, sums = [], []
    for head in dump.attended:
        base, drawn = tables[head.name], tables[head.folder]
        base_code, code = (
            1000 * column(one, "example_id") + column(one, "position") for one in (base, drawn)
        )
        assert (np.diff(code) > 0).all()
        assert not np.isin(code, base_code).any()
        first = column(drawn, "position") < 4
        assert (column(drawn, "inclusion")[first] == 1).all()
        for table in (base, drawn):
            rate = keep_probabilities(dump.manifest, "k", column(table, "position")).values
            assert (column(table, "inclusion") >= rate).all()
        assert (column(base, "received") > 0).all()
        texts = column(drawn, "example_id")[~first]
        numbers += [int((texts == text).sum()) for text in (0, 2, 3)]
        sums.append(sum((1 / column(one, "inclusion")).sum() for one in (base, drawn)))
    assert np.mean(numbers) == pytest.approx(NUMBER * 15 / 16, rel=0.15)
    assert np.mean(sums) == pytest.approx(sum(length + 1 for length in LENGTHS if length), rel=0.1)


@pytest.mark.parametrize(
    ("settings", "missing_q", "missing_k"),
    [
        ({"capture__attended_keys": 0}, set(), RECEIVED),
        ({"capture__tokens": "false"}, {"token_id", *UNITS["attention by token"]}, {"token_id"}),
        (
            {"capture__attention": "false", "capture__attended_keys": "none"},
            {name for unit in UNITS if "attention" in unit for name in UNITS[unit]},
            {"value_norm", *RECEIVED},
        ),
    ],
    ids=["no drawn keys", "no tokens", "no attention"],
)
def test_columns_that_are_left_out_change_no_other(
    model, texts, whole, tmp_path, settings, missing_q, missing_k
):
    assert sniff(model, texts, tmp_path, **FEW | settings) == 0
    others = heads_of(whole)
    for name, table in heads_of(tmp_path).items():
        assert table == others[name].select(table.column_names)
        missing = {*others[name].column_names} - {*table.column_names}
        assert missing == (missing_q if name.endswith("q") else missing_k)
    assert (tmp_path / "attended").exists() == ("capture__tokens" in settings)
    assert (tmp_path / "tokens.parquet").exists() == ("capture__tokens" not in settings)


def test_texts_of_a_padded_batch_have_the_columns_of_each_alone(model, texts, whole, tmp_path):
    """Integers are equal, weights up to rounding: matrix products have other shapes."""
    assert sniff(model, texts, tmp_path, inference__batch_size=4, **FEW) == 0
    assert read_tokens(tmp_path) == read_tokens(whole)
    together = heads_of(tmp_path)
    for name, table in heads_of(whole).items():
        for one in table.column_names:
            mine, theirs = column(table, one), column(together[name], one)
            np.testing.assert_allclose(mine, theirs, atol=1e-4 if mine.dtype.kind == "f" else 0)


def test_a_private_capture_shows_no_token(model, tmp_path):
    """No file has a piece of the texts, no column has ids of tokens or depends on them."""
    folder, dump = tmp_path / "texts", tmp_path / "dump"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(SECRET * (4 + number))
    settings = {"capture__tokens": "false", "capture__sampler__type": "all"}
    assert sniff(model, folder, dump, **settings) == 0
    pieces = [SECRET[start : start + 6].encode() for start in range(len(SECRET) - 6)]
    ids = tiny_tokenizer()(SECRET * 4)["input_ids"]
    for path in (path for path in dump.rglob("*") if path.is_file()):
        assert not any(piece in path.read_bytes() for piece in pieces), path
        if path.suffix != ".parquet":
            assert b"xqjvk" not in path.read_bytes()
            continue
        table = pq.read_table(path)
        first = table.filter(np.array(table["example_id"]) == 0)
        assert all(first[name].to_pylist() != ids for name in table.column_names)
        assert {"token_id", *UNITS["attention by token"]}.isdisjoint(table.column_names)
    assert open_dump(dump).manifest.capture["capture"]["tokens"] is False


def test_half_precision_and_one_query_head(model, texts, whole, tmp_path):
    """`received` has the whole group."""
    options = {"output__vector_dtype": "float16", "capture__heads": "3", "capture__layers": "1"}
    assert sniff(model, texts, tmp_path, **FEW, **options) == 0
    assert [head.folder for head in open_dump(tmp_path).attended] == ["attended/l01h01k"]
    ours, theirs = (heads_of(dump)["attended/l01h01k"] for dump in (tmp_path, whole))
    same = [name for name in theirs.column_names if name != "vector"]
    assert ours.select(same) == theirs.select(same)
    half = column(theirs, "vector").astype(np.float16)
    np.testing.assert_array_equal(column(ours, "vector"), half)


def test_the_default_number_of_drawn_keys_follows_from_the_texts_when_the_capture_began(
    model, tmp_path, capsys
):
    texts, dump = tmp_path / "texts", tmp_path / "dump"
    save_texts(texts, [60] * 3)
    assert sniff(model, texts, dump, dataset__max_samples=3) == 0
    manifest = open_dump(dump).manifest
    assert manifest.capture["capture"]["attended_keys"] == 683
    save_texts(texts, [60] * 4)
    capsys.readouterr()
    assert sniff(model, texts, dump, dataset__max_samples=3) == 0
    assert "is complete already" in capsys.readouterr().err


def with_distance_bias(module, query, key, value, mask, **options):
    """Attention with a bias that no argument shows (ALiBi)."""
    place = torch.arange(key.shape[2])
    logits = query @ key.repeat_interleave(2, 1).transpose(2, 3) / 4
    logits = logits - 0.1 * (place[:, None] - place)
    weights = logits.masked_fill(place[:, None] < place, -torch.inf).softmax(-1)
    return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2), weights


def test_unknown_logits_give_null_columns_and_one_note(model, texts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", with_distance_bias)
    assert sniff(model, texts, tmp_path, model__attn_implementation="eager") == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "columns are null" in line]
    assert len(notes) == 1
    assert "layers 0-3: the attention function computes its weights in an unknown way" in notes[0]
    queries, keys = tables_of(tmp_path)["l01h02q"], tables_of(tmp_path)["l01h01k"]
    unknown = {name for unit in UNITS if "attention" in unit for name in UNITS[unit]}
    assert all(queries[name].null_count == queries.num_rows > 0 for name in unknown)
    assert queries["token_id"].null_count == keys["value_norm"].null_count == 0
    assert not (tmp_path / "attended").exists()
    assert keys["received"].null_count == keys.num_rows > 0
    assert set(keys["inclusion"].to_pylist()) == {8 / 16}  # that of the base sample
