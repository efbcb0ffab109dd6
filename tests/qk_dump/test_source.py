"""Names of heads and of dumps on the Hub, and finding the dump that is meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps import make_dump
from qk_dump.heads import HeadId, parse_folder, parse_head
from qk_dump.hub.place import HubPlace, is_hub_path, parse_place
from qk_dump.layout import open_folder, parquet_files
from qk_dump.source import DumpSource, open_dump
from qk_toolkit.errors import ConfigError, DumpError


@pytest.mark.parametrize("model_dir", [None, "model"])
def test_a_dump_on_this_machine_is_opened(tmp_path, model_dir):
    make_dump(tmp_path / (model_dir or ""), layers=1, q_heads=1, k_heads=1, n=3)
    for dump in (
        open_dump(DumpSource(str(tmp_path), model_dir, "a/b", "branch")),
        open_dump(tmp_path, model_dir),
        open_dump(str(tmp_path)),
    ):
        assert dump.path == tmp_path / (model_dir or "")
        assert dump.query_heads == [(0, 0)]
        assert dump.origin is None
        assert dump.name == dump.path.name


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (DumpSource("data/mine", None, "a/b", "c"), None),
        (DumpSource(None, None, "a/b", "c"), HubPlace("a/b", "c")),
        (DumpSource(None, "m", "a/b", None), HubPlace("a/b", "main", "m")),
        (DumpSource("hf://datasets/d/e@f", None, "a/b", "c"), HubPlace("d/e", "f")),
        (DumpSource("hf://datasets/d/e@f/m", None, "a/b", "c"), HubPlace("d/e", "f", "m")),
        (DumpSource("hf://datasets/d/e@f%2Fg", "m", "a/b", "c"), HubPlace("d/e", "f/g", "m")),
        (DumpSource("hf://datasets/d/e", None, "a/b", "c"), HubPlace("d/e", "c")),
        (DumpSource("hf://datasets/d/e", None, "a/b", None), HubPlace("d/e", "main")),
    ],
)
def test_a_config_names_a_folder_or_a_branch(source, place):
    assert source.place == place


TINY = HubPlace("me/qk", "tiny")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("me/qk", HubPlace("me/qk")),
        ("me/qk@tiny/", TINY),
        ("hf://datasets/me/qk@tiny", TINY),
        ("hf://datasets/me/qk@tiny/model", HubPlace("me/qk", "tiny", "model")),
        ("me/qk/model", HubPlace("me/qk", "main", "model")),
        ("me/qk@team%2Fbig/model", HubPlace("me/qk", "team/big", "model")),
        ("my-org/qk.v1_2@v1.0-a_b", HubPlace("my-org/qk.v1_2", "v1.0-a_b")),
    ],
)
def test_names_of_dumps(text, place):
    assert parse_place(text) == place
    assert parse_place(str(place)) == place
    assert is_hub_path(text) == text.startswith("hf://")


@pytest.mark.parametrize(
    "text",
    ["", "qk", "me/", "/qk", "me/qk@", "me/q k", "me/qk@a@b", "me/qk@a/b/c", "hf://me/qk",
     "hf://models/me/qk", "hf://datasets/qk", "https://huggingface.co/datasets/me/qk"],
)  # fmt: skip
def test_what_names_no_dump(text):
    with pytest.raises(ConfigError, match=r"expected owner/name@branch, or hf://[^\n]*$"):
        parse_place(text)


def heads_at(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


def refusal(root, model_dir=None):
    with pytest.raises(ConfigError) as caught:
        open_folder(root, model_dir)
    assert str(root) in str(caught.value) or "no file can have this name" in str(caught.value)
    return str(caught.value)


# names


@given(st.integers(0, 9999), st.integers(0, 9999), st.sampled_from("qk"))
def test_every_head_is_found_again_by_its_folder_name(layer, head, kind):
    head_id = HeadId(layer, head, kind)
    assert parse_head(head_id.folder) == parse_folder(head_id.folder) == head_id


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("l00h07q", HeadId(0, 7, "q")),
        ("l100h128k", HeadId(100, 128, "k")),
        ("attended/l00h07k", HeadId(0, 7, "k", attended=True)),
        *((path, None) for path in ("attended/l00h07q", "other/l00h07k", "m/attended/l00h07k")),
        *((name, None) for name in ("l0h00q", "l00h0q", "l00h00v", "L00h00q", "l00h00q.bak", "")),
        *((name, None) for name in ("xl00h00q", "l00h00", "l-1h00q", "l٠٠h٠٠q", "attended")),
    ],
)
def test_folders_inside_a_dump(path, expected):
    assert parse_folder(path) == expected
    if expected is not None:
        assert expected.folder == path
        assert expected.config_name == path.replace("/", "-")


# where heads are


def test_heads_in_the_root_are_found_and_everything_else_is_ignored(tmp_path):
    heads_at(tmp_path, "l01h00q", "l00h01q", "l00h00k", "l999h4095k", "logs", "l0h0q")
    heads_at(tmp_path, "attended/l00h00k", "attended/l00h01q", "l00h00q\udce9")
    heads_at(tmp_path / "other", "l05h00q")  # a model below the root
    (tmp_path / "l00h05q").write_text("a file, not a folder")
    dump = open_folder(tmp_path)
    assert dump.path == tmp_path
    assert dump.query_heads == [(0, 1), (1, 0)]
    assert dump.key_heads == [(0, 0), (999, 4095)]
    assert dump.folders[HeadId(0, 1, "q")] == tmp_path / "l00h01q"
    drawn = HeadId(0, 0, "k", attended=True)
    assert dump.attended == {drawn: tmp_path / "attended" / "l00h00k"}
    assert list(dump.all_folders) == [*dump.folders, drawn]
    assert dump.files(drawn) == dump.files(drawn._replace(layer=3)) == ()
    assert repr(dump).endswith("2 query heads, 2 key heads>")
    (tmp_path / "dump.json").write_text("{")
    assert str(tmp_path / "dump.json") in refusal(tmp_path)


def test_models_below_the_root(tmp_path):
    heads_at(tmp_path, "notes", "attended/l09h00k")  # attended is no model
    small = heads_at(tmp_path / "small", "l03h00q", "l03h00k", "attended/l03h00k")
    for dump in (open_folder(tmp_path), open_folder(tmp_path, "small")):
        assert dump.path == small
        assert [head.folder for head in dump.all_folders] == [
            *("l03h00k", "l03h00q", "attended/l03h00k")
        ]
    heads_at(tmp_path / "large", "l09h00q")
    assert open_folder(tmp_path, "large").query_heads == [(9, 0)]
    for named in (None, "gamma"):
        assert "Set model_dir to one of: large, small." in refusal(tmp_path, named)
    heads_at(tmp_path, "l00h00q")
    assert f"{tmp_path / 'gamma'}: no heads found." in refusal(tmp_path, "gamma")
    assert "leave model_dir out" in refusal(tmp_path, "gamma")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("study.json", "It is the folder of a study. Give one of its dumps, in {}/dumps."),
        ("run.json", "It holds results of an analysis. Give the dump that was analysed."),
        ("config.json", "It is a model. Capture it first: attention-plasticity capture"),
        ("a.txt", "A dump holds folders named l00h00q"),
    ],
)
def test_a_folder_of_another_kind_is_told_by_its_kind(name, told, tmp_path):
    (tmp_path / name).write_text("{}")
    assert f"{tmp_path}: no heads found. {told.format(tmp_path)}" in refusal(tmp_path)


def test_the_root_may_be_text_and_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    heads_at(tmp_path / "dump", "l00h00q")
    assert open_folder("~/dump").path == tmp_path / "dump"


# refusals


def test_roots_that_are_no_folder_of_a_dump(tmp_path):
    assert "l00h00q" in refusal(tmp_path)
    message = refusal(tmp_path / "nowhere")
    assert "nowhere: does not exist. Give the folder of a dump" in message
    assert "dataset_local_root" not in message  # other commands have no such setting
    (tmp_path / "file").write_text("")
    assert "file: is a file" in refusal(tmp_path / "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for root in (tmp_path / "loop", "~no-such-user-here/dump", tmp_path / ("x" * 300)):
        refusal(root)
    for root in ("a\0b", "\ud800"):
        assert "no file can have this name" in refusal(root)
    assert "no file can have this name" in refusal(tmp_path, "a\0b")


def test_two_folders_naming_one_head_are_refused(tmp_path):
    heads_at(tmp_path, "l00h07q", "l000h07q")
    assert "l000h07q and l00h07q both name layer 0, head 7" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["l4000000000h00q", "l1000h00k", "l00h4096q", f"l{'9' * 250}h00q"])
def test_a_folder_of_no_models_head_is_refused(tmp_path, name):
    heads_at(tmp_path, "l00h00q", name)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / name}: ")
    assert "a dump has at most 1,000 layers and 4,096 heads in a layer" in message
    assert refusal(tmp_path.parent, tmp_path.name) == message


# files of a head


def test_shards_come_in_name_order_without_hidden_and_foreign_files(tmp_path):
    for name in ("b.parquet", "a.parquet", ".a.parquet.part-7", ".c.parquet", "a.txt", "A.parquet"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in parquet_files(tmp_path)] == [
        "A.parquet",
        "a.parquet",
        "b.parquet",
    ]


@pytest.mark.parametrize("target", [None, "l00h00q", "."])
def test_a_head_whose_folder_cannot_be_listed_fails_alone(tmp_path, target):
    """A folder that was removed, and one that is linked to itself or to its parent."""
    heads_at(tmp_path, "l00h01q")
    heads_at(tmp_path, *["l00h00q"] * (target is None))
    if target is not None:
        (tmp_path / "l00h00q").symlink_to(target)
    dump = open_folder(tmp_path)
    assert len(dump.folders) == 2
    if target is None:
        (tmp_path / "l00h00q").rmdir()
    with pytest.raises(DumpError, match="l00h00q: "):
        dump.require_files(HeadId(0, 0, "q"))
    assert dump.files(HeadId(0, 1, "q")) == ()
