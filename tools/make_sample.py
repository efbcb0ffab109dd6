"""The dumps that come with the package: slices of what `make demo-capture` makes (`make sample`).

Some layers whole, and a share of their rows, drawn independently but alike for the heads of one
layer and kind, as a capture samples them. `kept_share` in dump.json records the shares, and
`inclusion` of every key is the probability that it is in the slice. All keys drawn by attention are
kept. Numbers are rounded, vectors to 10 significant bits and float16, so that the files are small.

A second dump has queries of the same layers on random tokens that come twice. Roles need their
attention alone, so their vectors have 1 bit.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from attention_plasticity.demo.sample import repeated_path, sample_path
from qk_dump.card import card
from qk_dump.columns import (
    ARGMAX_TOKEN,
    COLUMNS,
    ENTROPY,
    HEAD,
    INCLUSION,
    LAYER,
    LSE,
    MAX_LOGIT,
    RECEIVED,
    TOKEN_ID,
    VALUE_NORM,
    VECTOR,
    WINDOW,
)
from qk_dump.heads import ATTENDED, EXAMPLES_FILE, HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.parquet import write_side_table
from qk_dump.positions import keep_probabilities, thinned_inclusion
from qk_dump.record import capture_id
from qk_dump.rows import Rows
from qk_dump.side_files import read_examples, write_tokens
from qk_dump.source import open_dump
from qk_dump.writer import write_head
from qk_sniffer.capture.run import run_capture
from qk_sniffer.config import make_config
from qk_sniffer.demo.weights import NAME
from qk_toolkit.files import write_text

SOURCE = Path("demo-smollm2/dumps/moby-dick-8192")
LAYERS = (0, 14, 29)
REPEATED = {"number": 16, "length": 512}
KEPT_SHARE = {"q": 0.165, "k": 0.3}  # of the rows of the source
KINDS = ("q", "k")
LOGIT_PARTS = 256  # logits and entropies are multiples of 1/256
WEIGHT_PARTS = 4096
VECTOR_BITS = 10  # float16 has 11
BITS = 12  # of other numbers
INCLUSION_BITS = 18

Floats = npt.NDArray[np.floating[Any]]


def main() -> None:
    """Make the slices in the place of those that are there."""
    make_sample(open_dump(SOURCE), sample_path())
    make_repeated(captured_repeated(SOURCE.parents[1]), repeated_path())


def make_sample(dump: Dump, target: Path) -> None:
    """Write the slice of a dump of texts."""
    for old in (*target.glob("l*"), *target.glob(ATTENDED)):
        shutil.rmtree(old)
    assert dump.manifest is not None
    heads = [head for head in sorted(dump.all_folders, key=_order) if head.layer in LAYERS]
    manifest, ids, numbers = sliced(dump.manifest, heads), set[int](), dict[str, int]()
    identity = manifest.capture_id
    for head in heads:
        rows = thinned(pq.read_table(dump.all_folders[head] / "data.parquet"), head, dump.manifest)
        write_rows(target, head, rows, identity)
        numbers[head.folder] = rows.num_rows
        ids |= token_ids(rows)
    manifest = manifest.model_copy(update={"rows": numbers})
    write_manifest(target, manifest)
    examples, texts = read_examples(dump.path, dump.capture_id), dump.token_texts
    assert examples is not None
    assert texts is not None
    write_side_table(target / EXAMPLES_FILE, examples, identity)
    write_tokens(target, {number: texts[number] for number in ids}, identity)
    write_text(target / "README.md", card(manifest, heads, examples=True, tokens=True))
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {len(heads)} files of heads, {size / 1e6:.2f} MB", file=sys.stderr)


def captured_repeated(folder: Path) -> Dump:
    """The dump of repeated tokens of the model in a folder, which is captured if it is missing."""
    with chdir(folder):
        result = run_capture(
            make_config(
                dataset={"path": "synthetic:repeated", "synthetic": REPEATED},
                model={"name": f"model/{NAME}", "dtype": "float32"},
                capture={
                    "layers": list(LAYERS),
                    "capture_keys": False,
                    "sampler": {"type": "uniform", "base_rate": 1.0},
                    "min_bucket_size": 32,
                },
                output={"data_root": "dumps/repeated"},
            )
        )
    return open_dump(folder / result.folder)


def make_repeated(dump: Dump, target: Path) -> None:
    """Write the dump of repeated tokens with rounded numbers, and without the texts of tokens."""
    for old in target.glob("l*"):
        shutil.rmtree(old)
    target.mkdir(exist_ok=True)
    assert dump.manifest is not None
    slice_of = {"layers": list(LAYERS), "dtype": "float16", "vector_bits": 1}
    facts = dump.manifest.model_dump() | {"slice": slice_of}
    facts["capture"]["model"]["files"] = (
        None  # of converted weights; origin: RIGHTS.md of the sample
    )
    heads = [HeadId(*head, "q") for head in dump.query_heads]
    identity = capture_id(facts | {"capture_id": None, "rows": None}, ())
    numbers = {}
    for head in heads:
        rows = pq.read_table(dump.all_folders[head] / "data.parquet")
        write_rows(target, head, rows, identity, bits=1)
        numbers[head.folder] = rows.num_rows
    manifest = DumpManifest.model_validate(facts | {"capture_id": identity, "rows": numbers})
    write_manifest(target, manifest)
    examples = read_examples(dump.path, dump.capture_id)
    assert examples is not None
    write_side_table(target / EXAMPLES_FILE, examples, identity)
    write_text(target / "README.md", card(manifest, heads, examples=True, tokens=False))
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {len(heads)} files of heads, {size / 1e6:.2f} MB", file=sys.stderr)


def _order(head: HeadId) -> tuple[bool, HeadId]:
    return head.attended, head


def sliced(manifest: DumpManifest, heads: Iterable[HeadId]) -> DumpManifest:
    """The manifest of the slice. Its layers were chosen, not drawn: all their heads are there."""
    facts = manifest.model_dump() | {
        "slice": {"layers": list(LAYERS), "dtype": "float16"},
        "kept_share": KEPT_SHARE,
        "eligible_q_heads": sum(head.kind == "q" for head in heads),
    }
    facts |= {"capture_id": capture_id(facts, ()), "rows": None}
    return DumpManifest.model_validate(facts)


def thinned(rows: pa.Table, head: HeadId, manifest: DumpManifest) -> pa.Table:
    """The rows of a head that are kept; the inclusion of keys becomes that in the slice.

    Every row of a base file is drawn on its own, so that its probability is known. Keys drawn by
    attention stay; those that were also in the base sample are in the base file only.
    """
    if not head.attended:
        rng = np.random.default_rng([head.layer, KINDS.index(head.kind)])
        rows = rows.take(np.flatnonzero(rng.random(rows.num_rows) < KEPT_SHARE[head.kind]))
    if head.kind == "q":
        return rows
    base = keep_probabilities(manifest, "k", rows["position"].to_numpy()).values  # (n,)
    assert base is not None
    share = KEPT_SHARE["k"]
    inclusion = thinned_inclusion(rows[INCLUSION].to_numpy(), base, share)  # (n,)
    least = share * base  # rounding must not bring the inclusion below that of the base sample
    stored = np.clip(_significant(inclusion, INCLUSION_BITS), least, 1)
    return rows.set_column(rows.schema.get_field_index(INCLUSION), INCLUSION, pa.array(stored))


def token_ids(rows: pa.Table) -> set[int]:
    """The ids of the tokens of all rows, and of the keys with their largest weight."""
    names = [name for name in (TOKEN_ID, ARGMAX_TOKEN) if name in rows.column_names]
    return {number for name in names for number in rows[name].drop_null().to_pylist()}


def write_rows(
    target: Path,
    head: HeadId,
    rows: pa.Table,
    capture: str | None = None,
    bits: int = VECTOR_BITS,
) -> None:
    """Write the file of a head with rounded numbers."""
    names = [name for name in rows.column_names if name in COLUMNS.keys() - {LAYER, HEAD, WINDOW}]
    columns = {name: _rounded(rows, name, bits) for name in names}
    columns[WINDOW] = np.full(rows.num_rows, -1)  # full attention
    write_head(target, head, Rows(columns), capture)


def _rounded(rows: pa.Table, name: str, bits: int) -> npt.NDArray[Any]:
    """A column with few significant bits; whole numbers and inclusions stay."""
    if pa.types.is_fixed_size_list(rows.schema.field(name).type):
        values = _lists(rows, name)  # (n, length)
    else:
        values = rows[name].to_numpy()  # (n,)
    if name == VECTOR:
        return _significant(values, bits).astype(np.float16)
    if name in (VALUE_NORM, RECEIVED):
        return _significant(values, BITS).astype(np.float32)
    if name == INCLUSION or values.dtype.kind != "f":
        return values
    parts = LOGIT_PARTS if name in (LSE, MAX_LOGIT, ENTROPY) else WEIGHT_PARTS
    return (np.round(values * parts) / parts).astype(np.float32)


def _lists(rows: pa.Table, name: str) -> Floats:
    """A column of lists of one length as (n, length)."""
    flat: Floats = rows[name].combine_chunks().flatten().to_numpy()
    return flat.reshape(rows.num_rows, -1)


def _significant(values: Floats, bits: int) -> Floats:
    """Numbers rounded to so many significant bits."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits))


if __name__ == "__main__":
    main()
