"""The attention calls of a transformers model, packed as every engine gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Self

import torch
from torch import Tensor, nn

from qk_dump.heads import Kind
from qk_sniffer.engines.engine import AttentionRule, CallReceiver, LayerCall, LayerFacts
from qk_sniffer.engines.hf.attention_hooks import AttentionCall, attention_hook, rotary_hook
from qk_sniffer.engines.hf.layout import HfLayout, RotaryPart, run_backbone
from qk_sniffer.engines.hf.logits import HIDDEN_BELOW, mask_of, sinks_of, sum_of_biases


class HfCalls:
    """Gives a receiver the attention calls of some layers, while it is open.

    `expect` tells the lengths of the texts of the next forward. Calls with a cache or of
    cross-attention are left out.
    """

    def __init__(
        self,
        layout: HfLayout,
        layers: Collection[int],
        receiver: CallReceiver,
        *,
        pre_rope: bool = False,
        rules: bool = False,
    ) -> None:
        """With `pre_rope`, vectors before the rotary embedding are stored.

        `rules` is whether the receiver needs the rules of attention.
        """
        self._layout = layout
        self._layers = {
            (place.module, place.call): number
            for number, place in layout.places.items()
            if number in layers
        }
        self._modules = {module for module, _ in self._layers}
        self._receiver = receiver
        self._pre_rope = pre_rope
        self._rules = rules
        self._stack = ExitStack()
        self._lengths: Sequence[int] = ()
        self._calls: Counter[nn.Module] = Counter()  # attention calls of the forward so far
        self._rotary_inputs: list[tuple[Tensor, ...]] = []  # of the module that is running

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(attention_hook(self._on_attention))
            if self._pre_rope:
                for module in self._modules:
                    stack.callback(module.register_forward_pre_hook(self._on_module).remove)
                stack.enter_context(rotary_hook(self._modules, self._on_rotary))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, decoder: nn.Module, texts: Sequence[Sequence[int]], padding: int = 0) -> None:
        """Run the token ids of some texts in one forward, as if it were the first one.

        `padding` is the token after the end of shorter texts; no token of a text attends to it.
        """
        lengths = [len(ids) for ids in texts]
        tokens = torch.full((len(texts), max(lengths)), padding, dtype=torch.int64)
        for line, ids in zip(tokens, texts, strict=True):
            line[: len(ids)] = torch.as_tensor(ids)
        self._layout.rotary_tables.reset()
        with self:
            self.expect(lengths)
            run_backbone(decoder, tokens)

    def expect(self, lengths: Sequence[int]) -> None:
        """Set the lengths of the texts of the next forward; without any, it is left out."""
        self._lengths = tuple(lengths)
        self._calls.clear()
        self._rotary_inputs = []

    def _on_module(self, module: nn.Module, arguments: object) -> None:
        self._rotary_inputs = []

    def _on_rotary(self, before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
        if self._lengths:
            self._rotary_inputs.append(tuple(tensor.detach() for tensor in before))

    def _on_attention(self, call: AttentionCall) -> None:
        module = call.module
        if module not in self._modules or not call.is_self_attention or not self._lengths:
            return
        number = self._layers.get((module, self._calls[module]))
        self._calls[module] += 1
        if number is None:
            return
        query, key = self._packed(call.query), self._packed(call.key)
        stored = (self._stored(number, "q", call.query), self._stored(number, "k", call.key))
        self._rotary_inputs = []
        if stored[0] is None or stored[1] is None:  # the rotary function was not recorded
            return
        has_values = call.value.dim() == 4 and call.value.shape[:3] == call.key.shape[:3]
        self._receiver.on_call(
            LayerCall(
                layer=number,
                query=query,
                key=key,
                value=self._packed(call.value) if has_values else None,
                stored_query=query if stored[0] is call.query else self._packed(stored[0]),
                stored_key=key if stored[1] is call.key else self._packed(stored[1]),
                rule=rule_of(self._layout[number], call) if self._rules else None,
            )
        )

    def _packed(self, tensor: Tensor) -> Tensor:
        """(tokens, heads, d) of a padded tensor (texts, heads, s, d); a view of a single text."""
        pairs = zip(tensor.detach(), self._lengths, strict=True)
        texts = [part[:, :length] for part, length in pairs]  # (heads, s, d) each
        return (texts[0] if len(texts) == 1 else torch.cat(texts, dim=1)).transpose(0, 1)

    def _stored(self, number: int, kind: Kind, tensor: Tensor) -> Tensor | None:
        """The padded tensor whose rows are stored; None if it was not seen."""
        part = self._layout.places[number].rotary(kind)
        if not self._pre_rope or part is None:
            return tensor
        if part.call >= len(self._rotary_inputs):
            return None
        return _unrotated(tensor, self._rotary_inputs[part.call][part.tensor], part)


def _unrotated(tensor: Tensor, before: Tensor, part: RotaryPart) -> Tensor:
    """(b, heads, s, d) as it was before the rotary embedding of some or all dimensions."""
    if part.heads_last:
        before = before.transpose(1, 2)  # (b, heads or 1, s, r)
    before = before.expand(-1, tensor.shape[1], -1, -1)
    if part.width == tensor.shape[3]:
        return before
    start, end = part.start, part.start + part.width
    return torch.cat([tensor[..., :start], before, tensor[..., end:]], dim=3)


def rule_of(facts: LayerFacts, call: AttentionCall) -> AttentionRule | None:
    """The rule of a layer's call; None if its logits are not known."""
    logits = facts.logits
    if logits is None:
        return None
    sinks = sinks_of(call) if logits.sinks else None
    if logits.sinks and sinks is None:
        return None
    extra = None
    if facts.selective or logits.biased:
        extra = _extra(call)
        if extra is None:
            return None
    return facts.rule(sinks, extra)


def _extra(call: AttentionCall) -> Tensor | None:
    """What the mask and the bias of a call add to the logits; None if they are no tensors."""
    mask, added = mask_of(call), sum_of_biases(call)
    if mask is not None and mask.dtype == torch.bool:
        hidden = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
        return hidden if added is None else hidden + added
    return None if added is None else added.masked_fill(added <= HIDDEN_BELOW, -torch.inf)
