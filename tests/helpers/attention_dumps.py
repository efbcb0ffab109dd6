"""Small dumps with attention columns, from an exact softmax over all keys of random texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dumps import write_columns
from qk_dump.columns import ATTENTION_COLUMNS, MASS_BINS, MASSES, first_distances
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.positions import BucketGeometry, bucket_rates, joint_inclusion
from qk_dump.rows import Rows

VOCABULARY = 12  # so few that tokens come again


@dataclass(frozen=True)
class Layer:
    """How the attention of the random layer works."""

    scale: float = 0.4
    softcap: float | None = None
    window: int | None = None
    chunked: bool = False

    def logits(self, Q, K):
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

    def entry(self, layer):
        """The layer in `dump.json`."""
        kind = "full_attention"
        if self.window is not None:
            kind = "chunked_attention" if self.chunked else "sliding_attention"
        facts = {"layer": layer, "type": kind, "scale": self.scale}
        facts |= {} if self.window is None else {"window": self.window}
        return facts | ({} if self.softcap is None else {"softcap": self.softcap})


PLAIN = Layer()


def weights_of(logits):
    """(n, n) attention weights of one text."""
    parts = np.exp(logits - logits.max(axis=1)[:, None])
    return parts / parts.sum(axis=1)[:, None]


def attention_of(logits, tokens):
    """All attention columns of all queries of one text; `tokens` (n,) are its tokens."""
    n = len(logits)
    largest = logits.max(axis=1)
    weights = weights_of(logits)
    lse = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=1)
    masses = np.zeros((n, MASS_BINS))
    firsts = np.array(first_distances())
    for p in range(n):
        for key in range(p + 1):
            masses[p, np.searchsorted(firsts, p - key, side="right") - 1] += weights[p, key]
    place = logits.argmax(axis=1)
    duplicate, induction = _matches(logits, tokens)
    columns = (
        *(lse, largest, entropy, weights[:, :4].sum(axis=1), masses, weights[:, 0]),
        *(place, tokens[place]),
        *((weights * duplicate).sum(axis=1), duplicate.sum(axis=1)),
        *((weights * induction).sum(axis=1), induction.sum(axis=1)),
    )
    return Rows(dict(zip(ATTENTION_COLUMNS, columns, strict=True)))


def _matches(logits, tokens):
    """(n, n) visible keys with the token of the query, and those whose previous token it is."""
    seen = np.isfinite(logits)
    earlier = ~np.eye(len(tokens), dtype=bool)
    duplicate = seen & earlier & (tokens[None, :] == tokens[:, None])
    induction = np.zeros_like(seen)
    induction[:, 1:] = seen[:, 1:] & (tokens[None, :-1] == tokens[:, None])
    return duplicate, induction


def make_attention_dump(
    root,
    *,
    texts=6,
    length=48,
    width=6,
    q_heads=1,
    share=1.0,
    bucket_size=8,
    layer=PLAIN,
    without=(),
    unknown=0.0,
    bins=MASS_BINS,
    received=False,
    manifest=None,
    log_rate=None,
    seed=0,
):
    """One layer with one key head. Query heads in `without` have no attention columns.

    The attention of a share `unknown` of the queries is null. With `received`, keys have the
    attention that they receive, and further ones are drawn by it. With `log_rate`, buckets and
    sampled positions are those of a `log_uniform` sampler with this rate.
    """
    rng = np.random.default_rng(seed)
    tokens = np.random.default_rng([seed, 1]).integers(VOCABULARY, size=(texts, length))
    geometry = BucketGeometry("uniform" if log_rate is None else "log", bucket_size)
    buckets = geometry.bucket(np.arange(length))  # (length,)
    sampled = np.full(length, share)
    if log_rate is not None:
        sampled = bucket_rates("log_uniform", bucket_size, log_rate, buckets)
    K = rng.standard_normal((texts, length, width)).astype(np.float32) + 0.3
    kept_k = _chosen(rng, texts, sampled)
    got = np.zeros((texts, length, q_heads))  # mean weight that every key receives
    shared = {"tokens": tokens, "buckets": buckets, "window": layer.window}
    for head in range(q_heads):
        drift = np.linspace(0, 1, length)[:, None] * rng.standard_normal(width)
        Q = (rng.standard_normal((texts, length, width)) + drift + 0.2).astype(np.float32)
        kept = _chosen(rng, texts, sampled)
        parts = []
        for text, (q, k) in enumerate(zip(Q, K, strict=True)):
            logits = layer.logits(q.astype(np.float64), k.astype(np.float64))
            parts.append(attention_of(logits, tokens[text])[np.flatnonzero(kept[text])])
            got[text, :, head] = weights_of(logits).mean(axis=0)
        rows = Rows.joined(parts)
        rows["lse"][np.random.default_rng(seed).random(len(rows)) < unknown] = np.nan
        columns = {} if head in without else rows.columns
        _write(root, HeadId(0, head, "q"), Q, kept, **shared, **columns)
        if bins != MASS_BINS:
            change_bins(root / f"l00h{head:02d}q" / "data.parquet", bins)
    _write_keys(root, K, kept_k, got if received else None, sampled, shared, seed)
    facts = {"num_layers": 1, "num_q_heads": q_heads, "num_k_heads": 1}
    facts["layers"] = [layer.entry(0)]
    if log_rate is not None:
        facts |= {"bucket_type": "log", "min_bucket_size": bucket_size}
        facts["sampler"] = {"type": "log_uniform", "base_rate": log_rate}
    write_manifest(root, DumpManifest(**{**facts, **(manifest or {})}))
    return root


def change_bins(path, bins):
    """Write the masses as lists of another length; the last bin has the rest."""
    table = pq.read_table(path)
    place = table.schema.get_field_index(MASSES)
    lists = []
    for masses in table[MASSES].to_pylist():
        if masses is not None:
            masses = [*masses[: bins - 1], sum(masses[bins - 1 :])]
            masses += [0.0] * (bins - len(masses))
        lists.append(masses)
    kind = pa.list_(pa.float32())
    pq.write_table(table.set_column(place, MASSES, pa.array(lists, kind)), path)


def _chosen(rng, texts, sampled):
    return rng.random((texts, len(sampled))) < sampled


def _write_keys(root, K, kept, got, sampled, shared, seed):
    """The keys of the base sample, and with `got` (texts, length, group) those drawn by it."""
    if got is None:
        _write(root, HeadId(0, 0, "k"), K, kept, **shared)
        return
    chance = np.minimum(1, 8 * got.sum(axis=2))  # (texts, length)
    drawn = np.random.default_rng([seed, 2]).random(chance.shape) < chance
    inclusion = joint_inclusion(np.broadcast_to(sampled, chance.shape), chance)
    for head, rows in (
        (HeadId(0, 0, "k"), kept),
        (HeadId(0, 0, "k", attended=True), drawn & ~kept),
    ):
        columns = {"received": got[rows], "inclusion": inclusion[rows]}
        columns["value_norm"] = np.linalg.norm(K[rows], axis=1)
        _write(root, head, K, rows, **shared, **columns)


def _write(root, head, vectors, kept, *, tokens, buckets, window, **columns):
    text, position = np.nonzero(kept)
    write_columns(
        root,
        head,
        bucket=buckets[position],
        example_id=text,
        position=position,
        vectors=vectors[text, position],
        sliding_window=window,
        token_id=tokens[text, position],
        **columns,
    )
