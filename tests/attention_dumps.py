"""Small dumps with attention columns, from an exact softmax over all keys of random texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.attention_columns import MASS_BINS, MASSES, AttentionRows, first_distances
from qk_dump.buckets import BucketGeometry
from qk_dump.keep_probabilities import bucket_rates
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.writer import write_head


@dataclass(frozen=True)
class Layer:
    """How the attention of the random layer works."""

    scale: float = 0.4
    softcap: float | None = None
    window: int | None = None
    chunked: bool = False

    def logits(self, Q: np.ndarray, K: np.ndarray) -> np.ndarray:
        """(n, n) logits of one text; −inf for keys that a query does not see."""
        logits = self.scale * (Q @ K.T)
        if self.softcap is not None:
            logits = self.softcap * np.tanh(logits / self.softcap)
        p = np.arange(len(Q))
        seen = p[None, :] <= p[:, None]
        if self.window is not None and self.chunked:
            seen &= p[None, :] // self.window == p[:, None] // self.window
        elif self.window is not None:
            seen &= p[:, None] - p[None, :] < self.window
        return np.where(seen, logits, -np.inf)

    def entry(self, layer: int) -> dict[str, Any]:
        """The layer in `dump.json`."""
        kind = "full_attention"
        if self.window is not None:
            kind = "chunked_attention" if self.chunked else "sliding_attention"
        facts = {"layer": layer, "type": kind, "scale": self.scale}
        facts |= {} if self.window is None else {"window": self.window}
        return facts | ({} if self.softcap is None else {"softcap": self.softcap})


def attention_of(logits: np.ndarray) -> AttentionRows:
    """The attention columns of all queries of one text."""
    n = len(logits)
    largest = logits.max(axis=1)
    total = np.exp(logits - largest[:, None]).sum(axis=1)
    lse = largest + np.log(total)
    weights = np.exp(logits - lse[:, None])
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=1)
    masses = np.zeros((n, MASS_BINS))
    firsts = np.array(first_distances())
    for p in range(n):
        for key in range(p + 1):
            masses[p, np.searchsorted(firsts, p - key, side="right") - 1] += weights[p, key]
    columns = (lse, largest, entropy, weights[:, :4].sum(axis=1), masses)
    return AttentionRows(*(values.astype(np.float32) for values in columns))


def make_attention_dump(
    root: Path,
    *,
    texts: int = 6,
    length: int = 48,
    width: int = 6,
    q_heads: int = 1,
    share: float = 1.0,
    bucket_size: int = 8,
    layer: Layer = Layer(),  # noqa: B008 (frozen)
    without: tuple[int, ...] = (),
    unknown: float = 0.0,
    bins: int = MASS_BINS,
    manifest: dict[str, Any] | None = None,
    log_rate: float | None = None,
    seed: int = 0,
) -> Path:
    """One layer with one key head. Query heads in `without` have no attention columns.

    The attention of a share `unknown` of the queries is null. With `log_rate`, buckets and sampled
    positions are those of a `log_uniform` sampler with this rate.
    """
    rng = np.random.default_rng(seed)
    geometry = BucketGeometry("uniform" if log_rate is None else "log", bucket_size)
    buckets = geometry.bucket(np.arange(length))  # (length,)
    sampled = np.full(length, share)
    if log_rate is not None:
        sampled = bucket_rates("log_uniform", bucket_size, log_rate, buckets)
    K = rng.standard_normal((texts, length, width)).astype(np.float32) + 0.3
    kept_k = _chosen(rng, texts, sampled)
    _write(root, HeadId(0, 0, "k"), K, kept_k, buckets, layer.window)
    for head in range(q_heads):
        drift = np.linspace(0, 1, length)[:, None] * rng.standard_normal(width)
        Q = (rng.standard_normal((texts, length, width)) + drift + 0.2).astype(np.float32)
        kept = _chosen(rng, texts, sampled)
        found = [
            attention_of(layer.logits(q.astype(np.float64), k.astype(np.float64)))
            for q, k in zip(Q, K, strict=True)
        ]
        parts = [part[np.flatnonzero(k)] for part, k in zip(found, kept, strict=True)]
        rows = AttentionRows.joined(parts)
        rows.lse[np.random.default_rng(seed).random(len(rows.lse)) < unknown] = np.nan
        _write(
            root,
            HeadId(0, head, "q"),
            Q,
            kept,
            buckets,
            layer.window,
            None if head in without else rows,
        )
        if bins != MASS_BINS:
            change_bins(root / f"l00h{head:02d}q" / "data.parquet", bins)
    facts: dict[str, Any] = {"num_layers": 1, "num_q_heads": q_heads, "num_k_heads": 1}
    facts["layers"] = [layer.entry(0)]
    if log_rate is not None:
        facts |= {"bucket_type": "log", "min_bucket_size": bucket_size}
        facts["sampler"] = {"type": "log_uniform", "base_rate": log_rate}
    write_manifest(root, DumpManifest(**{**facts, **(manifest or {})}))
    return root


def change_bins(path: Path, bins: int) -> None:
    """Write the masses as lists of another length; the last bin has the rest."""
    table = pq.read_table(path)
    place = table.schema.get_field_index(MASSES)
    lists: list[list[float] | None] = []
    for masses in table[MASSES].to_pylist():
        if masses is not None:
            masses = [*masses[: bins - 1], sum(masses[bins - 1 :])]
            masses += [0.0] * (bins - len(masses))
        lists.append(masses)
    kind = pa.list_(pa.float32())
    pq.write_table(table.set_column(place, MASSES, pa.array(lists, kind)), path)


def _chosen(rng: np.random.Generator, texts: int, sampled: np.ndarray) -> np.ndarray:
    return rng.random((texts, len(sampled))) < sampled


def _write(
    root: Path,
    head: HeadId,
    vectors: np.ndarray,
    kept: np.ndarray,
    buckets: np.ndarray,
    window: int | None,
    attention: AttentionRows | None = None,
) -> None:
    text, position = np.nonzero(kept)
    write_head(
        root,
        head,
        bucket=buckets[position],
        example_id=text,
        position=position,
        vectors=vectors[text, position],
        sliding_window=window,
        attention=attention,
    )
