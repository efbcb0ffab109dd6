"""What the arguments of a user's forward say about its texts: lengths and tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qk_toolkit.errors import ConfigError


def arguments_by_name(
    module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a forward, positional ones too, by their names."""
    names = inspect.signature(module.forward).parameters
    return {**dict(zip(names, arguments, strict=False)), **options}


def lengths_of(decoder: Mapping[str, Any], model: Mapping[str, Any]) -> list[int]:
    """The number of tokens of each sequence; an empty list if the forward continues a cache.

    `decoder` holds the arguments of the decoder, `model` those of the whole model. Only the model
    gets the user's mask and positions: it computes its own ones for the decoder.
    """
    past = decoder.get("past_key_values")
    if past is not None and past.get_seq_length() > 0:
        return []
    inputs = (decoder.get("input_ids"), decoder.get("inputs_embeds"))
    batch, length = next(value for value in inputs if torch.is_tensor(value)).shape[:2]
    mask, positions = model.get("attention_mask"), model.get("position_ids")
    lengths = [length] * batch
    if isinstance(mask, Tensor) and mask.dim() == 2:
        lengths = _unpadded_lengths(mask)
    if isinstance(positions, Tensor) and positions.dim() == 2:
        expected = torch.arange(length, device=positions.device)  # (s,)
        rows = zip(positions.expand(batch, -1), lengths, strict=True)
        if not all(torch.equal(row[:n], expected[:n]) for row, n in rows):
            raise ConfigError("position_ids: must count from 0 in a tap; leave position_ids out")
    return lengths


def _unpadded_lengths(mask: Tensor) -> list[int]:
    is_token = mask.bool()  # (b, s)
    lengths = is_token.sum(dim=1)  # (b,)
    positions = torch.arange(is_token.shape[1], device=is_token.device)  # (s,)
    if not torch.equal(is_token, positions[None] < lengths[:, None]):
        raise ConfigError(
            "attention_mask: sequences must be padded on the right; other padding shifts "
            "positions. Set tokenizer.padding_side = 'right'."
        )
    return [int(length) for length in lengths]


def tokens_of(decoder: Mapping[str, Any], model: Mapping[str, Any]) -> Tensor | None:
    """Token ids (b, s) in host memory; None if the forward got embeddings alone.

    A model that also reads images passes embeddings to its decoder, and gets the ids itself.
    """
    inputs = decoder.get("inputs_embeds")
    for arguments in (decoder, model):
        ids = arguments.get("input_ids")
        if isinstance(ids, Tensor) and (inputs is None or ids.shape == inputs.shape[:2]):
            return ids.detach().cpu()
    return None
