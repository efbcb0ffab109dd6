"""Models whose layers are spread over several processes (tensor parallelism of transformers)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import transformers
from torch import nn

from qk_dump.layout import Kind
from qk_sniffer.model.layout import ModelLayout
from qk_sniffer.model.probe_forward import probe_forward, probe_mode
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float32]
HeadVectors = dict[tuple[int, Kind], Floats]
"""(layer, kind) → vectors (heads, d)."""

_TOKENS = 5


def spread_over(processes: int, config: Any) -> dict[str, Any]:
    """The options of `from_pretrained` that spread a model; `config` is the decoder's."""
    _require_divisible(config, processes)
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_size=processes)}
    except (ImportError, TypeError) as error:
        raise ConfigError(
            f"model.tensor_parallel: transformers {transformers.__version__} is too old for it; "
            "install a newer version, or use model.device_map: auto"
        ) from error


def _require_divisible(config: Any, processes: int) -> None:
    """Refuse heads that cannot be spread evenly over the processes."""
    q = getattr(config, "num_attention_heads", None)
    k = getattr(config, "num_key_value_heads", None) or q
    for name, count in (("query", q), ("key", k)):
        if isinstance(count, int) and count % processes:
            raise ConfigError(
                f"model.tensor_parallel: {count} {name} heads cannot be spread evenly over "
                f"{processes} processes; start fewer processes, or use model.device_map: auto"
            )


def head_vectors(decoder: nn.Module, layout: ModelLayout) -> HeadVectors:
    """A query and a key of every head of this process, for the same token in all processes."""
    with probe_mode(decoder):
        calls = probe_forward(decoder, _TOKENS).calls
    by_site = {(call.site.module, call.site.number): call for call in calls}
    vectors: HeadVectors = {}
    for facts in layout.layers:
        call = by_site[facts.module, facts.call]
        vectors[facts.layer, "q"] = call.query[0, :, -1].float().cpu().numpy()  # (heads, d)
        vectors[facts.layer, "k"] = call.key[0, :, -1].float().cpu().numpy()  # (key heads, d)
    return vectors


def is_tensor_parallel(model: nn.Module) -> bool:
    """Whether this process holds only a part of the weights, and computes only with this part."""
    if (getattr(model, "tp_size", None) or 1) > 1:
        return True
    from torch.distributed.tensor import DTensor

    if not any(
        isinstance(weight, DTensor) and any(place.is_shard() for place in weight.placements)
        for weight in model.parameters()
    ):
        return False
    from torch.distributed.fsdp import FSDPModule

    # modules of FSDP gather their weights before they compute
    return not any(isinstance(module, FSDPModule) for module in model.modules())


def refuse_tensor_parallel(model: nn.Module) -> None:
    """Refuse a model whose heads are spread over processes."""
    if is_tensor_parallel(model):
        raise ConfigError(
            "the model is tensor parallel: this process has only some of its heads, and their "
            "numbers would be wrong. Load it without tensor parallelism, or capture with sniff-qk "
            "and model.tensor_parallel."
        )
