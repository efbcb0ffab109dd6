"""Windows for whole layers, which engines can hold: which layers keep full attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_plasticity.config import RunnerConfig
from attention_plasticity.export.folder import Content, json_file, text_file
from attention_plasticity.export.gates import Copying
from attention_plasticity.export.heads import entries
from attention_plasticity.export.order import UNIFORM, OrderedHeads, ordered_heads
from attention_plasticity.export.settings import ExportSettings
from attention_plasticity.metrics import FULL_ATTENTION, SLIDING_ATTENTION
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import index_ranges

_WINDOWS, _TABLE = "layer_windows.json", "layers.csv"
_LITTLE = 0.05  # far attention of a head that may have a window
_UNBOUNDED = 2**31 - 1  # TensorRT-LLM limits it to the longest sequence
EVIDENCE = (
    "In SmolLM2-135M-Instruct (two pieces of 640 tokens of the book of the capture, windows of 128 "
    "tokens in 15 of 30 layers) the KL divergence was 0.38 nats per token in the order of "
    "static_error, 0.51 of aligned_plasticity, 0.84 of far_mass, and 0.59 to 1.29 (mean 0.92) of "
    "ten random choices of layers. If the first 4 tokens stay, it is 0.036 for static_error "
    "and 0.049 for far_mass. No other model was tried."
)
"""What was measured."""


def layer_windows(heads: OrderedHeads, settings: ExportSettings) -> Content:
    """`layer_windows.json` for transformers and TensorRT-LLM, and `layers.csv`.

    The value of a layer is the mean of its key heads. Layers with the largest values stay full.
    """
    run, layers = heads.run, heads.shape[0]
    if heads.order == UNIFORM:
        raise ConfigError(f"--order: {UNIFORM} has no values, and layers need them")
    if not heads.counted.all():
        bounded = index_ranges(set(heads.layer[~heads.counted].tolist()))
        raise ConfigError(f"{run.place}: layers {bounded} have windows or chunks of their own")
    window = int(run.settings.get("distant_from") or RunnerConfig().distant_from)
    number = layers // 2 if settings.full_layers is None else settings.full_layers
    if number > layers:
        raise ConfigError(f"--full_layers: the model has {layers} layers, got {number}")
    value = heads.value.reshape(heads.shape).mean(axis=1)  # (layers,)
    order = np.argsort(-value, kind="stable")
    if 0 < number < layers and value[order[number - 1]] == value[order[number]]:
        tied = index_ranges(set(np.flatnonzero(value == value[order[number]]).tolist()))
        raise ConfigError(
            f"{run.place}: layers {tied} have equal values of {heads.order}, so that their numbers "
            "would decide which of them is full. Choose another --full_layers or --order"
        )
    full = np.zeros(layers, np.bool_)
    full[order[:number]] = True
    far = ordered_heads(run, "far_mass", settings.missing).value.reshape(heads.shape)
    copies = Copying.of(run, heads.shape).copies.reshape(heads.shape)
    sources = heads.influences.reshape(*heads.shape, -1).mean(axis=1)  # (layers, sources of error)
    table = pd.DataFrame(
        {
            "layer": np.arange(layers),
            "value": value,
            "value_se": np.linalg.norm(sources, axis=1),
            "far_mass": far.mean(axis=1),
            "may_have_window": ((far < _LITTLE) & ~copies).mean(axis=1),
            "copying_heads": copies.sum(axis=1),
            "full": full.astype(np.int64),
        }
    )
    content = {
        "layer_types": [FULL_ATTENTION if one else SLIDING_ATTENTION for one in full.tolist()],
        "sliding_window": window,
        "use_sliding_window": True,
        "max_attention_window": [_UNBOUNDED if one else window for one in full.tolist()],
    }
    rules = {
        **heads.rules(),
        "layers": f"the {number} layers with the largest mean over their key heads are full",
        "may_have_window": f"share of the key heads of which far_mass is below {_LITTLE:g} (keys "
        f"at a distance of {window} or more, without the first tokens) and which do not copy",
    }

    def show(folder: Path, console: Console) -> None:
        kept = index_ranges(set(np.flatnonzero(full).tolist())) or "none"
        told = f"{run.model_name}: order {heads.order}; layers {kept} are full, the others see"
        console.print(Text(f"{told} {window} tokens"))
        if (hurt := ~full & copies.any(axis=1)).any():
            told = index_ranges(set(np.flatnonzero(hurt).tolist()))
            console.print(Text(f"a window may hurt layers {told}, which have heads that copy"))
        console.print(Text(EVIDENCE))

    csv = table.to_csv(index=False, na_rep="nan", lineterminator="\n")
    files = {_WINDOWS: json_file(content), _TABLE: text_file(csv)}
    return Content(files, entries(table.to_dict("records")), rules, EVIDENCE, show)
