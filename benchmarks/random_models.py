"""Models of a real shape with random weights, and texts that are random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, Qwen3Config

from qk_sniffer.capture.setup import (
    Setup,
    attended_layers,
    attended_sampler_of,
    sampler_of,
)
from qk_sniffer.config import CaptureConfig, make_config
from qk_sniffer.engines.hf.loading import LoadedModel
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.texts.encoding import TextEncoder
from qk_sniffer.texts.sources import Text

SHAPES: dict[str, dict[str, Any]] = {
    "8 layers, hidden 512": {
        "num_hidden_layers": 8,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 32_000,
    },
    "Qwen3-8B": {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
}


def random_model(shape: str, device: str, dtype: torch.dtype) -> LoadedModel:
    """The backbone, its weights drawn on the device."""
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=131_072)
    torch.manual_seed(0)
    auto: Any = AutoModel
    with torch.device(device):
        model = auto.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return LoadedModel(model.eval(), None)


@dataclass(frozen=True)
class RandomTexts:
    """Texts whose tokens the random tokenizer makes up."""

    total: int
    has_index = False

    def __iter__(self) -> Iterator[Text]:
        return (Text(number, number, str(number)) for number in range(self.total))


@dataclass(frozen=True)
class RandomTokenizer:
    """`length` random tokens for any text."""

    length: int
    vocabulary: int
    pad_token_id: int = 0
    eos_token_id: int = 0
    truncation_side: str = "right"

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        """Tokens that depend on the text alone."""
        rng = np.random.default_rng(int(text))
        return {"input_ids": rng.integers(0, self.vocabulary, self.length).tolist()}


def random_setup(
    loaded: LoadedModel, texts: int, length: int, capture: dict[str, Any], folder: str
) -> Setup:
    """A capture of random texts, ready to run."""
    config: CaptureConfig = make_config(
        dataset={"path": "random"},
        model={"name": "random"},
        capture=capture,
        output={"data_root": folder},
    )
    layout = loaded.layout
    tokenizer = RandomTokenizer(length, loaded.text_config.vocab_size)
    random_texts: Any = RandomTexts(texts)
    return Setup(
        config=config,
        texts=random_texts,
        tokenizer=tokenizer,
        loaded=loaded,
        layout=layout,
        wanted=choose_heads(layout, config.capture),
        sampler=sampler_of(config.capture),
        encoder=TextEncoder(config, tokenizer, length, loaded.vocabulary),
        attended=attended_sampler_of(config.capture, texts),
        attended_layers=attended_layers(choose_heads(layout, config.capture)),
    )
