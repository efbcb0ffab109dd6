"""Values of key heads from captures of texts, by the functions of the analysis.

A whole analysis of a dump computes much more. Here only the table of key heads is made.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.quantity import Quantity, Unknown
from attention_plasticity.measure.attention import KnownAttention, attention_columns
from attention_plasticity.measure.grid import equal_places
from attention_plasticity.measure.head import far_attention
from attention_plasticity.measure.key_heads import key_head_row
from attention_plasticity.measure.plasticity import grid_of
from attention_plasticity.read.group import read_group
from attention_plasticity.read.texts import run_texts
from findings.eviction.plan import FAR, PLASTICITY, STATIC
from qk_dump.source import open_dump
from qk_toolkit.arrays import Array

_BUCKETS = 16
_PER_BUCKET = 384  # kept rows of a bucket of all texts together
COLUMNS = (PLASTICITY, STATIC, FAR)
Values = dict[str, Array]
Apply = Callable[..., Iterable[list[float]]]


def captured_values(
    model: Any, tokens: Array, folder: Path, apply: Apply, *, attention: bool
) -> Values:
    """(layers, key heads) of every column, from a capture of texts (texts, tokens).

    Without `attention`, only plasticity is computed, and the others are NaN. `apply` is the map of
    a pool of processes, or `map`.
    """
    import torch

    from qk_sniffer import tap

    texts, length = tokens.shape
    size = max(length // _BUCKETS, 1)
    rate = min(float(size), _PER_BUCKET / texts)
    shutil.rmtree(folder, ignore_errors=True)
    how: Any = {"sampler": "uniform", "min_bucket_size": size, "base_rate": rate}
    with torch.inference_mode(), tap(model, **how, attention=attention, tokens=False) as found:
        for text in torch.from_numpy(tokens).to(model.device):
            model.model(text[None], use_cache=False)
    found.save(folder)
    values = values_of(folder, model.config.num_key_value_heads, apply, whole=attention)
    shutil.rmtree(folder)
    return values


@contextmanager
def workers(number: int) -> Iterator[Apply]:
    """The map of a pool of processes."""
    if number == 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context) as pool:
        yield pool.map


def values_of(folder: Path, key_heads: int, apply: Apply = map, *, whole: bool) -> Values:
    """(layers, key heads) of every column, from a dump; without `whole`, of plasticity alone."""
    dump = open_dump(folder)
    layers = sorted({layer for layer, _ in dump.query_heads})
    group = len(dump.query_heads) // len(layers) // key_heads
    places = [(layer, head) for layer in layers for head in range(key_heads)]
    rows = list(apply(partial(_row, str(folder), group, whole), places))
    table = np.array(rows, np.float64).reshape(len(layers), key_heads, len(COLUMNS))
    return {name: table[..., place] for place, name in enumerate(COLUMNS)}


def _row(folder: str, group: int, whole: bool, place: tuple[int, int]) -> list[float]:
    """The values of one key head; without `whole`, plasticity alone."""
    dump, config = open_dump(folder), RunnerConfig()
    layer, k_head = place
    q_heads = range(k_head * group, (k_head + 1) * group)
    rows = read_group(dump, layer, k_head, q_heads, config, run_texts(dump, [layer], config))
    grids = [
        (heads, grid_of(rows.queries[heads[0]], rows.keys, *(rows.queries[h] for h in heads[1:])))
        for heads in equal_places(rows.queries)
    ]
    far: dict[int, Quantity | Unknown] = dict.fromkeys(rows.queries, Unknown("not computed"))
    if whole:
        for head, queries in rows.queries.items():
            known = KnownAttention.of(queries)
            far[head] = far_attention(attention_columns(queries, known, config.distant_from))
    row = key_head_row(rows, grids, far)
    if row is None or PLASTICITY not in row.quantities:
        why = "no query head can be asked" if row is None else row.missing[PLASTICITY]
        raise SystemExit(f"layer {layer}, key head {k_head}: {why}")
    names = COLUMNS if whole else COLUMNS[:1]
    return [float(row.values[name]) if name in names else np.nan for name in COLUMNS]


def write_values(path: Path, found: dict[str, Values]) -> None:
    """One row per source and key head."""
    lines = [f"source,layer,k_head,{','.join(COLUMNS)}"]
    for source, values in found.items():
        shape = values[PLASTICITY].shape
        for layer, head in np.ndindex(*shape):
            numbers = ",".join(f"{values[name][layer, head]:.6g}" for name in COLUMNS)
            lines.append(f"{source},{layer},{head},{numbers}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_values(path: Path) -> dict[str, Values]:
    """(layers, key heads) of every column, by source."""
    if not path.exists():
        return {}
    rows: dict[str, list[list[float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        source, *numbers = line.split(",")
        rows.setdefault(source, []).append([float(one) for one in numbers])
    return {source: dict(_columns(table)) for source, table in rows.items()}


def _columns(table: list[list[float]]) -> Iterable[tuple[str, Array]]:
    whole = np.array(table)  # (n, 2 + columns)
    shape = tuple(1 + whole[:, :2].max(axis=0).astype(int))
    for place, name in enumerate(COLUMNS):
        yield name, whole[:, 2 + place].reshape(shape)
