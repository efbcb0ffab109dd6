"""Texts from files of every kind, what is refused, and how they become tokens."""

import bz2
import gc
import gzip
import json
import lzma
from dataclasses import replace
from itertools import islice

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qk_sniffer.config import DatasetSettings
from qk_sniffer.texts.sources import Text, open_texts, tokenize
from qk_toolkit.errors import ConfigError
from tiny_texts import tiny_tokenizer

# datasets leaves a streamed CSV open when one does not read it to its end
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
BOTH_WAYS = pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])


@pytest.fixture(autouse=True)
def _datasets_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module", autouse=True)
def _tables_closed():
    yield
    gc.collect()


def texts_of(path, **settings):
    """(original id, text) of every text, numbered as they come."""
    texts = open_texts(DatasetSettings(path=str(path), **settings))
    found = list(texts)
    assert [text.example_id for text in found] == list(range(len(found)))
    assert texts.total in (None, len(found))
    return [(text.original_id, text.text) for text in found]


def refusal(path, **settings):
    with pytest.raises(ConfigError) as caught:
        texts_of(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "PATH")


def saved(path, content):
    """A file of text, of bytes, or of rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


ROWS = [{"id": "a", "text": "one, two"}, {"id": "b", "text": "three\nfour"}]
TEXTS = [("a", "one, two"), ("b", "three\nfour")]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@BOTH_WAYS
@pytest.mark.parametrize("name", ["v1.2.text", "my book.MD", "book.txt.gz"])
def test_a_text_file_is_one_text_named_after_it(tmp_path, name, streaming):
    content = b"first line\n\nthird line\n"
    file = saved(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    assert texts_of(file, streaming=streaming) == [(name, "first line\n\nthird line\n")]


@BOTH_WAYS
def test_a_folder_of_text_files_in_the_order_of_their_names(tmp_path, streaming):
    """Hidden files are skipped. Names that look like patterns are names."""
    names = ["10.txt", "9.txt", "a*.txt", "a.md", "a1.txt", "b1.txt", "b[1].txt", "c?.txt"]
    names += ["deep/er/c.txt", "d{1,2}.txt", "empty.txt", "é #%20.txt"]
    hidden = (".hidden.txt", ".git/a.txt", "deep/.cache/b.txt", "notes.pdf")
    for name in (*names[::-1], *hidden):
        saved(tmp_path / name, "" if name == "empty.txt" else f"text of {name}")
    expected = [(name, f"text of {name}") for name in names if name != "empty.txt"]
    assert texts_of(tmp_path, streaming=streaming) == expected
    assert texts_of(tmp_path / "b[1].txt", streaming=streaming) == [expected[6]]


def table_of_text(separator):
    lines = [("id", "text"), ("a", '"one, two"'), ("b", '"three\nfour"')]
    return "".join(separator.join(line) + "\n" for line in lines)


TABLES = {
    "rows.jsonl": ROWS,
    "rows.json": ROWS,
    "rows.jsonl.gz": gzip.compress(LINES),
    "rows.jsonl.bz2": bz2.compress(LINES),
    "rows.jsonl.xz": lzma.compress(LINES),
    "rows.csv": table_of_text(","),
    "my.ROWS.TSV": table_of_text("\t"),
}


@BOTH_WAYS
@pytest.mark.parametrize("name", [*TABLES, "rows.parquet"])
def test_tables(tmp_path, name, streaming):
    file = tmp_path / name
    if name in TABLES:
        saved(file, TABLES[name])
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    assert texts_of(file, id_column="id", streaming=streaming) == TEXTS
    assert texts_of(file, streaming=streaming) == [(0, TEXTS[0][1]), (1, TEXTS[1][1])]


@BOTH_WAYS
@pytest.mark.parametrize("wanted", [2, 9])
def test_max_samples_takes_the_beginning(tmp_path, wanted, streaming):
    for number in range(3):
        saved(tmp_path / "folder" / f"{number}.txt", str(number))
    file = saved(tmp_path / "rows.jsonl", [{"text": str(number)} for number in range(3)])
    for place in (file, tmp_path / "folder"):
        found = texts_of(place, max_samples=wanted, streaming=streaming)
        assert [text for _, text in found] == ["0", "1", "2"][:wanted]


NO_TEXTS = (
    "dataset.path: PATH: holds no texts; give .txt, .md, .jsonl, .json, .csv, .tsv or .parquet "
    "files"
)


@BOTH_WAYS
def test_places_without_texts_are_refused(tmp_path, streaming):
    for name in (".", "book.pdf", ".", "book"):
        place = tmp_path if name == "." else saved(tmp_path / name, "x")
        assert refusal(place, streaming=streaming) == NO_TEXTS


def test_files_of_several_kinds_are_refused(tmp_path):
    for name in ("a.txt", "b.csv"):
        saved(tmp_path / name, "id,text\na,b\n")
    assert "holds files of several formats (" in refusal(tmp_path, streaming=False)


def test_a_missing_path_is_named():
    for path in (
        "/nowhere/book.txt",
        "/nowhere",
        "./nothing",
        "~/nothing",
        "book.txt",
        "a/b/c",
        "a/",
    ):
        assert refusal(path) == "dataset.path: PATH: does not exist"


@BOTH_WAYS
def test_a_missing_column_is_told_with_those_there_are(tmp_path, streaming):
    file = saved(tmp_path / "rows.jsonl", ROWS)
    assert refusal(file, text_column="body", streaming=streaming) == (
        "dataset.text_column: PATH has no column 'body'; its columns are id, text"
    )
    assert refusal(file, id_column="key", streaming=streaming) == (
        "dataset.id_column: PATH has no column 'key'; its columns are id, text"
    )


@BOTH_WAYS
@pytest.mark.parametrize(("value", "kind"), [(5, "int"), (["a"], "list")])
def test_a_value_that_is_no_text_is_told_with_its_row(tmp_path, value, kind, streaming):
    file = saved(tmp_path / "rows.jsonl", [{"body": None}, {"body": value}])
    assert refusal(file, text_column="body", streaming=streaming) == (
        f"dataset.text_column: 'body' holds {kind} in row 1, expected text; choose another column"
    )


@BOTH_WAYS
def test_a_broken_file_is_named_in_one_line(tmp_path, streaming):
    for name, content in (
        ("cut.jsonl", b'{"text": "a"}\n{"text": "b'),
        ("other.jsonl", b"no JSON at all"),
        ("rows.json", b"[{"),
        ("quote.csv", b'id,text\na,"b\n'),
        ("columns.csv", b"id,text\na,b,c,d\na,b\ne,f,g,h,i,j\n"),
        ("rows.parquet", b"PAR1 and then nothing"),
        ("book.txt.gz", b"not compressed"),
    ):
        message = refusal(saved(tmp_path / name, content), streaming=streaming)
        assert message.startswith("dataset.path: PATH: cannot be read: "), name


@BOTH_WAYS
@pytest.mark.parametrize("content", [b"\xff\xfe\x00picture", b"zeros \0\0", b"caf\xe9"])
def test_a_binary_file_among_texts_is_named(tmp_path, content, streaming):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("words")
    (tmp_path / "1.txt").write_bytes(content)
    for settings in ({"streaming": streaming}, {"streaming": streaming, "max_samples": 2}):
        assert refusal(tmp_path, **settings) == (
            "dataset.path: PATH/1.txt: is not a text in UTF-8; remove it or convert it"
        )


def test_tokens_of_a_text():
    tokenizer = tiny_tokenizer()
    plain = tokenize(tokenizer, "abc", None, False)
    assert len(plain) == 3
    begin = tokenizer.bos_token_id
    assert tokenize(tokenizer, "abc", None, True) == [begin, *plain]
    assert tokenize(tokenizer, "abc", 2, False) == plain[:2]
    assert tokenize(tokenizer, "abc", 2, True) == [begin, plain[0]]
    assert tokenize(tokenizer, "abc", 9, True) == [begin, *plain]
    for special in (False, True):
        for most in (None, 5):
            assert tokenize(tokenizer, "", most, special) == []
    tokenizer.truncation_side = "left"  # the beginning is kept all the same
    assert tokenize(tokenizer, "abc", 2, False) == plain[:2]
    assert tokenize(tokenizer, "abc", 2, True) == [begin, plain[0]]


def test_a_text_longer_than_the_tokenizer_declares_is_kept_whole(capfd):
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 8
    assert len(tokenize(tokenizer, "a" * 100, None, False)) == 100
    assert len(tokenize(tokenizer, "a" * 100, 50, False)) == 50
    assert capfd.readouterr().err == ""


@BOTH_WAYS
@pytest.mark.parametrize("name", ["README.md", "readme.md"])
def test_a_card_beside_tables_is_no_text(tmp_path, name, streaming):
    saved(tmp_path / "rows.jsonl", ROWS)
    saved(tmp_path / name, "# Rows")
    assert texts_of(tmp_path, id_column="id", streaming=streaming) == TEXTS
    saved(
        tmp_path / "0.jsonl", [{"id": "c", "text": "five"}]
    )  # all tables of a folder are one dataset
    assert texts_of(tmp_path, streaming=streaming) == [
        (number, text) for number, text in enumerate(["five", *(text for _, text in TEXTS)])
    ]


@BOTH_WAYS
def test_a_readme_an_empty_file_and_a_copy_are_no_texts(tmp_path, streaming):
    """They would be counted as independent texts, in the errors and in the rate of the sampler."""
    for name, content in {
        "README.md": "These are three books.",
        "a.txt": "one",
        "b.md": "two",
        "c.txt": "",
        "d.txt": "one",
        "e/readme.txt": "These are more.",
        "e/f.txt": "three",
        "g.txt": " \n\n",
        "h.txt": "one",
    }.items():
        saved(tmp_path / name, content)
    texts = open_texts(DatasetSettings(path=str(tmp_path), streaming=streaming))
    kept = [("a.txt", "one"), ("b.md", "two"), ("e/f.txt", "three")]
    for _ in range(2):
        assert [(one.original_id, one.text) for one in texts] == kept
        assert texts.notes == [
            "not a text: README.md, e/readme.txt",
            "2 empty texts left out: c.txt, g.txt",
            "equal texts are one text; 2 copies left out: d.txt (the same as a.txt), h.txt (the "
            "same as a.txt)",
        ]
    assert texts.total == 3
    first = DatasetSettings(path=str(tmp_path), streaming=streaming, max_samples=2)
    assert [one.original_id for one in open_texts(first)] == ["a.txt", "b.md"]
    assert texts_of(tmp_path / "README.md", streaming=streaming) == [
        ("README.md", "These are three books.")
    ]
    only = saved(tmp_path / "only/README.md", "no texts").parent
    assert "holds no texts" in refusal(only, streaming=streaming)


@BOTH_WAYS
def test_equal_rows_of_a_table_are_one_text(tmp_path, streaming):
    """A text keeps the number of its row as its id in the dataset."""
    rows = [{"text": text} for text in ("one", None, "one", "two", "", "one", "three")]
    file = saved(tmp_path / "rows.jsonl", rows)
    assert texts_of(file, streaming=streaming) == [(0, "one"), (3, "two"), (6, "three")]
    texts = open_texts(DatasetSettings(path=str(file), streaming=streaming, max_samples=2))
    assert [one.original_id for one in texts] == [0, 3]
    assert texts.notes[-1].endswith("1 copy left out: row 2 (the same as row 0)")


@BOTH_WAYS
@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_cells_of_a_table_are_texts_as_they_stand(tmp_path, name, separator, streaming):
    cells = ["NA", "null", "nan", "12", "1.50", "", "word"]
    rows = [f"{number}{separator}{cell}\n" for number, cell in enumerate(cells)]
    file = saved(tmp_path / name, "".join([f"id{separator}text\n", *rows]))
    assert [text for _, text in texts_of(file, streaming=streaming)] == [*filter(None, cells)]


@pytest.mark.parametrize("field", ["name", "revision", "split"])
def test_settings_of_the_hub_are_refused_for_files(tmp_path, field):
    file = saved(tmp_path / "book.txt", "mine")
    assert refusal(file, **{field: "test"}) == (
        f"dataset.{field}: 'test' given, but PATH is a local path and not a dataset of the Hub; "
        f"leave dataset.{field} out"
    )


def test_texts_are_read_by_number_with_their_sizes(tmp_path):
    rows = [{"text": text, "name": f"n{i}"} for i, text in enumerate(["a", "", "ééé", "bb", None])]
    path = saved(tmp_path / "texts.jsonl", rows)
    texts = open_texts(DatasetSettings(path=str(path), id_column="name", max_samples=5))
    assert texts.has_index
    assert texts.sizes() == [1, 6, 2]
    assert texts.between(1, 3) == [*texts][1:3] == [Text(1, "n2", "ééé"), Text(2, "n3", "bb")]
    assert not open_texts(DatasetSettings(path=str(path), streaming=True)).has_index

    def undecodable(columns):
        raise OSError("broken\nimage")

    broken = replace(texts, rows=texts.rows.with_transform(undecodable))
    with pytest.raises(ConfigError, match=r"texts.jsonl: cannot be read: broken image"):
        broken.between(0, 1)
    gone = replace(texts, settings=DatasetSettings(path=str(path), text_column="gone"))
    with pytest.raises(ConfigError, match=r"texts.jsonl: cannot be read: .*gone"):
        gone.sizes()


def test_text_files_are_read_by_number(tmp_path):
    contents = ["one\r\ntwo\n", "three", "\N{GREEK SMALL LETTER ALPHA}"]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content.encode())
    texts = open_texts(DatasetSettings(path=str(tmp_path)))
    assert [text.text for text in islice(texts, 3)] == ["one\ntwo\n", *contents[1:]]
    assert [text.text for text in texts.between(1, 3)] == contents[1:]
    assert texts.sizes() == [9, 5, 2]
    with pytest.raises(ConfigError, match="has no column 'body'; its columns are text"):
        open_texts(DatasetSettings(path=str(tmp_path), text_column="body"))
