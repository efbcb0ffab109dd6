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
    from qk_sniffer.engines.hf.engine import HfEngine
    from qk_sniffer.sampling.heads import WantedLayer

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
    from qk_sniffer.engines.hf.engine import HfEngine
    from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
    from qk_sniffer.engines.hf.probing import probe
    from qk_sniffer.sampling.heads import choose_heads

    decoder, layout = decoder_of(model), probe(model)
    wanted = choose_heads(layout)
    engine = HfEngine(decoder, layout, [layer.facts.layer for layer in wanted], rules=True)
    tokens = torch.randint(0, 1000, (1, length), generator=torch.Generator().manual_seed(0))
    ids = tokens[0].tolist()
    cases = {f"1/{rate:,}": (rate, 0) for rate in rates}
    cases |= {f"1/{rate:,} and keys": (rate, _ATTENDED_KEYS) for rate in rates}
    seconds: dict[str, list[float]] = {name: [] for name in ("bare forward", *cases)}
    peaks: dict[str, float] = {}
    for number in range(rounds):
        seconds["bare forward"].append(
            timed(partial(run_backbone, decoder, tokens), peaks, "bare forward")
        )
        for name, case in cases.items():
            if number == 0:  # compiles the kernels
                _taken(engine, wanted, ids[:4096], case)
            seconds[name].append(timed(partial(_taken, engine, wanted, ids, case), peaks, name))
        _print(length, seconds, peaks, number + 1)


def _taken(
    engine: HfEngine, wanted: tuple[WantedLayer, ...], ids: list[int], case: tuple[int, int]
) -> None:
    """Run a text and wait for its rows."""
    from qk_sniffer.rows.plan import RowPlan, texts_of_forward
    from qk_sniffer.rows.taker import RowTaker
    from qk_sniffer.sampling.attended_keys import AttendedSampler
    from qk_sniffer.sampling.positions import PositionSampler

    rate, keys = case
    plan = RowPlan(
        wanted,
        PositionSampler("uniform", rate),
        attention=True,
        tokens=True,
        attended=AttendedSampler(keys) if keys else None,
        attended_layers=frozenset(layer.facts.layer for layer in wanted),
    )
    taker = RowTaker(plan)
    taker.expect(texts_of_forward(plan, [0], [ids]))
    engine.run([ids], taker)
    taker.take().wait()


def _print(
    length: int, seconds: dict[str, list[float]], peaks: dict[str, float], rounds: int
) -> None:
    print(f"\n{length:,} tokens, {rounds} rounds: best seconds, ratio, peak GPU memory")
    base = min(seconds["bare forward"])
    for name, taken in seconds.items():
        best = min(taken)
        print(f"  {name:22s} {best:8.3f}  {best / base:7.4f}  {peaks.get(name, 0) / 1e9:6.2f} GB")
