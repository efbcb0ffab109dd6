"""Models of a real shape with random weights, and captures of texts of random tokens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, Qwen3Config

from qk_dump.manifest import DumpManifest
from qk_sniffer.capture.finish import finish
from qk_sniffer.capture.folder import open_capture
from qk_sniffer.capture.outline import Outline
from qk_sniffer.capture.run import run_chunks
from qk_sniffer.capture.setup import Setup, attended_sampler_of, sampler_of
from qk_sniffer.capture.work import Work, chunk_size
from qk_sniffer.config import make_config
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.engines.hf.loading import LoadedModel
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.texts.encoding import TextEncoder
from qk_sniffer.texts.sources import Text
from qk_toolkit.watcher import Watcher

SMALL: dict[str, Any] = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 32_000,
}
QWEN3_8B: dict[str, Any] = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
}


def random_model(shape: dict[str, Any], device: str, dtype: torch.dtype) -> LoadedModel:
    """The backbone, with weights that are drawn on the device."""
    config = Qwen3Config(**shape, max_position_embeddings=131_072)
    torch.manual_seed(0)
    auto: Any = AutoModel
    with torch.device(device):
        model = auto.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return LoadedModel(model.eval(), None)


def bare_forwards(loaded: LoadedModel, texts: int, tokens: int) -> None:
    """Run the texts of a capture without capturing."""
    tokenizer = RandomTokenizer(tokens, loaded.text_config.vocab_size)
    for number in range(texts):
        ids = torch.tensor(tokenizer(str(number))["input_ids"])[None]  # (1, tokens)
        run_backbone(decoder_of(loaded.model), ids)


@dataclass(frozen=True)
class RandomTexts:
    """Texts whose tokens the tokenizer makes."""

    total: int
    has_index = False

    def __iter__(self) -> Iterator[Text]:
        return (Text(number, number, str(number)) for number in range(self.total))


@dataclass(frozen=True)
class RandomTokenizer:
    """Random tokens that depend on the text alone."""

    length: int
    vocabulary: int
    pad_token_id: int = 0
    eos_token_id: int = 0
    truncation_side: str = "right"

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        """The tokens of a text, which is a number."""
        rng = np.random.default_rng(int(text))
        return {"input_ids": rng.integers(0, self.vocabulary, self.length).tolist()}


class Capture:
    """The loop of a capture of random texts, in a folder that is removed by `finish`."""

    def __init__(
        self, loaded: LoadedModel, texts: int, tokens: int, settings: dict[str, Any]
    ) -> None:
        self._folder = Path(tempfile.mkdtemp())
        config = make_config(
            dataset={"path": "random"},
            model={"name": "random"},
            capture=settings,
            output={"data_root": str(self._folder)},
        )
        random_texts: Any = RandomTexts(texts)
        tokenizer: Any = RandomTokenizer(tokens, loaded.text_config.vocab_size)
        setup = Setup(
            config=config,
            texts=random_texts,
            tokenizer=tokenizer,
            loaded=loaded,
            encoder=TextEncoder(config, tokenizer, tokens, loaded.vocabulary),
            row_plan=RowPlan(
                wanted=choose_heads(loaded.layout, config.capture),
                sampler=sampler_of(config.capture),
                attention=config.capture.attention,
                tokens=config.capture.tokens,
                attended=attended_sampler_of(config.capture, texts),
            ),
        )
        outline = Outline(chunk_size(setup))
        opened = open_capture(self._folder, {"benchmark": True}, outline)
        self._work = Work(setup, opened)

    def run(self) -> None:
        """Run all texts: tokens, forwards, rows, segments on the disk."""
        run_chunks(self._work, Watcher())

    def finish(self) -> None:
        """Make the Parquet files."""
        work = self._work
        finish(work.capture, work.num_chunks, [*work.tables.values()], DumpManifest())
        shutil.rmtree(self._folder)
