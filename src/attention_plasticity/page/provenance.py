"""The content of run.json as lines of text for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.run_info import RUN_FILE
from qk_toolkit.formatting import count, index_ranges

Lines = list[tuple[str, str]]
_DUMP_LINES = {
    "model": "model",
    "revision": "revision",
    "num_layers": "layers",
    "num_q_heads": "query heads",
    "num_k_heads": "key heads",
    "head_dim": "head dimensions",
    "num_examples": "texts",
    "synthetic": "made texts",
    "bucket_type": "buckets",
    "min_bucket_size": "bucket size",
    "sampler": "sampler",
    "pre_rope": "before RoPE",
    "dtype": "precision",
    "seed": "seed of the capture",
}


def provenance(run: FinishedRun) -> list[tuple[str, Lines]]:
    """Sections of (name, value) lines."""
    info = run.info
    if not info:
        return [("Run", [("folder", run.place), (RUN_FILE, "missing")])]
    sections = [
        ("Run", list(_run_lines(run))),
        ("Model and dump", list(_dump_lines(run))),
        ("Settings", list(_pairs(info.get("config")))),
        ("Versions", list(_pairs(info.get("versions")))),
        ("Versions of the capture", list(_pairs(run.dump.get("versions")))),
        ("Missing values", list(_missing(run))),
        ("Heads that failed", list(_failures(info.get("failures")))),
    ]
    return [(name, lines) for name, lines in sections if lines]


def _run_lines(run: FinishedRun) -> Iterator[tuple[str, str]]:
    info = run.info
    yield "folder", run.place
    if run.layers is not None:
        yield "layers of this page", index_ranges(run.layers).replace(",", ", ")
    for name, label in (
        ("attention_plasticity", "attention_plasticity"),
        ("finished", "finished"),
        ("seconds", "seconds"),
        ("seed", "seed"),
    ):
        if info.get(name) is not None:
            yield label, _text(info[name])
    heads = info.get("heads")
    if isinstance(heads, Mapping):
        yield (
            "heads",
            ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in heads.items()),
        )
    for kind, digest in _pairs(info.get("sha256")):
        yield f"sha256 of {kind}", digest


def _dump_lines(run: FinishedRun) -> Iterator[tuple[str, str]]:
    source = run.info.get("input")
    if isinstance(source, Mapping):
        for name in ("path", "fingerprint"):
            if source.get(name):
                yield name, _text(source[name])
        for name, value in _pairs(source.get("hub")):
            yield f"Hub {name}", value
    for name, label in _DUMP_LINES.items():
        if run.dump.get(name) is not None:
            yield label, _text(run.dump[name])


def _missing(run: FinishedRun) -> Iterator[tuple[str, str]]:
    """Columns with the number of heads without a value, and the reason."""
    for (column, reason), rows in run.missing.groupby(["column", "reason"], sort=False):
        yield f"{column}, {count(len(rows), 'head')}", clean(str(reason))


def _failures(failures: object) -> Iterator[tuple[str, str]]:
    for failure in failures if isinstance(failures, list) else []:
        if isinstance(failure, Mapping):
            head = f"layer {failure.get('layer')}, head {failure.get('q_head')}"
            yield head, _text(failure.get("reason"))


def _pairs(mapping: object) -> Iterator[tuple[str, str]]:
    if isinstance(mapping, Mapping):
        for name, value in mapping.items():
            yield str(name), _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(_text(part) for part in value)
    return str(value)
