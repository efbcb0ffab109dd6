"""Simulated key heads with exact attention, as dumps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dumps import write_columns
from qk_dump.columns import ATTENTION_COLUMNS, MASS_BINS, first_distances
from qk_dump.heads import HeadId
from qk_dump.layers import RotaryRecord
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.positions import joint_inclusion
from qk_dump.rotary import rotate
from qk_dump.side_files import Example, write_examples

RECORD = RotaryRecord((0.5, 0.11, 0.02, 0.003))
WIDTH, SCALE, BUCKET, SHARE = 8, 0.4, 16, 0.5


@dataclass(frozen=True)
class Simulated:
    """All queries and keys of some texts, before RoPE."""

    queries: np.ndarray  # (heads, texts, length, d)
    keys: np.ndarray  # (texts, length, d)
    values: np.ndarray  # (texts, length) lengths of values
    record: RotaryRecord | None = RECORD
    scale: float = SCALE

    @property
    def shape(self):
        """Texts and tokens of each."""
        return self.keys.shape[0], self.keys.shape[1]

    def turned(self, X):
        """(texts, length, d) vectors after RoPE."""
        if self.record is None:
            return X
        position = np.tile(np.arange(float(X.shape[1])), len(X))
        flat = np.asarray(rotate(X.reshape(-1, X.shape[-1]), 0.0, position, self.record))
        return flat.reshape(X.shape)

    def logits(self, head):
        """(texts, queries, keys) of one head; −inf for later keys."""
        Q, K = self.turned(self.queries[head]), self.turned(self.keys)
        logits = self.scale * np.einsum("tqd,tkd->tqk", Q, K)
        p = np.arange(Q.shape[1])
        return np.where(p[:, None] >= p, logits, -np.inf)


def simulate(texts=6, length=96, heads=2, seed=0, **facts):
    """Queries of one Gaussian per head before RoPE, and keys of another; float32 can hold them."""
    rng = np.random.default_rng(seed)
    mean = 0.8 * rng.standard_normal((heads, 1, 1, WIDTH))
    spread = 0.5 * rng.standard_normal((heads, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    noise = rng.standard_normal((heads, texts, length, WIDTH))
    queries = mean + np.einsum("htld,hde->htle", noise, spread)
    keys = rng.standard_normal((texts, length, WIDTH)) + 0.5
    queries, keys = (X.astype(np.float32).astype(np.float64) for X in (queries, keys))
    return Simulated(queries, keys, rng.uniform(0.5, 2, (texts, length)), **facts)


def make_simulated_dump(
    root,
    *,
    layers=1,
    k_heads=2,
    group=2,
    texts=6,
    length=96,
    drawn=True,
    pre_rope=False,
    attention=True,
    seed=0,
):
    """A dump of simulated heads with a uniform sampler, and keys drawn by attention."""
    for layer in range(layers):
        for k_head in range(k_heads):
            own = simulate(texts, length, group, seed=100 * seed + 10 * layer + k_head)
            _write_group(root, layer, k_head, own, drawn, pre_rope, attention)
    entry = {"type": "full_attention", "rope": True, "rotary": RECORD.to_json(), "scale": SCALE}
    manifest = DumpManifest(
        num_layers=layers,
        num_q_heads=k_heads * group,
        num_k_heads=k_heads,
        layers=[{"layer": layer, **entry} for layer in range(layers)],
        bucket_type="uniform",
        min_bucket_size=BUCKET,
        sampler={"type": "uniform", "base_rate": SHARE * BUCKET},
        pre_rope=pre_rope,
    )
    write_manifest(root, manifest)
    write_examples(root, [Example(text, f"text {text}", length, "") for text in range(texts)])
    return root


def _write_group(root, layer, k_head, own, drawn, pre_rope, attention):
    rng = np.random.default_rng([layer, k_head, 5])
    group, received = len(own.queries), []
    for head in range(group):
        logits = own.logits(head)
        received.append(np.exp(logits - np.logaddexp.reduce(logits, axis=2)[..., None]).sum(axis=1))
        kept = rng.random(own.shape) < SHARE
        vectors = own.queries[head] if pre_rope else own.turned(own.queries[head])
        columns = _attention(logits, kept) if attention else {}
        _write(root, HeadId(layer, k_head * group + head, "q"), vectors, kept, **columns)
    got = np.stack(received, axis=2) / own.shape[1]  # (texts, length, group)
    chance = np.minimum(1, 10 * got.sum(axis=2)) if drawn else np.zeros(own.shape)
    inclusion = joint_inclusion(np.full(own.shape, SHARE), chance)
    base = rng.random(own.shape) < SHARE
    more = (rng.random(own.shape) < chance) & ~base
    vectors = own.keys if pre_rope else own.turned(own.keys)
    for attended, kept in ((False, base), (True, more)):
        if attended and not drawn:
            continue
        facts = {"value_norm": own.values[kept]}
        if drawn:
            facts |= {"received": got[kept], "inclusion": inclusion[kept]}
        _write(root, HeadId(layer, k_head, "k", attended=attended), vectors, kept, **facts)


def _write(root, head, X, kept, **columns):
    text, position = np.nonzero(kept)
    write_columns(
        root,
        head,
        bucket=position // BUCKET,
        example_id=text,
        position=position,
        vectors=X[kept].astype(np.float32),
        **columns,
    )


def _attention(logits, kept):
    """The attention columns of the kept queries of all texts."""
    lse = np.logaddexp.reduce(logits, axis=2)  # (texts, length)
    weights = np.exp(logits - lse[..., None])  # (texts, length, length)
    p = np.arange(logits.shape[1])
    bins = np.searchsorted(first_distances(), np.maximum(p[:, None] - p, 0), side="right") - 1
    masses = np.stack([(weights * (bins == b)).sum(axis=2) for b in range(MASS_BINS)], axis=2)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=2)
    columns = (lse, logits.max(axis=2), entropy, weights[..., :4].sum(axis=2), masses)
    return {name: values[kept] for name, values in zip(ATTENTION_COLUMNS, columns, strict=False)}
