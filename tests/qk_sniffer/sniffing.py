"""Captures of a tiny model for tests: the command in this process or in its own."""

import os
import subprocess
import sys

import pyarrow.parquet as pq

from qk_dump.source import open_dump
from qk_sniffer.capture.segments import saved_chunks
from qk_sniffer.cli import main
from waiting import wait_for

ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def words(model, texts, dump, **fields):
    """Flags of a capture; `model__dtype="auto"` stands for `--model.dtype auto`."""
    given = {
        "model.name": model,
        "dataset.path": texts,
        "output.data_root": dump,
        "capture.sampler.type": "uniform",
        "capture.sampler.base_rate": 8.0,
        "capture.min_bucket_size": 16,
    }
    given |= {name.replace("__", "."): value for name, value in fields.items()}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def sniff(model, texts, dump, **fields):
    """Run the capture in this process; its exit code."""
    return main(words(model, texts, dump, **fields))


def sniff_first(patch, number, model, texts, dump, **fields):
    """Run the capture, and interrupt it when its first batches are saved."""
    from qk_sniffer.capture import work

    def interrupted(*given):
        nonlocal made
        made += 1
        if made > number:
            wait_for(f"{number} chunks", lambda: len(saved_chunks(dump)) >= number)
            raise KeyboardInterrupt
        return make_batch(*given)

    made, make_batch = 0, work.make_batch
    with patch.context() as change:
        change.setattr(work, "make_batch", interrupted)
        assert sniff(model, texts, dump, **fields) == 130


def start_sniffing(*flags, launcher=(), **options):
    """The same command in a process of its own, with one thread so that numbers agree."""
    command = [sys.executable, *launcher, "-m", "qk_sniffer", *flags]
    return subprocess.Popen(command, env={**os.environ, **ONE_THREAD}, **options)


def tables_of(dump):
    """Every head's rows, and the examples."""
    tables = _tables(dump, open_dump(dump).folders)
    return tables | {"examples": pq.read_table(dump / "examples.parquet")}


def attended_tables(dump):
    """The keys of every key head that were drawn by attention."""
    return _tables(dump, open_dump(dump).attended)


def _tables(dump, heads):
    return {head.folder: pq.read_table(dump / head.folder / "data.parquet") for head in heads}


def same_rows(one, other):
    """Whether two dumps hold the same heads with the same rows. Their captures may differ."""
    mine, theirs = tables_of(one), tables_of(other)
    return mine.keys() == theirs.keys() and all(mine[name].equals(theirs[name]) for name in mine)


def same_bytes(one, other):
    """Whether two dumps hold the same heads, each with the same bytes in its file."""
    heads = [head.folder for head in open_dump(one).all_folders]
    return heads == [head.folder for head in open_dump(other).all_folders] and all(
        (one / head / "data.parquet").read_bytes() == (other / head / "data.parquet").read_bytes()
        for head in heads
    )
