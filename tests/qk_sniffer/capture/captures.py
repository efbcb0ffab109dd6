"""A small capture whose content is decided by the number of the chunk, for tests."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from qk_dump import writer
from qk_dump.columns import COLUMNS, MASS_BINS, MASSES, RECEIVED, table_of, written_names
from qk_dump.manifest import DumpManifest
from qk_dump.rows import Rows
from qk_dump.side_files import Example
from qk_sniffer.capture.finish import finish
from qk_sniffer.capture.folder import open_capture
from qk_sniffer.capture.outline import Outline
from qk_sniffer.capture.segments import segment_path, write_segment
from qk_sniffer.rows.layer_tables import LayerTable, Part, with_heads

PLAN = {
    "model": {"name": "tiny", "revision": None},
    "sampler": {"type": "uniform", "base_rate": 2.0},
    "versions": {"torch": "2.9"},
}
MANIFEST = DumpManifest(model="tiny", num_q_heads=4, num_k_heads=2)
KINDS = ("q", "k")
CHUNK = 3  # texts
LAYERS = ((0, 4, None), (1, 6, 16), (2, 4, None))
"""Number, width and window; the first has all columns, the last never has a row."""


def tables(half=False):
    """The tables of all layers, and of keys of the first layer that were drawn by attention."""
    parts = [Part(layer, kind) for layer, _, _ in LAYERS for kind in KINDS]
    return [
        LayerTable(part, heads, names_of(part.layer, part.kind), LAYERS[part.layer][1], 2, half)
        for part in [*parts, Part(0, "k", attended=True)]
        for heads in [tuple(range(2 if part.kind == "k" else 4))]
    ]


def schemas(half=False):
    """The columns of all heads."""
    return {head: table.schema for table in tables(half) for head in table.head_ids}


def names_of(layer, kind):
    """The columns of a kind in a layer."""
    full = layer == 0
    return written_names(kind, attention=full, tokens=full, received=full and kind == "k")


SCHEMAS = schemas()
OUTLINE = Outline(1, 7 * CHUNK, tuple(tables()), MANIFEST, tokens=True)
HEADS = list(SCHEMAS)


def examples_of(chunk):
    """Texts of a chunk; every fifth chunk has only empty ones."""
    ids = range(chunk * CHUNK, (chunk + 1) * CHUNK)
    return [Example(i, f"text {i}", 0 if chunk % 5 == 3 else 10 + i, f"digest {i}") for i in ids]


def rows_of(chunk, half=False):
    """Rows of a chunk: some texts and heads have none, and some values are not known."""
    if chunk % 5 == 3:
        return {}
    return {head: _rows(chunk, head, half) for head in HEADS if head.layer < 2}


def _rows(chunk, head, half):
    rng = np.random.default_rng([chunk, *head[:2], head.kind == "q", head.attended])
    first, (_, width, window) = chunk * CHUNK, LAYERS[head.layer]
    example = np.sort(rng.integers(first, first + CHUNK, rng.integers(0, 9)))
    n = len(example)
    columns = {
        "bucket": np.arange(n) // 2,
        "example_id": example,
        "position": np.arange(n) * 3,
        "vector": rng.standard_normal((n, width)).astype(np.float16 if half else np.float32),
        "sliding_window": np.full(n, window or -1, np.int32),
    }
    for name in names_of(head.layer, head.kind):
        if name in columns:
            continue
        if pa.types.is_integer(COLUMNS[name].type):
            columns[name] = rng.integers(-1, 60, n, np.int32)
            continue
        shape = {MASSES: (n, MASS_BINS), RECEIVED: (n, 2)}.get(name, (n,))
        columns[name] = rng.uniform(0.1, 1, shape)
        if COLUMNS[name].null:
            columns[name][::3] = np.nan
    return Rows(columns)


def batches_of(chunk, half=False):
    """The rows of a chunk as those of two batches: the last text, and those before it."""
    found = {}
    for table in tables(half):
        for last in (False, True):
            rows = {
                head: rows[(rows["example_id"] == (chunk + 1) * CHUNK - 1) == last]
                for head, rows in rows_of(chunk, half).items()
                if Part.of(head) == table.part
            }
            if rows:
                whole = with_heads(rows)[table.part]
                batch = table_of(whole, table.part.layer, table.schema)
                found.setdefault(table.part, []).append(batch)
    return found


def opened(folder, **options):
    """Start or continue the capture."""
    return open_capture(folder, PLAN, OUTLINE, **options)


def save(capture, chunks, half=False):
    """Save chunks."""
    for chunk in chunks:
        target, rows = segment_path(capture.folder, chunk), batches_of(chunk, half)
        write_segment(target, tables(half), rows, examples_of(chunk))


def token_texts(ids):
    """The texts of tokens, as a tokenizer gives them."""
    return {number: f"token {number}" for number in ids}


def complete(capture, chunks, half=False, **options):
    """Write the dump of a capture whose chunks are saved."""
    lock = capture.lock_to_finish()
    try:
        options = {"token_texts": token_texts, **options}
        finish(capture, chunks, tables(half), MANIFEST, **options)
    finally:
        lock.release()


def make_capture(folder, chunks=7, half=False):
    """A dump made without interruption, by one process."""
    capture = opened(folder)
    save(capture, range(chunks), half)
    complete(capture, chunks, half)
    return folder


def content(folder):
    """Every file below the folder, by its path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def undisturbed(chunks):
    """The files of a capture that was not interrupted. They are computed once."""
    return _undisturbed(chunks, writer.ROWS_PER_GROUP)


@cache
def _undisturbed(chunks, rows_per_group):
    """`rows_per_group` is part of the key of the cache, because a test file changes it."""
    with tempfile.TemporaryDirectory() as place:
        return content(make_capture(Path(place), chunks))


def segments(folder):
    """The folders of segments."""
    return sorted((folder / ".capture" / "segments").iterdir())


def in_process(code, *arguments):
    """Start Python with what this file offers, and `folder` as the first argument."""
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    header = "import sys, time; from pathlib import Path; from captures import *\n"
    header += "folder = Path(sys.argv[1])\n"
    return subprocess.Popen(
        [sys.executable, "-c", header + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
