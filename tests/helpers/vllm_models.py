"""Tiny models that vLLM runs on a CPU, which needs heads of 32 dimensions or more."""

from dataclasses import replace

from tiny_models import ARCHITECTURES
from tiny_texts import tiny_tokenizer

_WIDTH = 32


def save_model(folder, model_type, **changes):
    """A random model and its tokenizer."""
    known = ARCHITECTURES[model_type]
    config = {**known.config, "head_dim": _WIDTH, **changes}
    if "query_pre_attn_scalar" in config:
        config["query_pre_attn_scalar"] = _WIDTH
    if "num_local_experts" in config:
        config["intermediate_size"] = 128  # experts of two ranks need 64 each
    replace(known, config=config).model(known.attention[0]).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
