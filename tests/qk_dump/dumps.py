"""Small dumps for tests, made on the spot."""

import json

import numpy as np

from qk_dump.heads import HeadId
from qk_dump.layers import RotaryFile, RotaryRecord, layer_records
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, write_manifest
from qk_dump.rotary_file import write_rotary_file
from qk_dump.rows import Rows
from qk_dump.writer import write_head


def distinct_tokens(rng, texts, context, n):
    """(n,) texts and positions of n different tokens, in order. There may be fewer of them."""
    tokens = rng.choice(texts * context, min(n, texts * context), replace=False)
    text, position = np.divmod(np.sort(tokens), context)
    return text, position


def head_rows(n=400, d=8, *, examples=4, context=1024, bucket_size=128, drift=1.0, seed=0):
    """Arguments of `write_columns` for random rows whose mean drifts with position."""
    rng = np.random.default_rng(seed)
    context = max(context, -(-n // examples))
    example, position = distinct_tokens(rng, examples, context, n)
    vectors = rng.standard_normal((n, d)) + rng.standard_normal(d)
    vectors += np.outer(position / context, drift * rng.standard_normal(d))
    return {
        "bucket": position // bucket_size,
        "example_id": example,
        "position": position,
        "vectors": vectors.astype(np.float32),
    }


def write_columns(root, head, *, vectors, sliding_window=None, **columns):
    """Write a head with these columns and one window."""
    window = np.full(len(vectors), sliding_window or -1)
    values = {name: np.asarray(column) for name, column in columns.items()}
    return write_head(root, head, Rows({**values, "vector": vectors, "sliding_window": window}))


def make_dump(root, *, layers=2, q_heads=4, k_heads=2, window=None, **rows):
    """A complete dump; `rows` go to `head_rows`."""
    for layer in range(layers):
        for kind, count in (("q", q_heads), ("k", k_heads)):
            for head in range(count):
                content = head_rows(seed=[layer, head, kind == "q"], **rows)
                head_id = HeadId(layer, head, kind)
                write_columns(root, head_id, sliding_window=window, **content)
    return root


def add_rotary(root, layers=1, width=8, **facts):
    """Write dump.json with a rotary record per layer and a sampler, so that nothing is unknown.

    `facts` go to every layer.
    """
    frequencies = 10_000.0 ** (-np.arange(width // 2) / (width // 2))
    record = RotaryRecord(tuple(frequencies.tolist())).to_json()
    entry = {"type": "full_attention", "rope": True, "rotary": record, **facts}
    manifest = DumpManifest(
        layers=[{"layer": layer, **entry} for layer in range(layers)],
        bucket_type="uniform",
        min_bucket_size=128,
        sampler={"type": "uniform", "base_rate": 16.0},
    )
    write_manifest(root, manifest)
    return root


def rotary_file(dump, path):
    """The rotary records of dump.json in a file of their own."""
    layers = layer_records(json.loads((dump / MANIFEST_NAME).read_text())["layers"])
    write_rotary_file(RotaryFile(str(path), "", layers, False, "a model", {}))
    return path


def add_attended(root, layer=0, head=0, *, group=2, n=20, **rows):
    """Keys of a head that were drawn by attention, in a dump of `make_dump`."""
    content = head_rows(n, seed=[layer, head, 7], **rows)
    rng = np.random.default_rng(n)
    content["received"] = rng.random((n, group), np.float32)
    content["inclusion"] = rng.uniform(0.1, 1, n)
    return write_columns(root, HeadId(layer, head, "k", attended=True), **content)
