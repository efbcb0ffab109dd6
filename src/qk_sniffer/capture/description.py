"""The plan of a capture, which decides whether it can continue, and the content of `dump.json`."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from importlib.metadata import version
from typing import Any

from qk_dump.layers import LayerRecord
from qk_dump.manifest import DumpManifest
from qk_sniffer.capture.outline import Outline
from qk_sniffer.capture.setup import Setup, sampler_of
from qk_sniffer.config import CaptureConfig
from qk_sniffer.engines.engine import LayerFacts, ModelLayout
from qk_sniffer.sampling.bucket_counts import AutoChoice
from qk_sniffer.sampling.heads import WantedLayer, eligible_q_heads
from qk_sniffer.sampling.positions import PositionSampler

_TOOLS = (
    "attention-plasticity",
    "datasets",
    "numpy",
    "pyarrow",
    "tokenizers",
    "torch",
    "transformers",
)


def capture_plan(setup: Setup) -> dict[str, Any]:
    """All settings that affect the rows of a dump, and no others.

    What the sampler auto has chosen is part of the plan, so that a capture keeps it when it
    continues, and the number of keys drawn by attention, also where the settings leave it open.
    """
    config, loaded = setup.config, setup.loaded
    sections = config.model_dump(
        include={"dataset", "model", "tokenizer", "inference", "capture"},
        exclude={
            "dataset": {"streaming"},
            "model": {"device_map", "trust_remote_code"},
        },
    )
    made = config.dataset.made
    sections["dataset"].pop("synthetic")
    if made is not None:
        sections["dataset"]["synthetic"] = made.as_record()
    if config.dataset.spread_samples is None:
        del sections["dataset"]["spread_samples"]
    if not config.model.random_weights:  # plans of earlier versions do not have these fields
        del sections["model"]["random_weights"], sections["model"]["random_seed"]
    sections["model"] |= {
        "commit": loaded.commit,
        "files": loaded.files,
        "dtype": loaded.dtype,
        "attn_implementation": loaded.attention,
        "device": loaded.device,
    }
    sections["tokenizer"]["max_length"] = setup.max_length
    sections["capture"] |= _positions(config, setup.choice)
    sections["inference"]["batch_size"] = setup.batch_size
    sections["capture"]["attended_keys"] = (
        setup.row_plan.attended.number if setup.row_plan.attended else 0
    )
    sections["output"] = {"vector_dtype": config.output.vector_dtype}
    sections["versions"] = tool_versions()
    return sections | dict(loaded.engine_record)


def _positions(config: CaptureConfig, choice: AutoChoice | None) -> dict[str, Any]:
    """The settings of the sampler, with their defaults filled in."""
    settings = config.capture.sampler
    if choice is not None:
        chosen = choice.as_record()
        return {"sampler": {"type": settings.type, "seed": settings.seed, "chosen": chosen}}
    sampler = sampler_of(config.capture)
    rates = {"base_rate": sampler.base_rate, "key_base_rate": sampler.key_base_rate}
    return {
        "sampler": {"type": sampler.type, **rates, "seed": sampler.seed},
        "min_bucket_size": sampler.min_bucket_size,
    }


def tool_versions() -> dict[str, str]:
    """The versions of Python and of the libraries that affect the rows of a dump."""
    return {"python": platform.python_version(), **{name: version(name) for name in _TOOLS}}


def manifest_of(setup: Setup, lengths: Collection[int]) -> DumpManifest:
    """The content of `dump.json`, without the plan. `lengths`: the tokens of each text."""
    config = setup.config
    made = config.dataset.made
    return capture_manifest(
        model=setup.loaded.title,
        revision=setup.loaded.commit or config.model.revision,
        text_config=setup.loaded.text_config,
        layout=setup.loaded.layout,
        wanted=setup.row_plan.wanted,
        sampler=setup.row_plan.sampler,
        dtype=setup.loaded.dtype,
        pre_rope=config.capture.capture_pre_rope,
        eligible_q_heads=eligible_q_heads(setup.loaded.layout, config.capture),
        synthetic=made.as_record() if made is not None else None,
        random_weights=config.model.random_weights or None,
        lengths=lengths,
    )


def outline_of(setup: Setup, chunk_size: int) -> Outline:
    """What the end of the capture needs, on a machine without the model."""
    pre_rope = setup.config.capture.capture_pre_rope
    by_length = any(
        layer.rotation(pre_rope).table is not None for layer in setup.loaded.layout.layers
    )
    return Outline(
        chunk_size,
        setup.texts.total,
        tuple(setup.row_plan.tables(half=setup.half)),
        None if by_length else manifest_of(setup, ()),
        setup.config.capture.tokens,
    )


def capture_manifest(
    *,
    model: str,
    revision: str | None,
    text_config: Any,
    layout: ModelLayout,
    wanted: Sequence[WantedLayer],
    sampler: PositionSampler,
    dtype: str,
    pre_rope: bool,
    lengths: Collection[int],
    **more: Any,
) -> DumpManifest:
    """The content of `dump.json`. `lengths` are the numbers of tokens of the texts."""
    first = wanted[0].facts
    scales = {layer.facts.scale for layer in wanted}
    return DumpManifest(
        model=model,
        revision=revision,
        num_layers=layout.num_layers,
        num_q_heads=first.q_heads,
        num_k_heads=first.k_heads,
        head_dim=first.width,
        layer_types=_layer_types(layout),
        rope_parameters=rope_parameters(text_config),
        attention_scale=scales.pop() if len(scales) == 1 else None,
        bucket_type=sampler.bucket_type,
        min_bucket_size=sampler.min_bucket_size,
        sampler=_sampler(sampler),
        dtype=dtype,
        versions=tool_versions(),
        seed=sampler.seed,
        pre_rope=pre_rope,
        layers=[layer_record(facts, pre_rope, lengths) for facts in layout.layers],
        **more,
    )


def _sampler(sampler: PositionSampler) -> dict[str, Any]:
    found = {"type": sampler.type, "base_rate": sampler.base_rate, "seed": sampler.seed}
    rate = sampler.key_base_rate
    return found if rate is None else found | {"key_base_rate": rate}


def _layer_types(layout: ModelLayout) -> list[str]:
    types = {facts.layer: str(facts.type) for facts in layout.layers}
    types |= dict.fromkeys(layout.compressed_layers, "compressed_attention")
    return [types.get(layer, "no_self_attention") for layer in range(layout.num_layers)]


def layer_record(facts: LayerFacts, pre_rope: bool, lengths: Collection[int] = ()) -> LayerRecord:
    """What `dump.json` has about a layer; `lengths` are the numbers of tokens of the texts."""
    rotation = facts.rotation(pre_rope).for_texts(lengths)
    return LayerRecord(
        layer=facts.layer,
        type=facts.type,
        rope=facts.rope,
        head_dim=facts.width,
        window=facts.window,
        selective=facts.selective,
        biased=facts.logits is not None and facts.logits.biased,
        scale=facts.scale,
        softcap=facts.softcap,
        learned_sinks=None if facts.logits is None else facts.logits.sinks,
        rotary=rotation.record,
        rotary_problem=rotation.problem,
    )


def rope_parameters(text_config: Any) -> dict[str, Any] | None:
    """The rope parameters of a config, with JSON types only."""
    rope = getattr(text_config, "rope_parameters", None)
    return _plain(dict(rope)) if rope else None


def _plain(value: Any) -> Any:
    """The value with JSON types only."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
