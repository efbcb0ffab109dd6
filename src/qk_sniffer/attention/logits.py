"""The logits of queries with the keys of their text, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from qk_sniffer.engines.engine import AttentionRule


def visible_logits(
    products: Tensor, position: Tensor, begin: int, rule: AttentionRule, text: int, heads: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits (…, r, keys) with −inf for hidden keys, and which keys (…, r, keys) are visible.

    `products` (…, r, keys) are scale · q·k of the query heads `heads` (…) at `position` (r,), with
    the keys from position `begin` of a text on. They are overwritten.
    """
    if rule.softcap is not None:
        products.div_(rule.softcap).tanh_().mul_(rule.softcap)
    keys = slice(begin, begin + products.shape[-1])
    place = torch.arange(keys.start, keys.stop, device=products.device)  # (keys,)
    low = rule.first_visible(position)  # (r,)
    seen = (place <= position[:, None]) & (place >= low[:, None])  # (r, keys)
    if rule.extra is not None:
        extra = rule.extra[text % len(rule.extra)]  # (heads or 1, s, s)
        chosen = heads if len(extra) > 1 else heads.new_zeros([1] * heads.dim())
        added = extra[..., keys][chosen[..., None], position].float()  # (…, r, keys)
        seen = seen & (added != -torch.inf)
        products += torch.where(seen, added, 0.0)
    return products.masked_fill_(~seen, -torch.inf), seen
