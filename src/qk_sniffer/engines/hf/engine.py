"""The engine of transformers: a loaded model that runs texts without a cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn

from qk_sniffer.engines.engine import CallReceiver
from qk_sniffer.engines.hf.calls import HfCalls
from qk_sniffer.engines.hf.layout import HfLayout, run_backbone


class HfEngine:
    """Runs a decoder and gives a receiver its attention calls."""

    def __init__(
        self,
        decoder: nn.Module,
        layout: HfLayout,
        layers: Collection[int],
        *,
        pre_rope: bool = False,
        rules: bool = False,
        padding: int = 0,
    ) -> None:
        """Calls of `layers` are given. See `HfCalls` for `pre_rope` and `rules`.

        `padding` is the token after the end of shorter texts; no token of a text attends to it.
        """
        self.layout = layout
        self._decoder = decoder
        self._layers = layers
        self._how = {"pre_rope": pre_rope, "rules": rules}
        self._padding = padding

    def run(self, texts: Sequence[Sequence[int]], receiver: CallReceiver) -> None:
        """Run the token ids of some texts in one forward."""
        lengths = [len(ids) for ids in texts]
        tokens = torch.full((len(texts), max(lengths)), self._padding, dtype=torch.int64)
        for line, ids in zip(tokens, texts, strict=True):
            line[: len(ids)] = torch.as_tensor(ids)
        self.layout.rotary_tables.reset()  # as if it were the first forward
        with HfCalls(self.layout, self._layers, receiver, **self._how) as calls:
            calls.expect(lengths)
            run_backbone(self._decoder, tokens)
