"""Run one forward of a few tokens and record its attention calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qk_dump.heads import Kind
from qk_sniffer.engines.engine import Logits
from qk_sniffer.engines.hf.attention_hooks import AttentionCall, attention_hook, rotary_hook
from qk_sniffer.engines.hf.layer_numbers import CallSite, LayerRecorder, LayerRun
from qk_sniffer.engines.hf.layout import RotaryPart, run_backbone, vocabulary_of
from qk_sniffer.engines.hf.logits import logits_of
from qk_sniffer.engines.hf.memory import is_out_of_memory
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.raised_in import is_our_bug

RotaryCall = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""The input tensors of a rotary function, and its results."""

_probed: set[nn.Module] = set()  # decoders


def is_probe_running(decoder: nn.Module) -> bool:
    """Whether the decoder is probed; the tokens of a probe are no user's text."""
    return decoder in _probed


@contextmanager
def probe_mode(decoder: nn.Module) -> Iterator[None]:
    """Mark forwards as probes, and switch dropout off."""
    training = {module: module.training for module in decoder.modules()}
    _probed.add(decoder)
    decoder.eval()
    try:
        yield
    finally:
        _probed.discard(decoder)
        for module, flag in training.items():
            module.training = flag


class ForwardFailedError(ConfigError):
    """The model's own code failed on the tokens of a probe, for a `reason` in a few words."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class ProbedCall:
    """An attention call of a probe, and the rotary calls before it."""

    site: CallSite
    query: Tensor  # (1, heads, s, d)
    key: Tensor  # (1, key heads, s or more, d)
    options: Mapping[str, Any]  # without tensors
    rotary: Sequence[RotaryCall]
    visible: Tensor | None  # (heads, s, s); None if not measured, or if keys are not tokens
    logits: Logits | None = None  # None if not measured, or not known

    @property
    def q_heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[1]

    @property
    def k_heads(self) -> int:
        """Number of key heads."""
        return self.key.shape[1]

    @property
    def scale(self) -> float:
        """The factor of q·k; 1/√d if the call has none."""
        scale = _number(self.options.get("scaling"))
        return float(self.query.shape[3] ** -0.5) if scale is None else scale

    @property
    def softcap(self) -> float | None:
        """The soft-cap that the call has; the function may ignore it."""
        return _number(self.options.get("softcap"))

    @property
    def has_extra_keys(self) -> bool:
        """Whether there are more keys than tokens."""
        return self.key.shape[2] > self.query.shape[2]

    def rotary_part(self, kind: Kind) -> RotaryPart | None:
        """The result of a rotary function that became the queries or keys; None if unknown."""
        rotated = [
            (number, index, after)
            for number, (_, results) in enumerate(self.rotary)
            for index, after in enumerate(results)
        ]
        if len(rotated) != 2:  # one call for queries and keys, or one for each
            return None
        target = self.query if kind == "q" else self.key
        number, index, after = rotated[kind == "k"]
        heads, length, width = target.shape[1:]
        if after.dim() != 4 or after.shape[3] > width:
            return None
        heads_last = not (after.shape[2] == length and after.shape[1] in (heads, 1))
        if heads_last:
            after = after.transpose(1, 2)
            if after.shape[2] != length or after.shape[1] not in (heads, 1):
                return None
        start = _matching_start(after, target)
        if start is None:
            return None
        return RotaryPart(number, index, heads_last, start, after.shape[3])

    def repeats(self, other: ProbedCall) -> bool:
        """Whether both calls have the same queries and keys; their values may differ."""
        return (
            self.site.module is other.site.module
            and self.site.run == other.site.run
            and torch.equal(self.query, other.query)
            and torch.equal(self.key, other.key)
        )


@dataclass(frozen=True)
class ProbeForward:
    """The decoder layers that ran, and their attention calls."""

    runs: Sequence[LayerRun]
    calls: Sequence[ProbedCall]


def _matching_start(after: Tensor, target: Tensor) -> int | None:
    """The first dimension of `target` that holds `after` (1, heads or 1, s, r)."""
    width, part = target.shape[3], after.shape[3]
    if part == width or after.is_meta:  # the model may still scale or normalise the vectors
        return 0
    for start in (0, width - part):
        if torch.equal(after.expand(1, target.shape[1], -1, -1), target[..., start : start + part]):
            return start
    return None


def probe_tokens(decoder: nn.Module, length: int) -> Tensor:
    """(1, length) tokens of the vocabulary."""
    return torch.arange(length)[None] % vocabulary_of(decoder)


def probe_forward(
    decoder: nn.Module, tokens: Tensor, *, masks: bool = False, first_position: int | None = None
) -> ProbeForward:
    """Run tokens (1, s); call it inside `probe_mode`. `masks` also records the visible keys.

    With `first_position` the model is given `position_ids` that count from it.
    Raises a `ForwardFailedError` if the model cannot run them.
    """
    owned = set(decoder.modules())
    calls: list[ProbedCall] = []
    numbers: Counter[nn.Module] = Counter()
    pending: list[tuple[int | None, RotaryCall]] = []  # (layer run, rotary call)
    recorder = LayerRecorder(decoder)

    def on_rotary(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
        pending.append((recorder.current, (before, after)))

    def on_attention(call: AttentionCall) -> None:
        rotary = [rotary_call for run, rotary_call in pending if run == recorder.current]
        pending.clear()
        module, query, key = call.module, call.query, call.key
        if module not in owned or not query.dim() == key.dim() == 4:
            return
        if not query.shape[2] == tokens.shape[1] <= key.shape[2]:
            return
        site = CallSite(module, numbers[module], recorder.current)
        if call.is_self_attention:
            numbers[module] += 1
        options = {
            name: None if torch.is_tensor(value) else value for name, value in call.options.items()
        }
        visible = _visible(call) if masks else None
        probed = ProbedCall(site, query, key, options, rotary, visible)
        if visible is not None:
            found = logits_of(call, visible, probed.scale, probed.softcap)
            probed = replace(probed, logits=found)
        if query.is_meta or not any(probed.repeats(other) for other in calls):
            calls.append(probed)

    with recorder, attention_hook(on_attention), rotary_hook(owned, on_rotary):
        _run(decoder, tokens, first_position)
    return ProbeForward(recorder.runs, calls)


def _run(decoder: nn.Module, tokens: Tensor, first_position: int | None) -> None:
    """Run the tokens (1, length). An error of the model's own code becomes one line."""
    try:
        run_backbone(decoder, tokens, first_position)
    except ToolkitError:
        raise
    except Exception as error:  # the code of models raises errors of all types
        if is_out_of_memory(error) or is_our_bug(error):
            raise
        line = next(iter(str(error).strip().splitlines()), "no reason given")[:300]
        reason = f"{type(error).__name__}: {line}"
        raise ForwardFailedError(
            f"{type(decoder).__name__}: the model's own forward failed on {tokens.shape[1]} tokens "
            f"({reason}). Run the model on a few tokens to see the whole error.",
            reason,
        ) from error


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _visible(call: AttentionCall) -> Tensor | None:
    divides = call.query.shape[1] % call.key.shape[1] == 0  # otherwise `probing` refuses the model
    return call.visible_keys() if divides and call.is_self_attention else None
