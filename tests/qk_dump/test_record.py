"""Files of another capture, lost parts and copies are refused: by ids and numbers of rows."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import head_rows, make_dump
from qk_dump.checks import rules_of
from qk_dump.head_counts import check_head
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.reader import ALL_ROWS, read_head
from qk_dump.record import FileRecord
from qk_dump.rows import Rows
from qk_dump.side_files import Example, read_examples, write_side_files
from qk_dump.source import open_dump
from qk_dump.writer import write_head
from qk_toolkit.errors import DumpError

FOLDERS = ["l00h00q", "l00h00k", "attended/l00h00k"]
HEADS = [HeadId(0, 0, "q"), HeadId(0, 0, "k"), HeadId(0, 0, "k", attended=True)]


def captured(root, capture="one"):
    """A dump of one layer that names its capture, with 20 rows in every head."""
    for number, head in enumerate(HEADS):
        content = head_rows(20, seed=number)
        content |= {"vector": content.pop("vectors"), "sliding_window": np.full(20, -1)}
        write_head(root, head, Rows(content), capture)
    manifest = DumpManifest(capture_id=capture, rows=dict.fromkeys(FOLDERS, 20))
    examples = [Example(number, f"{capture} {number}", 1024, "") for number in range(4)]
    write_side_files(root, manifest, HEADS, examples, {0: "a"})
    return root


def head_in(dump, folder):
    return next(head for head in dump.all_folders if head.folder == folder)


def read(root, folder, most=ALL_ROWS):
    dump = open_dump(root)
    head = head_in(dump, folder)
    return len(read_head(dump.require_files(head), rules=rules_of(dump, head), max_rows=most))


def told(root, folder):
    """Why the head cannot be read. Before a push it is refused for the same reason."""
    dump = open_dump(root)
    with pytest.raises(DumpError) as reading:
        read(root, folder)
    with pytest.raises(DumpError) as pushing:
        check_head(dump, head_in(dump, folder))
    assert str(reading.value) == str(pushing.value)
    return str(reading.value)


def write(table, file, record=None):
    pq.write_table(table.replace_schema_metadata(record and record.as_metadata()), file)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_file_of_another_capture_is_refused(tmp_path, folder):
    dump, other = captured(tmp_path / "dump"), captured(tmp_path / "other", "two")
    assert read(dump, folder) == 20
    file = shutil.copy(other / folder / "data.parquet", dump / folder / "data.parquet")
    assert "the capture one in dump.json: its capture is two" in told(dump, folder)
    write(pq.read_table(file), file)
    message = told(dump, folder)
    assert "it does not name its capture" in message
    assert "remove capture_id and rows from dump.json" in message


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_copy_and_a_lost_part_are_refused(tmp_path, folder):
    dump = captured(tmp_path)
    file = dump / folder / "data.parquet"
    copy = shutil.copy(file, file.with_name("data (1).parquet"))
    message = told(dump, folder)
    assert "data (1).parquet, data.parquet: 40 rows, but dump.json has 20" in message
    assert "Remove the files that do not belong there" in message
    Path(copy).unlink()
    half = pq.read_table(file).slice(10)
    write(half, file, FileRecord("one", folder, 10, half.schema.names))
    assert "data.parquet: 10 rows, but dump.json has 20 for this head" in told(dump, folder)


def test_a_head_that_only_the_manifest_has_is_lost(tmp_path):
    dump = captured(tmp_path)
    assert open_dump(dump).lost_heads == []
    shutil.rmtree(dump / "attended")
    assert open_dump(dump).lost_heads == ["attended/l00h00k"]


def test_examples_and_tokens_of_another_capture_are_refused(tmp_path):
    dump, other = captured(tmp_path / "dump"), captured(tmp_path / "other", "two")
    opened = open_dump(dump)
    assert opened.token_texts == {0: "a"}
    for name in ("examples.parquet", "tokens.parquet"):
        shutil.copy(other / name, dump)
    with pytest.raises(DumpError, match=r"the capture one in dump\.json: its capture is two"):
        read_examples(dump, opened.capture_id)
    with pytest.raises(DumpError, match=r"the capture one in dump\.json: its capture is two"):
        _ = open_dump(dump).token_texts


def test_two_captures_in_one_head_are_told_without_a_manifest(tmp_path):
    dump = captured(tmp_path)
    file = dump / "l00h00k" / "data.parquet"
    table = pq.read_table(file)
    later = pa.array(np.asarray(table["position"]) + 5_000, pa.int32())
    table = table.set_column(table.schema.get_field_index("position"), "position", later)
    record = FileRecord("two", "l00h00k", 20, table.schema.names)
    write(table, file.with_name("more.parquet"), record)
    (dump / "dump.json").unlink()
    with pytest.raises(DumpError, match="is of the capture two, another file of this head is of"):
        read(dump, "l00h00k")


def test_a_head_of_a_foreign_dump_has_one_row_of_a_token(tmp_path):
    """Also if rows are in no order, and if only some of them are read."""
    dump = make_dump(tmp_path, layers=1, n=400)
    file = dump / "l00h00k" / "data.parquet"
    table = pq.read_table(file)
    write(table.take(np.random.default_rng(0).permutation(400)), file)
    assert read(dump, "l00h00k") == 400
    copy = shutil.copy(file, file.with_name("data (1).parquet"))
    with pytest.raises(DumpError, match=r"parquet: row \d+: is a second row of text \d, position"):
        read(dump, "l00h00k")
    Path(copy).unlink()
    write(pa.concat_tables([table, table.slice(7, 1)]), file)
    text, position = (table[name][7].as_py() for name in ("example_id", "position"))
    place = f"row 400: is a second row of text {text}, position {position}; .*: row 7 has it, too"
    for most in (ALL_ROWS, 5):
        with pytest.raises(DumpError, match=place):
            read(dump, "l00h00k", most)
