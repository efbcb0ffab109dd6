"""Numbers that a head's file claims are checked before anything is sized by them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import head_rows, write_columns
from head_files import columns, lists, read, refusal, save, vectors_of
from odd_files import NOT_REGULAR, Maker, claim, claim_type, huge, replace_by
from qk_dump.head_counts import count_buckets, count_rows, vector_width
from qk_dump.heads import HeadId
from qk_toolkit.errors import DumpError

READERS: tuple[Callable[..., Any], ...] = (
    count_rows,
    vector_width,
    lambda files: count_buckets(files, 99),
)


def told_by_all(path: Path, said: str) -> None:
    """Every reader of the file refuses it with one line."""
    assert said in refusal(path)
    for reader in READERS:
        with pytest.raises(DumpError) as caught:
            reader([path])
        assert said in str(caught.value)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(("make", "said"), NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_what_is_no_regular_file_is_refused_unopened(make: Maker, said: str, file: Path) -> None:
    replace_by(make, file)
    told_by_all(file, f"cannot be read ({said})")


@pytest.mark.parametrize(
    ("size", "footer", "said"),
    [
        (112, 0xF0FFFFFF, "its footer would be 4,043,309,055 bytes long, the file has 112"),
        (112, 101, "its footer would be 101 bytes long, the file has 112"),
        (5 << 30, (256 << 20) + 1, "its footer is 268,435,457 bytes long, at most"),
        (11, 0, "it has 11 bytes"),
    ],
)
def test_a_footer_beyond_its_file_or_the_limit_is_refused(
    size: int, footer: int, said: str, file: Path
) -> None:
    huge(file, size, footer)
    told_by_all(file, f"is not a readable Parquet file ({said}")


FLIPS = """
import sys
from pathlib import Path
from qk_toolkit.errors import DumpError
from qk_dump.head_counts import check_file, count_buckets, count_rows, vector_width
from qk_dump.reader import read_head

path = Path(sys.argv[1])
good = path.read_bytes()
calls = (count_rows, vector_width, lambda files: check_file(files[0]))
calls += (lambda files: count_buckets(files, 99),)
calls += (lambda files: read_head(files, max_rows=99, examples=True),)
begin = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
for place in range(begin, len(good), 7):
    path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
    for call in calls:
        try:
            call([path])
        except DumpError as error:
            assert "\\n" not in str(error)
print("done")
"""


def test_no_bit_of_a_footer_ends_the_process_or_in_a_traceback(file: Path) -> None:
    """One bit of every seventh byte. At some, Arrow ends the process when it reads statistics."""
    write_columns(file.parent, HeadId(0, 0, "k"), **head_rows(n=20, d=2))
    path = file.parent / "l00h00k" / "data.parquet"
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, path], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr[-2000:]


def test_more_rows_than_the_file_holds_are_refused(file: Path) -> None:
    claim(save(file, 777), 8_000, instead_of=777)
    for most in (10**6, 50):
        assert "its footer gives 8,000 rows, the file holds 777" in refusal(file, max_rows=most)
    claim(save(file, 777), 2**62, instead_of=777)  # refused unread
    told_by_all(file, f"footer gives {2**62:,} rows, the file has {file.stat().st_size:,} bytes")


@pytest.mark.parametrize("width", [2**31 - 1, 4_097])
def test_a_fixed_width_beyond_any_vector_is_refused(width: int, file: Path) -> None:
    claim_type(save(file, 6), "vector", pa.list_(pa.float32(), width))
    said = f"vectors of {width:,} dimensions, at most 4,096 can be read"
    assert said in refusal(file)
    with pytest.raises(DumpError, match=said):
        vector_width([file])


@pytest.mark.parametrize(
    ("depth", "said"), [(2, "column 'vector' is list<"), (90, "schema too deeply nested")]
)
def test_nested_lists_are_refused(depth: int, said: str, file: Path) -> None:
    kind = pa.float32()
    value: Any = 1.0
    for _ in range(depth):
        kind, value = pa.list_(kind), [value]
    save(file, 6, vector=pa.array([value] * 6, kind))
    assert said in refusal(file)


def test_an_empty_row_group_is_passed_over(file: Path) -> None:
    table = pa.table(columns())
    with pq.ParquetWriter(file, table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 4), table.slice(0, 0), table.slice(4)):
            writer.write_table(part)
    assert vector_width([file]) == 3
    np.testing.assert_array_equal(read(file).vectors, vectors_of(6))


def test_wide_vectors_are_read_in_smaller_batches(file: Path) -> None:
    wide = vectors_of(3, 4_096)
    save(file, 3, vector=lists(wide))
    np.testing.assert_array_equal(read(file).vectors, wide)
    save(file, 3, vector=lists(vectors_of(3, 4_097)))
    assert "at most 4,096 can be read" in refusal(file)
    with pytest.raises(DumpError, match="at most 4,096 can be read"):
        vector_width([file])
