"""The dump that comes with the package: a slice of what `make demo-capture` makes (`make sample`).

Some layers whole, and a share of their rows, drawn independently but alike for the heads of one
layer and kind, as a capture samples them. `kept_share` in dump.json records the shares. Vectors are
rounded to float16, attention columns to multiples of 1/256 or 1/4096, so that the files are small.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attention_plasticity.demo.sample import sample_path
from qk_dump.attention_columns import ATTENTION_COLUMNS, MASSES, AttentionRows
from qk_dump.card import card
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.source import open_dump
from qk_dump.writer import write_head
from qk_toolkit.files import write_text

SOURCE = Path("demo-smollm2/dumps/moby-dick-8192")
LAYERS = (0, 14, 29)
KEPT_SHARE = {"q": 0.27, "k": 0.33}  # of the rows of the source
KINDS = ("q", "k")


def main() -> None:
    """Make the slice in the place of the one that is there."""
    dump, target = open_dump(SOURCE), sample_path()
    for old in target.glob("l*"):
        shutil.rmtree(old)
    heads = [head for head in sorted(dump.folders) if head.layer in LAYERS]
    for head in heads:
        table = pq.read_table(dump.folders[head] / "data.parquet")
        _write(target, head, table.take(_rows(head, table.num_rows)))
    assert dump.manifest is not None
    told = dump.manifest.model_dump()
    told |= {"slice": {"layers": list(LAYERS), "dtype": "float16"}, "kept_share": KEPT_SHARE}
    manifest = DumpManifest.model_validate(told)
    write_manifest(target, manifest)
    shutil.copy(SOURCE / "examples.parquet", target)
    write_text(target / "README.md", card(manifest, heads, examples=True))
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {len(heads)} heads, {size / 1e6:.2f} MB", file=sys.stderr)


def _rows(head: HeadId, number: int) -> np.ndarray:
    """The rows that are kept; every row is drawn on its own, so that its probability is known."""
    rng = np.random.default_rng([head.layer, KINDS.index(head.kind)])
    return np.flatnonzero(rng.random(number) < KEPT_SHARE[head.kind])


def _write(target: Path, head: HeadId, rows: pa.Table) -> None:
    flat = rows["vector"].combine_chunks().flatten().to_numpy()
    write_head(
        target,
        head,
        bucket=rows["bucket"].to_numpy(),
        example_id=rows["example_id"].to_numpy(),
        position=rows["position"].to_numpy(),
        vectors=flat.reshape(len(rows), -1).astype(np.float16),  # (n, d)
        attention=_attention(rows) if head.kind == "q" else None,
    )


def _attention(rows: pa.Table) -> AttentionRows:
    """The attention columns, rounded: logits and entropy to 1/256, weights to 1/4096."""
    lse, largest, entropy, sinks = (rows[name].to_numpy() for name in ATTENTION_COLUMNS[:-1])
    masses = rows[MASSES].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    return AttentionRows(
        _rounded(lse, 256),
        _rounded(largest, 256),
        _rounded(entropy, 256),
        _rounded(sinks, 4096),
        _rounded(masses, 4096),
    )


def _rounded(values: np.ndarray, parts: int) -> np.ndarray:
    return (np.round(values * parts) / parts).astype(np.float32)


if __name__ == "__main__":
    main()
