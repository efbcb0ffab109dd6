"""Statistics of queries for TriAttention, in the two layouts that its implementations load.

TriAttention scores a cached key before later queries are known. For the distance Δ it adds up over
rotary bands f

    s² |E q_f| |k_f| cos(ω_f Δ + φ_f) + s² (E|q_f| − |E q_f|) |k_f|

with the complex query and key of the band before RoPE, the angle φ_f of E q_f times the conjugate
of k_f, the frequency ω_f, and the factor s on cos and sin. A file has E q_f and E|q_f| of every
query head, and ω; the flat layout has s², too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_plasticity.export.folder import Content
from attention_plasticity.export.formats import BEFORE_ROPE, require_one_pairing, text_of
from attention_plasticity.export.heads import Head
from attention_plasticity.export.queries import mean_and_error
from attention_plasticity.export.settings import ExportSettings
from attention_plasticity.export.source import ExportSource, HeadQueries
from attention_plasticity.export.tensor_file import tensor_file_writer
from qk_dump.layers import RotaryRecord
from qk_dump.rotary import pair_dimensions
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError

_FILE = "triattention.pt"
_TOOL = "TriAttention"
_STYLES = {"halves": "half", "interleaved": "interleaved"}
_SAME = 1e-6  # relative difference of frequencies that is rounding


def triattention(source: ExportSource, settings: ExportSettings) -> Content:
    """`triattention.pt`: mean and mean length of the query per rotary band, of every query head."""
    write = tensor_file_writer()
    flat = settings.layout == "tensorrt-llm"
    records = source.records("A file of TriAttention")
    _require_one_rotation(records, flat)
    values: dict[Head, Array] = {}
    heads: list[dict[str, Any]] = []
    for head, queries in source.queries():
        if not heads:
            require_one_pairing(records, queries.width, _TOOL)
        values[head], errors = _bands(queries, records[head[0]])
        heads.append(queries.entry(errors))
    table = source.table(values)  # (layers, heads, 3, bands)
    content = _flat(table, records[0]) if flat else _by_head(table, records[0], source)
    rules = source.rules(vectors=BEFORE_ROPE, layout=settings.layout)
    return Content({_FILE: lambda path: write(path, content)}, heads, rules)


def _bands(queries: HeadQueries, record: RotaryRecord) -> tuple[Array, dict[str, float]]:
    """(3, bands) real and imaginary part of the mean, and mean length; and their errors."""
    vectors, weight, group = queries.before_rope.astype(np.float64), queries.weight, queries.group
    first, second = (vectors[:, dimensions] for dimensions in pair_dimensions(record))
    mean, mean_error = mean_and_error(np.hstack([first, second]), weight, group)
    length, length_error = mean_and_error(np.hypot(first, second), weight, group)
    found = np.stack([*np.split(mean, 2), length])  # (3, bands)
    return found, {"mean_relative_error": mean_error, "length_relative_error": length_error}


def _by_head(table: Array, record: RotaryRecord, source: ExportSource) -> dict[str, Any]:
    """The layout of the method's own tool: one entry per query head."""
    layers, count, _, bands = table.shape
    heads = [[layer, head] for layer in range(layers) for head in range(count)]
    names = ("q_mean_real", "q_mean_imag", "q_abs_mean")
    values = table.astype(np.float32)
    stats = {
        f"layer{layer:02d}_head{head:02d}": dict(zip(names, values[layer, head], strict=True))
        for layer, head in heads
    }
    manifest = source.manifest
    rope: Mapping[str, Any] = manifest.rope_parameters or {}
    model = manifest.model or source.dump.name
    metadata = {
        "num_traces": source.num_texts,
        "head_dim": 2 * bands,
        "dtype": manifest.dtype or "float32",
        "prompt_template": "",
        "use_chat_template": False,
        "system_prompt": "",
        "attn_implementation": text_of(
            (manifest.capture or {}).get("model"), "attn_implementation", "unknown"
        ),
        "model_name": model,
        "model_path": model,  # a loader reads the factor on cos and sin from this model's config
        "inv_freq": np.array(record.frequencies, np.float32),  # (bands,)
        "rope_style": _STYLES[record.pairing],
        "rope_type": text_of(rope, "rope_type", "default"),
        "sampled_heads": heads,
    }
    if isinstance(theta := rope.get("rope_theta"), int | float):
        metadata["rope_theta"] = float(theta)
    return {"metadata": metadata, "stats": stats}


def _flat(table: Array, record: RotaryRecord) -> dict[str, Array]:
    """The layout of TensorRT-LLM: arrays of all heads, and the rotary embedding."""
    mean = table[:, :, 0] + 1j * table[:, :, 1]  # (layers, heads, bands)
    bands = table.shape[-1]
    return {
        "E_q": mean.astype(np.complex64),
        "E_q_norm": table[:, :, 2].astype(np.float32),
        "omega": np.array(record.frequencies, np.float32),
        "freq_scale_sq": np.full(bands, record.scaling**2, np.float32),
    }


def _require_one_rotation(records: list[RotaryRecord], flat: bool) -> None:
    """Refuse what the file cannot say: other frequencies in some layers, or neighbouring pairs."""
    first = records[0]
    known = np.array([*first.frequencies, first.scaling])
    for layer, record in enumerate(records):
        own = np.array([*record.frequencies, record.scaling])
        if len(own) != len(known) or not np.allclose(own, known, rtol=_SAME, atol=0.0):
            raise ConfigError(
                f"layer {layer}: RoPE has other frequencies than in layer 0, or another factor on "
                f"cos and sin; the file of {_TOOL} has one rotary embedding for all layers"
            )
    if flat and first.pairing != "halves":
        raise ConfigError(
            "--layout: tensorrt-llm pairs the halves of a vector; RoPE of this model turns "
            "neighbouring dimensions. Use --layout official"
        )
