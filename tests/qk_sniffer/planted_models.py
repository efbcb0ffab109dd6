"""A tiny transformer whose heads do known things, by weights that are set by hand."""

import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tiny_models import VOCABULARY
from tiny_texts import tiny_tokenizer

HEADS = ("previous", "duplicate", "sink", "mixed")
"""The role of every head of the planted layer."""
_WIDTH = 128  # of a head
_THETA = 1e8  # bands from 32 on turn by less than 1e-4 radians per token
_CONSTANT, _BEGIN = VOCABULARY, VOCABULARY + 1  # dimensions of the residual stream
_HIDDEN = VOCABULARY + 32


def save_planted_model(folder):
    """A llama with one layer, whose heads attend as `HEADS` says, and the tiny tokenizer."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=len(HEADS),
        num_key_value_heads=len(HEADS),
        head_dim=_WIDTH,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        embedding = torch.zeros(VOCABULARY, _HIDDEN)
        embedding[:, :VOCABULARY] = torch.eye(VOCABULARY)
        embedding[:, _CONSTANT] = 1.0
        embedding[1, _BEGIN] = 1.0  # the begin token
        model.model.embed_tokens.weight.copy_(embedding)
        attention = model.model.layers[0].self_attn
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.zero_()
        queries = attention.q_proj.weight.view(len(HEADS), _WIDTH, _HIDDEN)
        keys = attention.k_proj.weight.view(len(HEADS), _WIDTH, _HIDDEN)
        _plant_previous(queries[0], keys[0])
        _plant_duplicate(queries[1], keys[1])
        _plant_sink(queries[2], keys[2])
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _plant_previous(query, key):
    """Constant vectors: the logit is Σ cos(ω(Δ − 1)) over fast bands, largest at distance 1."""
    half = _WIDTH // 2
    for band in range(8):
        frequency = _THETA ** (-band / half)
        key[band, _CONSTANT] = 20.0
        query[band, _CONSTANT] = 20.0 * math.cos(frequency)
        query[band + half, _CONSTANT] = -20.0 * math.sin(frequency)


def _plant_duplicate(query, key):
    """Equal codes of a token in slow bands; the query's own key scores lower by fast bands."""
    half, codes = _WIDTH // 2, torch.Generator().manual_seed(0)
    slow = [*range(32, half), *range(32 + half, _WIDTH)]  # 64 dimensions
    code = torch.randn(len(slow), VOCABULARY, generator=codes)
    code = 20.0 * code / code.norm(dim=0)
    query[slow, :VOCABULARY] = code
    key[slow, :VOCABULARY] = code
    for band in (0, 1):
        key[band, _CONSTANT] = 8.0
        query[band, _CONSTANT] = -8.0  # lowest at distance 0


def _plant_sink(query, key):
    """A key of the begin token in the slowest band that every query prefers."""
    query[_WIDTH // 2 - 1, _CONSTANT] = 12.0
    key[_WIDTH // 2 - 1, _BEGIN] = 12.0
