"""Dumps at URLs: found by one listing, read in ranges, checked as local files are."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dumps import add_attended, head_rows, make_dump, write_columns
from qk_dump.head_counts import (
    count_buckets,
    count_rows,
    texts_of_heads,
    texts_of_layers,
    vector_width,
)
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.reader import read_head
from qk_dump.remote import Listing, RemoteFile, RemotePath
from qk_dump.side_files import Example, read_examples, write_examples
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError, DumpError, StoreError
from qk_toolkit.store import Store
from s3_server import error, truncated

HEAD = HeadId(0, 1, "q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dump with two shards of one head, dump.json and examples.parquet."""
    folder = make_dump(tmp_path_factory.mktemp("remote") / "dump", layers=1, n=300)
    table = pq.read_table(folder / HEAD.folder / "data.parquet")
    later = pc.add(table["position"], 1024)
    more = table.set_column(table.schema.get_field_index("position"), "position", later)
    pq.write_table(more.replace_schema_metadata(None), folder / HEAD.folder / "more.parquet")
    write_examples(folder, [Example(i, f"text {i}", 1024, "") for i in range(4)])
    write_manifest(folder, DumpManifest(model="tiny", num_layers=1, num_q_heads=4, num_k_heads=2))
    return folder


def read(dump, head=HEAD):
    files = dump.files(head) if head.attended else dump.require_files(head)
    return read_head(files, max_rows=500, examples=head.kind == "k")


def same(one, other):
    names = one.columns
    return set(names) == set(other.columns) and all(
        np.array_equal(one[name], other[name]) for name in names
    )


def test_a_dump_at_a_url_is_the_local_one(s3, folder):
    add_attended(folder)
    s3.put_folder(folder, "models/dump")
    s3.put("models/dump/l00h01q/.hidden.parquet", b"")
    s3.put("models/dump/notes/l00h00q.txt", b"")
    here, there = open_dump(folder), open_dump(s3.url("models/dump"))
    assert [request.method for request in s3.requests] == ["GET", "GET"]  # listing, dump.json
    assert there.manifest == here.manifest
    assert there.name == "dump"
    assert repr(there) == repr(here).replace(str(folder), s3.url("models/dump"))
    assert list(there.folders) == list(here.folders)
    assert list(there.attended) == list(here.attended) == [HeadId(0, 0, "k", attended=True)]
    for head in here.all_folders:
        assert [file.name for file in there.files(head)] == [f.name for f in here.files(head)]
        assert same(read(there, head), read(here, head))
        assert count_rows(there.files(head)) == count_rows(here.files(head))
        assert vector_width(there.files(head)) == vector_width(here.files(head))
        assert count_buckets(there.files(head), 99) == count_buckets(here.files(head), 99)
    assert texts_of_layers(there, [0]).tolist() == texts_of_layers(here, [0]).tolist()
    shown = []
    everything = texts_of_heads(there, lambda done, total: shown.append((done, total)))
    assert everything.tolist() == [0, 1, 2, 3]
    assert shown == [(len(here.all_folders), len(here.all_folders))]
    assert read_examples(there.path) == read_examples(here.path)
    before = len(s3.requests)
    read_examples(there.path)
    assert len(s3.requests) == before  # kept
    assert str(there.files(HEAD)[0]) == s3.url("models/dump/l00h01q/data.parquet")
    with pytest.raises(DumpError, match=r"models/dump/l07h00k: the key head is not in the dump"):
        there.require_files(HeadId(7, 0, "k"))


def test_models_in_subfolders(s3, folder):
    s3.put_folder(folder, "all/one")
    assert str(open_dump(s3.url("all")).path) == s3.url("all/one")
    s3.put_folder(folder, "all/two")
    with pytest.raises(ConfigError, match=r"no heads found. Set model_dir to one of: one, two"):
        open_dump(s3.url("all"))
    assert open_dump(s3.url("all"), "two").name == "two"
    with pytest.raises(ConfigError, match=r"all/three: no heads found"):
        open_dump(s3.url("all"), "three")
    with pytest.raises(ConfigError, match="nothing: holds no files"):
        open_dump(s3.url("nothing"))
    assert open_dump(f"file://{folder}").path == folder


