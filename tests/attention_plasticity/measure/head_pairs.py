"""A query head and a key head in files of their own, and their analysis."""

import numpy as np

from attention_plasticity import analyze_head, make_config, open_dump
from attention_plasticity.head_analysis import analyze_group
from dumps import head_rows, write_columns
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from reference import write_rows

SCALE = 0.4  # of the logits of whole texts


def small_head(seed, **changes):
    """60 rows of one text, with other columns where `changes` says so."""
    return {**head_rows(n=60, d=4, examples=1, seed=seed), **changes}


def write_pair(root, queries, keys):
    """Write query head 0 and key head 0 of layer 0."""
    write_rows(root, "l00h00q", **queries)
    write_rows(root, "l00h00k", **keys)
    return root


def without_rope(root, **facts):
    """Say that the layer has no RoPE, so that plasticity at one position is known."""
    layer = {"layer": 0, "type": "full_attention", "rope": False, **facts}
    write_manifest(root, DumpManifest(layers=[layer]))
    return root


def write_whole_texts(root, queries, keys, layer, length, *, pre_rope=False):
    """Two equal query heads and a key head with all tokens of texts of one length."""
    text, position = np.divmod(np.arange(len(queries)), length)
    rows = {"bucket": position // 16, "example_id": text, "position": position}
    rows["sliding_window"] = layer.get("window")
    for number, kind, vectors in ((0, "q", queries), (1, "q", queries), (0, "k", keys)):
        head = HeadId(0, number, kind)
        write_columns(root, head, vectors=vectors.astype(np.float32), **rows)
    known = {"num_layers": 1, "num_q_heads": 2, "num_k_heads": 1}
    known |= {"bucket_type": "uniform", "min_bucket_size": 16, "sampler": {"type": "all"}}
    entry = {"layer": 0, "type": "full_attention", "scale": SCALE, **layer}
    write_manifest(root, DumpManifest(**known, layers=[entry], pre_rope=pre_rope))
    return root


def analyze(root, q_head=0, **settings):
    """Analyse that head."""
    return analyze_head(0, q_head, 0, open_dump(root), make_config(**settings))


def analyze_key_head(root, **settings):
    """Analyse that head's key head."""
    row = analyze_group(open_dump(root), 0, 0, [0], make_config(**settings)).key_head
    assert row is not None
    return row
