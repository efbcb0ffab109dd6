"""Names of heads and finding them on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps import make_dump
from qk_dump.layout import HeadId, open_folder, parquet_files, parse_folder, parse_head
from qk_dump.manifest import DumpManifest, write_manifest
from qk_toolkit.errors import ConfigError, DumpError

NAMES = [
    ("l00h07q", HeadId(0, 7, "q")),
    ("l12h00k", HeadId(12, 0, "k")),
    ("l100h07q", HeadId(100, 7, "q")),
    ("l07h128k", HeadId(7, 128, "k")),
]


def heads_at(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


def refusal(root: str | Path, model_dir: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        open_folder(root, model_dir)
    return str(caught.value)


@pytest.mark.parametrize(("name", "head"), NAMES)
def test_a_folder_name_stands_for_a_head_both_ways(name: str, head: HeadId) -> None:
    assert parse_head(name) == head
    assert head.folder == name


@given(st.integers(0, 9999), st.integers(0, 9999), st.sampled_from("qk"))
def test_every_head_is_found_again_by_its_folder_name(layer: int, head: int, kind: str) -> None:
    head_id = HeadId(layer, head, kind)  # type: ignore[arg-type]
    assert parse_head(head_id.folder) == head_id


@pytest.mark.parametrize(
    "name",
    ["l0h00q", "l00h0q", "l00h00v", "L00h00q", "l00h00q.bak", "xl00h00q", "l00h00", "l-1h00q", ""],
)
def test_any_other_name_is_no_head(name: str) -> None:
    assert parse_head(name) is None


def test_heads_in_the_root_are_found_and_everything_else_is_ignored(tmp_path: Path) -> None:
    heads_at(tmp_path, "l01h00q", "l00h01q", "l00h00k", "logs", "l0h0q")
    (tmp_path / "l00h05q").write_text("a file, not a folder")

    dump = open_folder(tmp_path)

    assert dump.path == tmp_path
    assert dump.query_heads == [(0, 1), (1, 0)]
    assert dump.key_heads == [(0, 0)]
    assert dump.folders[HeadId(0, 1, "q")] == tmp_path / "l00h01q"


def test_heads_under_the_named_model_are_found(tmp_path: Path) -> None:
    heads_at(tmp_path / "small", "l00h00q", "l00h00k")
    heads_at(tmp_path / "large", "l09h00q", "l09h00k")

    dump = open_folder(tmp_path, "large")

    assert dump.path == tmp_path / "large"
    assert dump.query_heads == [(9, 0)]


def test_the_only_model_below_the_root_needs_no_name(tmp_path: Path) -> None:
    heads_at(tmp_path / "only", "l03h00q", "l03h00k")
    heads_at(tmp_path, "notes")

    assert open_folder(tmp_path).path == tmp_path / "only"


def test_keys_drawn_by_attention_are_listed_apart(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00q", "l00h00k", "attended/l00h00k", "attended/l00h01q")
    dump = open_folder(tmp_path)
    drawn = HeadId(0, 0, "k", attended=True)
    assert list(dump.folders) == [HeadId(0, 0, "k"), HeadId(0, 0, "q")]
    assert dump.attended == {drawn: tmp_path / "attended" / "l00h00k"}
    assert list(dump.all_folders) == [*dump.folders, drawn]
    assert dump.files(drawn) == dump.attended_files(0, 0) == ()
    assert dump.attended_files(3, 0) == ()
    assert repr(dump).endswith("1 query heads, 1 key heads>")


@pytest.mark.parametrize("model", [None, "only"])
def test_attended_is_no_model(tmp_path: Path, model: str | None) -> None:
    heads_at(tmp_path / "only", "l00h00k", "attended/l00h00k")
    heads_at(tmp_path, "attended/l09h00k")
    dump = open_folder(tmp_path, model)
    assert dump.path == tmp_path / "only"
    assert [head.folder for head in dump.all_folders] == ["l00h00k", "attended/l00h00k"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("l00h07q", HeadId(0, 7, "q")),
        ("attended/l00h07k", HeadId(0, 7, "k", attended=True)),
        ("attended/l00h07q", None),
        ("other/l00h07k", None),
        ("m/attended/l00h07k", None),
        ("attended", None),
    ],
)
def test_folders_inside_a_dump(path: str, expected: HeadId | None) -> None:
    assert parse_folder(path) == expected
    if expected is not None:
        assert expected.folder == path
        assert expected.config_name == path.replace("/", "-")


def test_heads_in_the_root_win_over_a_model_below_it(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00q")
    heads_at(tmp_path / "other", "l05h00q")

    assert open_folder(tmp_path).query_heads == [(0, 0)]


def test_the_root_may_be_text_and_start_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    heads_at(tmp_path / "dump", "l00h00q")

    assert open_folder("~/dump").path == tmp_path / "dump"


@pytest.mark.parametrize("named", [None, "gamma"])
def test_several_models_are_listed_when_none_of_them_is_named(
    tmp_path: Path, named: str | None
) -> None:
    heads_at(tmp_path / "beta", "l00h00q")
    heads_at(tmp_path / "alpha", "l00h00q")

    message = refusal(tmp_path, named)

    assert str(tmp_path) in message
    assert "Set model_dir to one of: alpha, beta." in message


def test_a_model_named_where_heads_lie_in_the_root_is_told_to_go(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00q")

    message = refusal(tmp_path, "small")

    assert str(tmp_path / "small") in message
    assert "leave model_dir out" in message


@pytest.mark.parametrize("below", [(), ("empty",)])
def test_a_root_without_heads_is_told_what_a_dump_holds(
    tmp_path: Path, below: tuple[str, ...]
) -> None:
    heads_at(tmp_path, *below)
    message = refusal(tmp_path)
    assert str(tmp_path) in message
    assert "l00h00q" in message


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert f"{tmp_path / 'nowhere'}: does not exist" in message
    assert "Give the folder of a dump" in message
    assert "dataset_local_root" not in message  # other commands have no such setting


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "dump"
    file.write_text("")
    assert f"{file}: is a file" in refusal(file)


def test_a_root_that_is_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert str(loop) in refusal(loop)


def test_a_root_of_an_unknown_user_is_refused() -> None:
    assert "~no-such-user-here/dump" in refusal("~no-such-user-here/dump")


def test_a_root_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    assert "x" * 300 in refusal(tmp_path / ("x" * 300))


def test_two_folders_naming_one_head_are_refused(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h07q", "l000h07q")

    message = refusal(tmp_path)

    assert "l000h07q and l00h07q both name layer 0, head 7" in message


def test_a_root_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    closed = heads_at(tmp_path / "closed", "l00h00q")
    closed.chmod(0)
    try:
        if os.access(closed, os.R_OK):
            pytest.skip("this user may list any folder")
        assert f"{closed}: cannot be listed" in refusal(closed)
    finally:
        closed.chmod(0o700)


def test_shards_come_in_name_order_without_hidden_and_foreign_files(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", ".a.parquet.part-7", ".c.parquet", "a.txt", "A.parquet"):
        (tmp_path / name).write_bytes(b"")

    assert [path.name for path in parquet_files(tmp_path)] == [
        "A.parquet",
        "a.parquet",
        "b.parquet",
    ]


def test_a_head_without_shards_has_no_files(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00q")
    assert open_folder(tmp_path).files(HeadId(0, 0, "q")) == ()


def test_a_head_whose_folder_cannot_be_listed_is_an_error_of_that_head(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00q", "l00h01q")
    dump = open_folder(tmp_path)
    (tmp_path / "l00h00q").rmdir()

    with pytest.raises(DumpError) as caught:
        dump.files(HeadId(0, 0, "q"))

    assert str(tmp_path / "l00h00q") in str(caught.value)
    assert dump.files(HeadId(0, 1, "q")) == ()


def test_a_written_dump_is_found_whole(tmp_path: Path) -> None:
    make_dump(tmp_path, layers=2, q_heads=2, k_heads=1, n=3)

    dump = open_folder(tmp_path)

    assert dump.query_heads == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert dump.key_heads == [(0, 0), (1, 0)]
    assert dump.files(HeadId(1, 1, "q")) == (tmp_path / "l01h01q" / "data.parquet",)
    assert dump.manifest is None


@pytest.mark.parametrize("model_dir", [None, "model"])
def test_the_manifest_beside_the_heads_is_picked_up(tmp_path: Path, model_dir: str | None) -> None:
    folder = heads_at(tmp_path / (model_dir or ""), "l00h00q")
    write_manifest(folder, DumpManifest(num_q_heads=12))

    manifest = open_folder(tmp_path, model_dir).manifest

    assert manifest is not None
    assert manifest.num_q_heads == 12


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00q")
    (tmp_path / "dump.json").write_text("{")
    assert str(tmp_path / "dump.json") in refusal(tmp_path)


@pytest.mark.parametrize("name", ["l4000000000h00q", "l1000h00k", "l00h4096q", f"l{'9' * 250}h00q"])
def test_a_folder_of_no_models_head_is_refused(tmp_path: Path, name: str) -> None:
    heads_at(tmp_path, "l00h00q", name)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / name}: ")
    assert "a dump has at most 1,000 layers and 4,096 heads in a layer" in message
    assert refusal(tmp_path.parent, tmp_path.name) == message


def test_the_last_head_there_can_be_is_found(tmp_path: Path) -> None:
    assert open_folder(heads_at(tmp_path, "l999h4095k")).key_heads == [(999, 4095)]


def test_digits_of_other_scripts_name_no_head() -> None:
    assert parse_head("l٠٠h٠٠q") is None


@pytest.mark.parametrize("target", ["l00h00q", "."])
def test_a_head_folder_linked_to_itself_or_its_parent_fails_alone(
    tmp_path: Path, target: str
) -> None:
    make_dump(tmp_path, layers=1, n=20)
    for file in (tmp_path / "l00h00q").iterdir():
        file.unlink()
    (tmp_path / "l00h00q").rmdir()
    (tmp_path / "l00h00q").symlink_to(target)
    dump = open_folder(tmp_path)
    assert len(dump.folders) == 6
    with pytest.raises(DumpError, match="l00h00q: "):
        dump.require_files(HeadId(0, 0, "q"))


def test_names_that_are_not_utf8_are_no_heads(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00k", "l00h00q\udce9")
    assert list(open_folder(tmp_path).folders) == [HeadId(0, 0, "k")]


@pytest.mark.parametrize("root", ["a\0b", "\ud800"])
def test_a_root_that_no_folder_can_have_is_refused(root: str) -> None:
    assert "no file can have this name" in refusal(root)


def test_a_model_dir_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    heads_at(tmp_path, "l00h00k")
    assert "no file can have this name" in refusal(tmp_path, "a\0b")
