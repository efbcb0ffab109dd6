"""Settings of the engine vllm, and what it refuses before anything is loaded."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from qk_sniffer.text_settings import Section

_OF_TRANSFORMERS = (
    "gguf_file",
    "device_map",
    "attn_implementation",
    "config_overrides",
    "random_weights",
)
_OURS = {
    "model": "model.name",
    "revision": "model.revision",
    "dtype": "model.dtype",
    "trust_remote_code": "model.trust_remote_code",
    "max_model_len": "tokenizer.max_length",
    "max_num_seqs": "inference.batch_size",
    "tensor_parallel_size": "vllm.tensor_parallel",
    "max_num_batched_tokens": "vllm.tokens_per_step",
    "gpu_memory_utilization": "vllm.memory",
}
"""Options of vLLM that are settings of a capture."""
_FIXED = (
    *("async_scheduling", "disable_log_stats", "enable_chunked_prefill", "enable_prefix_caching"),
    *("enforce_eager", "hf_overrides", "runner", "skip_tokenizer_init", "tokenizer"),
    *("worker_cls", "worker_extension_cls"),
)
_REFUSED = {
    "pipeline_parallel_size": "ranks of a pipeline have different layers; use vllm.tensor_parallel",
    "data_parallel_size": "copies of the model would share texts that one process counts",
    "prefill_context_parallel_size": "ranks would have different tokens of a text",
    "decode_context_parallel_size": "ranks would have different tokens of a text",
    "speculative_config": "a draft model (speculative decoding) adds tokens to a text",
    "spec_method": "a draft model (speculative decoding) adds tokens to a text",
    "spec_model": "a draft model (speculative decoding) adds tokens to a text",
    "kv_transfer_config": "keys from another machine would not be computed here",
}


class VllmSettings(Section):
    """How vLLM runs the model; only with engine vllm."""

    tensor_parallel: int = Field(
        default=1, ge=1, description="GPUs that share the heads of the model"
    )
    tokens_per_step: int | None = Field(
        default=None,
        ge=1,
        description="most tokens in one step; longer texts run in pieces, and the queries and keys "
        "of a text are held until its last piece (default: every text runs whole)",
    )
    memory: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="part of a GPU's memory for weights and cache (default: 0.8; the capture needs "
        "some of the rest)",
    )
    options: dict[str, Any] | None = Field(
        default=None,
        description="more arguments of vllm.LLM, such as {quantization: fp8}",
    )


def vllm_problem(settings: VllmSettings, model: BaseModel, *, pre_rope: bool) -> str | None:
    """What the engine vllm cannot do of a capture, with its setting; None if it can do all."""
    other = "leave it out, or use engine hf"
    if pre_rope:
        return (
            "capture.capture_pre_rope: vLLM rotates queries and keys in place, so those before the "
            f"rotary embedding are not seen; {other}"
        )
    for name in _OF_TRANSFORMERS:
        if getattr(model, name):
            return f"model.{name}: has no effect with engine vllm; {other}"
    for name, value in (settings.options or {}).items():
        problem = _option_problem(name, value)
        if problem is not None:
            return f"vllm.options: {name}: {problem}"
    return None


def _option_problem(name: str, value: object) -> str | None:
    if name in _OURS:
        return f"is {_OURS[name]} here; set that"
    if name in _FIXED:
        return "a capture needs a value of its own; leave it out"
    if name in _REFUSED and value not in (None, 1):
        return f"{_REFUSED[name]}; leave it out"
    if name == "kv_cache_dtype" and ("fp8" in str(value) or "fp4" in str(value)):
        return f"{value}: queries would attend to rounded keys; leave it out"
    return None
