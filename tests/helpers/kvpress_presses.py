"""Runs presses of kvpress with exported folders and prints what they did, as JSON.

A process of its own: importing kvpress replaces the attention functions of transformers.
Arguments: the folder with the exports, which is also the current folder of Q-Filters.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from kvpress import (
    DuoAttentionPress,
    ExpectedAttentionStatsPress,
    LUKVPress,
    QFilterPress,
    SnapKVPress,
)
from kvpress.presses.expected_attention_with_stats import patch_rotary_embedding
from transformers import DynamicCache

from helpers.export_dumps import some_tokens
from tiny_models import ARCHITECTURES

NAME = "tiny-qwen3"
LENGTH = 24


def compressed(model, press):
    """Keys that every layer keeps of a text of 24 tokens, and the logits of the last token."""
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        result = model(input_ids=some_tokens(1, LENGTH), past_key_values=cache)
    return [cache.get_seq_length(layer) for layer in range(4)], result.logits[0, -1]


def pruned_keys(model, press):
    """Keys that each key head of every layer loses of a text of 24 tokens."""
    compressed(model, press)
    layers = [layer.self_attn for layer in model.model.layers]
    heads = model.config.num_key_value_heads
    return [
        torch.bincount(layer.masked_key_indices[1], minlength=heads).tolist() for layer in layers
    ]


def own_statistics(model):
    """Mean and covariance as the calibrator of kvpress computes them, text by text."""
    parts = []
    for text in some_tokens():
        with torch.no_grad(), patch_rotary_embedding(model) as captured:
            model(input_ids=text[None])
        parts.append(torch.cat(captured, dim=0)[:, :, 4:, :])
    rows = torch.cat(parts, dim=-2)
    mean = rows.mean(dim=-2)
    centred = rows - mean.unsqueeze(-2)
    return mean, (centred.transpose(-2, -1) @ centred) / (rows.shape[-2] - 1)


def read_pattern(folder):
    """Reads a folder as `load_attention_pattern` reads the files at its fixed URLs."""
    config = json.loads((folder / "config.json").read_text())
    scores = np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    return config["sink_size"], config["recent_size"], np.clip(scores, 0, 1)


def main(folder):
    model = ARCHITECTURES["qwen3"].model()
    model.config.name_or_path = NAME
    found = {}

    expected = ExpectedAttentionStatsPress(0.5, stats_folder=str(folder / "expected-attention"))
    found["expected_lengths"], _ = compressed(model, expected)
    mean, covariance = own_statistics(model)
    found["mean_difference"] = float((expected.mu - mean).abs().max())
    found["covariance_difference"] = float((expected.cov - covariance).abs().max())

    os.chdir(folder)
    filters = QFilterPress(0.5)
    found["filter_lengths"], _ = compressed(model, filters)
    found["filters"] = filters.q_filters.detach().numpy().tolist()

    DuoAttentionPress.load_attention_pattern = staticmethod(
        lambda model: read_pattern(folder / "duo")
    )
    duo = DuoAttentionPress(head_compression_ratio=0.5)
    found["duo_lengths"], _ = compressed(model, duo)
    found["streaming"] = duo.streaming_mask.int().tolist()
    found["sizes"] = [duo.sink_size, duo.recent_size]
    found["ratio"] = duo.compression_ratio

    budget = LUKVPress(SnapKVPress(window_size=4), compression_ratio=0.5)
    budget._budget_curves = np.load(folder / "budget" / "budget.npy", allow_pickle=False)
    found["pruned"] = pruned_keys(model, budget)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve())))
