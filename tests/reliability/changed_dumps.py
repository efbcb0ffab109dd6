"""Dumps that change between two parts of a run, and dumps whose texts are not as they are named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dumps import make_dump
from qk_dump.side_files import Example, write_examples
from reliability.damaged_files import analyze, judged, set_member, tables
from reliability.outcomes import Outcome

TEXTS, HEADS = 12, 3
_BINS = ("--bin_size", "128")


def changed_dump(folder, step):
    """A dump changes after a run, or after a part of its heads; the same command runs again."""
    whole = _whole_dump(folder / "whole")
    analyze(whole, folder / "first")
    for number, (name, change) in enumerate(_changes()):
        if number % step:
            continue
        changed = Path(shutil.copytree(whole, folder / "changed"))  # keeps modification times
        change(changed)
        analyze(changed, folder / "expected")
        for heads in range(HEADS):
            out = Path(shutil.copytree(folder / "first", folder / "out"))
            for head in range(heads):
                (record,) = out.glob(f".heads/*/l00k{head:02d}-*")
                record.unlink()
            ended = analyze(changed, out)
            yield (
                f"{name}, {heads} records missing",
                judged(ended, tables(out), tables(folder / "expected")),
            )
            shutil.rmtree(out)
        for place in ("changed", "expected"):
            shutil.rmtree(folder / place, ignore_errors=True)


def unnamed_texts(folder, step):
    """Ids of texts change in `examples.parquet` or in the heads.

    If they change in all heads alike, the groups of texts stay the same, and the run warns. If they
    change in one head, this head fails, or the run warns that the ids are not named. The lengths of
    texts are then not known. So the bins have a given size here, and the drift of logits is that up
    to the last captured token.
    """
    whole = _whole_dump(folder / "whole")
    analyze(whole, folder / "expected", *_BINS)
    for number, (name, change) in enumerate(_other_ids()):
        if number % step:
            continue
        dump = Path(shutil.copytree(whole, folder / "dump"))
        change(dump)
        ended = analyze(dump, folder / "out", *_BINS)
        outcome = judged(ended, tables(folder / "out"), tables(folder / "expected"))
        warned = "found in the heads" in ended.told
        if outcome is Outcome.WRONG and warned and ended.code == 0:
            same = _without_lengths(folder / "out") == _without_lengths(folder / "expected")
            outcome = Outcome.UNHARMED if same else Outcome.WRONG
        if outcome is Outcome.UNHARMED and not warned:
            outcome = Outcome.WRONG
        elif outcome is Outcome.WRONG and warned and name.startswith("ids of"):
            outcome = Outcome.REFUSED
        yield name, outcome
        for place in ("dump", "out"):
            shutil.rmtree(folder / place, ignore_errors=True)


def _without_lengths(out):
    """The tables without what depends on the length of the longest text."""
    drift, influences = (
        pd.read_csv(out / name, dtype=str, keep_default_na=False)
        for name in ("head_drift.csv", "head_influences.csv")
    )
    others = [name for name in drift if "logit_drift" not in name]
    kept = influences[~influences["quantity"].str.contains("logit_drift")]
    return {
        **tables(out),
        "head_drift.csv": drift[others].to_csv(index=False),
        "head_influences.csv": kept.to_csv(index=False),
    }


def _whole_dump(folder):
    make_dump(folder, layers=1, q_heads=HEADS, k_heads=HEADS, n=240, d=4, examples=TEXTS)
    facts = {
        "model": "tiny",
        "num_layers": 1,
        "num_q_heads": HEADS,
        "num_k_heads": HEADS,
        "head_dim": 4,
        "num_examples": TEXTS,
        "bucket_type": "uniform",
        "min_bucket_size": 128,
        "layers": [{"layer": 0, "type": "full_attention", "rope": True, "window": None}],
        "seed": 0,
    }
    (folder / "dump.json").write_text(json.dumps(facts))
    _name_texts(folder, range(TEXTS))
    return folder


def _name_texts(dump, ids, tokens=1024):
    write_examples(dump, [Example(number, f"text {number}", tokens, "") for number in ids])


def _changes():
    for kept in range(TEXTS):
        yield f"{kept} texts named", lambda dump, kept=kept: _name_texts(dump, range(kept))
    yield "other texts named", lambda dump: _name_texts(dump, range(3, TEXTS + 3))
    yield "more texts named", lambda dump: _name_texts(dump, range(TEXTS + 5))
    yield "other lengths", lambda dump: _name_texts(dump, range(TEXTS), 1000)
    for name in ("examples.parquet", "dump.json"):
        yield f"no {name}", lambda dump, name=name: (dump / name).unlink()
        yield f"{name} is junk", lambda dump, name=name: (dump / name).write_bytes(b"junk")
        yield f"{name} again", lambda dump, name=name: _write_again(dump / name)
    members = {
        "model": "other",
        "seed": 1,
        "min_bucket_size": 64,
        "num_q_heads": 6,
        "layers": [{"layer": 0, "type": "global_attention", "rope": True, "window": None}],
    }
    for member, value in members.items():
        yield f"dump.json: {member}", lambda dump, m=member, v=value: set_member(dump, m, v)
    for head in ("l00h00q", "l00h02q", "l00h00k"):
        yield f"{head} moved by one", lambda dump, h=head: _edit(dump / h, "position", 1)
        yield f"{head} again", lambda dump, h=head: _write_again(dump / h / "data.parquet")


def _other_ids():
    for kept in range(TEXTS):
        yield f"{kept} texts named", lambda dump, kept=kept: _name_texts(dump, range(kept))
    for first in (1, 3, 16, 100):
        yield (
            f"named from {first} on",
            lambda dump, first=first: _name_texts(dump, range(first, first + TEXTS)),
        )
    for added in (-100, -1, 1, 16, 2**31, 2**40, 2**62):
        yield f"all ids {added:+}", lambda dump, added=added: _edit_all(dump, added)
        for head in ("l00h00q", "l00h02q", "l00h00k"):
            yield (
                f"ids of {head} {added:+}",
                lambda dump, head=head, added=added: _edit(dump / head, "example_id", added),
            )
    yield "examples.parquet is junk", lambda dump: (dump / "examples.parquet").write_bytes(b"junk")


def _edit_all(dump, added):
    for folder in dump.glob("l*h*"):
        _edit(folder, "example_id", added)


def _edit(folder, name, added):
    """Add a number to a column of a head."""
    path = folder / "data.parquet"
    table = pq.read_table(path)
    values = pa.array(table[name].to_numpy().astype(np.int64) + added)
    table = table.set_column(table.schema.get_field_index(name), name, values)
    pq.write_table(table.replace_schema_metadata(None), path)


def _write_again(path):
    """The same bytes with another time."""
    path.write_bytes(path.read_bytes())
