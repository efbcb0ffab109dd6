"""The loss of every model of the study of rope scaling, by parts of the context."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qk_sniffer.config import CaptureConfig
from qk_sniffer.engines.hf.loading import load_model_config, quiet_transformers
from qk_sniffer.texts.sources import open_texts
from qk_study.plan import ModelPlan

PARTS = 4  # of the context
_ROWS = 2048  # positions whose logits are computed together


def write_losses(plans: Sequence[ModelPlan], context: int, file: Path) -> None:
    """Write the losses of all models, by texts and parts of the context."""
    table = pd.concat([losses(plan, context) for plan in plans])
    table.to_csv(file, index=False, float_format="%.6f")


def losses(plan: ModelPlan, context: int) -> pd.DataFrame:
    """The mean loss of a model in every part of every text: `label, text, part, loss`."""
    config = plan.captures[0].config
    assert isinstance(config, CaptureConfig)
    place, device = config.model.name, "cuda" if torch.cuda.is_available() else "cpu"
    with quiet_transformers():
        own = load_model_config(config.model)
        model: Any = AutoModelForCausalLM.from_pretrained(
            place, config=own, dtype=config.model.dtype
        )
        model = model.to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(place)
    rows = []
    for text in open_texts(config.dataset):
        ids = torch.tensor(tokenizer(text.text)["input_ids"][:context], device=device)
        assert len(ids) == context, "a text is too short"
        of_tokens = torch.cat(list(_token_losses(model, ids)))  # (n - 1,) of tokens 1, 2, …
        for part in range(PARTS):
            first, end = part * context // PARTS, (part + 1) * context // PARTS
            loss = float(of_tokens[max(0, first - 1) : end - 1].mean())
            rows.append((plan.label, text.original_id, part, loss))
    print(f"{plan.label}: loss measured", file=sys.stderr)
    return pd.DataFrame(rows, columns=["label", "text", "part", "loss"])


def _token_losses(model: Any, ids: torch.Tensor) -> Iterator[torch.Tensor]:
    """Losses of the tokens after the first one, in blocks, from tokens (n,)."""
    with torch.inference_mode():
        states = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]  # (n, d)
        for start in range(0, len(ids) - 1, _ROWS):
            targets = ids[start + 1 : start + 1 + _ROWS]
            logits = model.lm_head(states[start : start + len(targets)])  # (b, vocabulary)
            yield torch.nn.functional.cross_entropy(logits, targets, reduction="none").cpu()
