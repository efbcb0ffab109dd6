"""Finding the dump a config speaks of."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dumps import make_dump
from qk_dump.hub.place import HubPlace
from qk_dump.reader import read_head
from qk_dump.source import DumpSource, open_dump


@pytest.mark.parametrize("model_dir", [None, "model"])
def test_a_dump_on_this_machine_is_opened(tmp_path: Path, model_dir: str | None) -> None:
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
def test_a_config_names_a_folder_or_a_branch(source: DumpSource, place: HubPlace | None) -> None:
    assert source.place == place


def test_unknown_columns_are_noted_once(tmp_path: Path) -> None:
    """Columns that later versions write are known. A damaged file is left to its head."""
    root = make_dump(tmp_path, layers=2, q_heads=2, k_heads=1, n=3)
    notes: list[str] = []
    open_dump(root, note=notes.append)
    assert notes == []
    for file in sorted(root.glob("*/data.parquet")):
        table = pq.read_table(file)
        for name in ("token_id", "mine", "a\nb"):
            table = table.append_column(name, table["bucket"])
        pq.write_table(table, file)
        assert read_head([file], examples=True).bucket.shape == (3,)
    open_dump(root, note=notes.append)
    expected = "columns that are not part of a dump are ignored: 'mine', 'a\\nb'"
    assert notes == [f"{root / 'l00h00q'}: {expected}"]
    (root / "l00h00q" / "data.parquet").write_bytes(b"damaged")
    open_dump(root, note=notes.append)
    assert notes[1:] == [f"{root / 'l00h00k'}: {expected}"]