def wide_file(path):
    """A large file of a foreign writer: a column of text, and one large row group."""
    rows = head_rows(n=20_000, d=64)
    vectors = rows["vectors"]
    column = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), 64)
    table = pa.table(
        {
            "comment": [f"{i:0400}" for i in range(20_000)],
            "bucket": pa.array(rows["bucket"], pa.int32()),
            "vector": column,
            "position": pa.array(rows["position"], pa.int32()),
            "example_id": pa.array(rows["example_id"], pa.int32()),
        }
    )
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, compression="none", use_dictionary=False)


def test_only_the_needed_columns_are_read(s3, tmp_path):
    file = tmp_path / "dump" / HEAD.folder / "data.parquet"
    wide_file(file)
    s3.put_folder(tmp_path / "dump", "dump")
    dump = open_dump(s3.url("dump"))
    s3.requests.clear()
    assert same(read(dump), read(open_dump(tmp_path / "dump")))
    ranges = [r.range.removeprefix("bytes=").split("-") for r in s3.requests if r.method == "GET"]
    total = sum(int(end) - int(start) + 1 for start, end in ranges)
    assert total < 0.65 * file.stat().st_size  # without the 8 MB of comments
    s3.requests.clear()
    assert count_buckets(dump.files(HEAD), 99) == 40
    ranges = [r.range.removeprefix("bytes=").split("-") for r in s3.requests]
    assert sum(int(end) - int(start) + 1 for start, end in ranges) < 400_000


def test_any_order_of_reads_gives_the_bytes_of_the_file(s3):
    content = np.random.default_rng(0).bytes(200_000)
    s3.put("dump/file", content)
    path = RemotePath(Listing(Store(s3.url("dump")))) / "file"
    rng, file, plain = np.random.default_rng(1), RemoteFile(path), io.BytesIO(content)
    for _ in range(30):
        start, size = int(rng.integers(0, len(content) + 1000)), int(rng.integers(0, 90_000))
        assert file.seek(start) == plain.seek(start) == file.tell()
        assert file.read(size) == plain.read(size)
    assert file.seek(-10, io.SEEK_END) == plain.seek(-10, io.SEEK_END)
    assert file.read() == plain.read()
    assert file.read(5) == b""


def test_faults_in_the_middle_of_a_file(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    wide_file(tmp_path / "dump" / HEAD.folder / "data.parquet")
    s3.put_folder(tmp_path / "dump", "dump")
    here = read(open_dump(tmp_path / "dump"))
    for fault in (truncated, error(500)):
        plan = s3.fail("GET", fault, path=HEAD.folder, times=1)
        assert same(read(open_dump(s3.url("dump"))), here)
        assert plan.hits == 1
    s3.fail("GET", error(500), path=HEAD.folder)
    with pytest.raises(StoreError, match=r"l00h01q/data.parquet: reading failed: a planned fault"):
        read(open_dump(s3.url("dump")))


def test_files_that_change_or_vanish(s3, tmp_path):
    path = write_columns(tmp_path / "dump", HEAD, **head_rows(n=5000, d=32))
    name = f"dump/{HEAD.folder}/data.parquet"
    s3.put(name, path.read_bytes())
    dump = open_dump(s3.url("dump"))
    other = write_columns(tmp_path / "other", HEAD, **head_rows(n=4000, d=32, seed=9))
    s3.put(name, other.read_bytes())  # smaller: a range beyond its end is requested
    with pytest.raises(DumpError, match=r"data.parquet: changed while it was read; run the same"):
        read(dump)
    again = dump.listed_again()
    assert len(read(again)) == 500
    content = bytearray(other.read_bytes())
    s3.put(name, bytes(content[:-4]) + b"PAR2")  # the same size
    with pytest.raises(DumpError, match=r"changed while it was read|not a readable Parquet"):
        read(again)
    s3.put(name, bytes(content))
    dump = open_dump(s3.url("dump"))
    s3.delete(name)
    with pytest.raises(DumpError, match="was removed while it was read"):
        read(dump)
    with pytest.raises(DumpError, match=r"l00h01q: holds no Parquet file"):
        read(dump.listed_again())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read|not a readable"),
        (b"PAR1" + b"\xff" * 4 + b"PAR1", "cannot be read|not a readable"),
        (b"x" * 200_000 + b"\x10\0\0\0PAR1", "cannot be read|not a readable"),
    ],
)
def test_damaged_files(s3, content, message):
    s3.put("dump/l00h01q/data.parquet", content)
    s3.put("dump/examples.parquet", content)
    dump = open_dump(s3.url("dump"))
    with pytest.raises(DumpError, match=message):
        read(dump)
    with pytest.raises(DumpError, match=message):
        read_examples(dump.path)
