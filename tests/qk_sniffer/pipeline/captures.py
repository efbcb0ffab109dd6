"""A small capture whose content is decided by the number of the batch, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from qk_dump import writer
from qk_dump.attention_columns import ATTENTION_TYPES, MASS_BINS, UNITS, AttentionRows
from qk_dump.examples import Example
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.received_columns import RECEIVED_COLUMNS, ReceivedRows
from qk_dump.schema import TOKEN, TOKEN_ID, VALUE_NORM, written_schema
from qk_sniffer.pipeline.blocks import Block
from qk_sniffer.pipeline.capture_folder import CaptureFolder, open_capture
from qk_sniffer.pipeline.expected_heads import ExpectedHead
from qk_sniffer.pipeline.segment_files import DamagedSegmentError
from qk_sniffer.pipeline.write_dump import write_dump

PLAN: dict[str, Any] = {
    "model": {"name": "tiny", "revision": None},
    "sampler": {"type": "uniform", "base_rate": 2.0},
    "versions": {"torch": "2.9"},
}
MANIFEST = DumpManifest(model="tiny", num_q_heads=4, num_k_heads=2)
BATCH_SIZE = 3


def optional_of(layer: int, kind: str, tokens: bool = False) -> tuple[str, ...]:
    """Optional columns: all in the first layer, and tokens as text in every layer if asked for."""
    names = (TOKEN,) if tokens else ()
    if layer == 0:
        of_keys = (VALUE_NORM, *RECEIVED_COLUMNS)
        names += (TOKEN_ID, *(ATTENTION_TYPES if kind == "q" else of_keys))
    return names


def group_of(layer: int, kind: str) -> int:
    """Only the keys of the first layer have what they receive; each has two query heads."""
    return 2 if layer == 0 and kind == "k" else 0


LAYERS = ((0, 4, None), (1, 6, 16), (2, 4, None))
"""Number, width and window; the last layer never has a row."""


def expected_heads(tokens: bool = False) -> list[ExpectedHead]:
    """The heads of the capture; `tokens` are tokens as text."""
    heads = [
        ExpectedHead(
            HeadId(layer, head, kind),  # type: ignore[arg-type]
            width,
            window,
            optional_of(layer, kind, tokens),
            group_of(layer, kind),
        )
        for layer, width, window in LAYERS
        for kind, count in (("q", 4), ("k", 2))
        for head in range(count)
    ]
    optional = optional_of(0, "k", tokens)
    drawn = (HeadId(0, head, "k", attended=True) for head in range(2))
    return heads + [ExpectedHead(head, 4, None, optional, 2) for head in drawn]


HEADS = expected_heads()


def examples_of(batch: int) -> list[Example]:
    """Texts of a batch; every fifth batch has only empty ones."""
    ids = range(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
    return [Example(i, f"text {i}", 0 if batch % 5 == 3 else 10 + i, f"digest {i}") for i in ids]


def blocks_of(batch: int, dtype: Any = np.float32, tokens: bool = False) -> list[Block]:
    """Rows of a batch: some examples have none."""
    if batch % 5 == 3:
        return []
    blocks = []
    for layer, width, window in LAYERS[:-1]:
        for kind, count in (("q", 4), ("k", 2)):
            rng = np.random.default_rng([batch, layer, kind == "q"])
            first = batch * BATCH_SIZE
            example = np.sort(rng.integers(first, first + BATCH_SIZE, rng.integers(0, 9)))
            n = len(example)
            blocks.append(
                Block(
                    layer=layer,
                    kind=kind,  # type: ignore[arg-type]
                    heads=tuple(range(count)),
                    bucket=np.arange(n) // 2,
                    example_id=example,
                    position=np.arange(n) * 3,
                    vectors=rng.standard_normal((n, count, width)).astype(dtype),
                    sliding_window=window,
                    token_str=[f"é{i}" for i in range(n)] if tokens else None,
                    attention=_attention(n, count) if (layer, kind) == (0, "q") else None,
                    token_id=rng.integers(-1, 50, n, np.int32) if layer == 0 else None,
                    value_norm=_norms(n, count) if (layer, kind) == (0, "k") else None,
                    received=_received_rows(n, count) if group_of(layer, kind) else None,
                )
            )
    return blocks + [_attended(batch, head, dtype, tokens) for head in range(2)]


def _attended(batch: int, head: int, dtype: Any, tokens: bool) -> Block:
    """Keys of a head of the first layer that were drawn by attention."""
    rng = np.random.default_rng([batch, head])
    n = int(rng.integers(0, 9))
    return Block(
        layer=0,
        kind="k",
        heads=(head,),
        bucket=np.arange(n) // 3,
        example_id=np.full(n, batch * BATCH_SIZE),
        position=np.arange(n) * 2 + head,
        vectors=rng.standard_normal((n, 1, 4)).astype(dtype),
        sliding_window=None,
        token_str=["ü"] * n if tokens else None,
        token_id=rng.integers(-1, 70, n, np.int32),
        value_norm=_norms(n, 1),
        received=_received_rows(n, 1),
        attended=True,
    )


def _received_rows(n: int, heads: int) -> ReceivedRows:
    """What keys receive from two query heads; every fourth row is not known."""
    rng = np.random.default_rng([n, heads])
    received = rng.random((n, heads, 2), np.float32)
    received[::4] = np.nan
    return ReceivedRows(received, rng.uniform(0.1, 1, (n, heads)))


def _attention(n: int, heads: int) -> AttentionRows:
    """Attention columns; every third row is not known, and further tokens."""
    rng = np.random.default_rng(n)
    columns: dict[str, Any] = {}
    for name in (name for unit in UNITS for name in unit):
        columns[name] = rng.random((n, heads), np.float32)
        columns[name][::3] = np.nan
        if ATTENTION_TYPES[name] == pa.int32():
            columns[name] = rng.integers(-1, 60, (n, heads), np.int32)
    columns["mass_by_distance"] = rng.dirichlet(np.ones(MASS_BINS), (n, heads)).astype(np.float32)
    return AttentionRows(**columns)


def _norms(n: int, heads: int) -> Any:
    norms = np.random.default_rng(n).random((n, heads), np.float32)
    norms[1::4] = np.nan
    return norms


def schema_of(expected: ExpectedHead) -> pa.Schema:
    """The columns of a head with float32 vectors."""
    return written_schema(expected.width, pa.float32(), expected.optional, expected.group)


def add(capture: CaptureFolder, batches: Iterable[int], **options: Any) -> None:
    for batch in batches:
        capture.add(batch, blocks_of(batch, **options), examples_of(batch))


def opened(folder: Path, **options: Any) -> CaptureFolder:
    return open_capture(folder, PLAN, **options)


def token_texts(ids: Sequence[int]) -> dict[int, str]:
    """The texts of tokens, as a tokenizer gives them."""
    return {number: f"token {number}" for number in ids}


def finish(
    capture: CaptureFolder,
    num_batches: int,
    *,
    tokens: bool = False,
    heads: Sequence[ExpectedHead] | None = None,
    **options: Any,
) -> bool:
    """Save the batches and write the dump when no other process writes it; False if damaged."""
    if capture.complete:
        return True
    capture.flush()
    while (lock := capture.lock_to_finish()) is None:
        if capture.has_dump():
            capture.end()
            return True
        time.sleep(0.05)
    options = {"token_texts": token_texts, **options}
    try:
        heads = expected_heads(tokens) if heads is None else heads
        write_dump(capture, num_batches, MANIFEST, heads, **options)
    except DamagedSegmentError as error:
        capture.remove_damaged(error)
        return False
    finally:
        lock.release()
    return True


def make_capture(
    folder: Path, num_batches: int = 7, *, tokens: bool = False, **options: Any
) -> Path:
    """A dump made without interruption, by one process."""
    capture = opened(folder)
    add(capture, range(num_batches), tokens=tokens, **options)
    finish(capture, num_batches, tokens=tokens)
    capture.close()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, by its path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def undisturbed(num_batches: int) -> dict[str, bytes]:
    """The files of a capture that was not interrupted. They are computed once."""
    return _undisturbed(num_batches, writer.ROWS_PER_GROUP)


@cache
def _undisturbed(num_batches: int, rows_per_group: int) -> dict[str, bytes]:
    """`rows_per_group` is part of the key of the cache, because a test file changes it."""
    with tempfile.TemporaryDirectory() as place:
        return content(make_capture(Path(place), num_batches))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / ".capture" / "segments").iterdir())


def in_process(code: str, *arguments: object) -> subprocess.Popen[str]:
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
