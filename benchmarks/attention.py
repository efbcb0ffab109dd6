"""Forwards that also keep the attention of sampled queries, over bare forwards of the same tokens.

Bare forwards and forwards with a tap run in turn. The tap copies the sampled queries and keys of
all heads, and the attention columns, to the host; with "keys" it also draws keys by the attention
they receive. The best time of each counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from qk_sniffer.pipeline.row_tap import RowTap


_ATTENDED_KEYS = 171  # the default for 12 texts


def attention(rounds: int, lengths: list[int], rates: Sequence[int]) -> None:
    """Print the ratios after every round."""
    import torch

    from benchmarks.random_models import random_model

    if torch.cuda.is_available():
        print(f"\nattention, {torch.cuda.get_device_name()}, Qwen3-8B shape, bfloat16, sdpa")
        loaded = random_model("Qwen3-8B", "cuda", torch.bfloat16)
    else:
        threads = torch.get_num_threads()
        print(f"\nattention, CPU ({threads} threads), 8 layers × hidden 512, float32")
        loaded = random_model("8 layers, hidden 512", "cpu", torch.float32)
        lengths = [4096]
    for length in lengths:
        _forwards(loaded.model, length, rates, rounds)


def _forwards(model: Any, length: int, rates: Sequence[int], rounds: int) -> None:
    import torch

    from benchmarks.gpu_timing import timed
    from qk_sniffer.model.layout import decoder_of, run_backbone
    from qk_sniffer.model.probing import probe
    from qk_sniffer.pipeline.row_tap import RowTap
    from qk_sniffer.sampling.heads import choose_heads

    decoder, wanted = decoder_of(model), choose_heads(probe(model))
    tokens = torch.randint(0, 1000, (1, length), generator=torch.Generator().manual_seed(0))
    cases = {f"1/{rate:,}": (rate, 0) for rate in rates}
    cases |= {f"1/{rate:,} and keys": (rate, _ATTENDED_KEYS) for rate in rates}
    seconds: dict[str, list[float]] = {name: [] for name in ("bare forward", *cases)}
    peaks: dict[str, float] = {}
    for number in range(rounds):
        seconds["bare forward"].append(
            timed(partial(run_backbone, decoder, tokens), peaks, "bare forward")
        )
        for name, case in cases.items():
            with RowTap(decoder, wanted, attention=True) as tap:
                if number == 0:  # compiles the kernels
                    _tapped(tap, decoder, wanted, tokens[:, :4096], case)
                seconds[name].append(
                    timed(partial(_tapped, tap, decoder, wanted, tokens, case), peaks, name)
                )
        _print(length, seconds, peaks, number + 1)


def _tapped(tap: RowTap, decoder: Any, wanted: Any, tokens: Tensor, case: tuple[int, int]) -> None:
    from qk_sniffer.model.layout import run_backbone
    from qk_sniffer.pipeline.attended_rows import AttendedTexts
    from qk_sniffer.sampling.attended_keys import AttendedSampler
    from qk_sniffer.sampling.heads import sample_rows
    from qk_sniffer.sampling.positions import PositionSampler

    (rate, keys), length = case, tokens.shape[1]
    layers = frozenset(layer.facts.layer for layer in wanted)
    texts = AttendedTexts(AttendedSampler(keys), [0], [length], layers) if keys else None
    rows = sample_rows(PositionSampler("uniform", rate), wanted, [0], [length])
    tap.expect(rows, tokens, texts)
    run_backbone(decoder, tokens)
    taken = tap.take()
    for layer in wanted:
        taken.attention(layer.facts.layer)  # waits for the copies


def _print(
    length: int, seconds: dict[str, list[float]], peaks: dict[str, float], rounds: int
) -> None:
    print(f"\n{length:,} tokens, {rounds} rounds: best seconds, ratio, peak GPU memory")
    base = min(seconds["bare forward"])
    for name, taken in seconds.items():
        best = min(taken)
        print(f"  {name:22s} {best:8.3f}  {best / base:7.4f}  {peaks.get(name, 0) / 1e9:6.2f} GB")
