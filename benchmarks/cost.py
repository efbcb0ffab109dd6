"""Cost of a study: operations, rows, bytes, hours and dollars, from formulas and measured speeds.

The arithmetic is explained in docs/scale.md. With `--measure`, forwards of random models with
the shapes of the table are timed on a GPU and compared with the formula.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_OTHER_BYTES = 16  # bucket, example, position and window of a row
_ATTENTION_BYTES = 112  # attention columns of a query row
_HOUR = 3600


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that determine its cost."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    q_heads: int
    k_heads: int
    width: int  # dimensions of a head
    gpus: int  # that hold the weights; they work in turn (device_map: auto)

    @property
    def weights(self) -> int:
        """Weights of all layers, without embeddings."""
        attention = self.hidden * self.width * (2 * self.q_heads + 2 * self.k_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def operations(self, tokens: int) -> float:
        """Floating-point operations of one forward of a text with causal attention."""
        products = 2 * self.weights * tokens
        # QKᵀ and the weighted sum of values, each 2 · width per pair of tokens, half of the pairs
        attention = 2 * self.layers * self.q_heads * self.width * tokens**2
        return float(products + attention)

    @property
    def heads(self) -> int:
        """Query heads of all layers."""
        return self.layers * self.q_heads


MODELS = (
    ModelShape("8B", 36, 4096, 12_288, 32, 8, 128, 1),
    ModelShape("70B", 80, 8192, 28_672, 64, 8, 128, 2),
)


@dataclass(frozen=True)
class Study:
    """The texts, what is kept of them, and the speeds and prices of the machines."""

    texts: int
    tokens: int
    rows_per_text: float  # of one head
    tflops: float  # of a GPU in forwards
    start_seconds: float  # to load a model
    core_seconds: float  # of the analysis of one query head
    compressed: float  # size of a dump over the size of its values
    gpu_dollars: float  # per GPU and hour
    core_dollars: float  # per CPU core and hour
    storage_dollars: float  # per GB and month

    def seconds_per_text(self, model: ModelShape) -> float:
        """Seconds of one forward."""
        return model.operations(self.tokens) / (self.tflops * 1e12)

    def hours(self, model: ModelShape, gpus: int) -> float:
        """Hours of a capture; every process has the GPUs that its model needs."""
        processes = gpus // model.gpus
        texts = math.ceil(self.texts / processes)  # of the process with the most texts
        return (self.start_seconds + texts * self.seconds_per_text(model)) / _HOUR

    def rows(self, model: ModelShape) -> float:
        """Rows of all heads."""
        heads = model.layers * (model.q_heads + model.k_heads)
        return heads * self.texts * self.rows_per_text

    def gigabytes(self, model: ModelShape) -> float:
        """Size of the dump."""
        vector = 4 * model.width + _OTHER_BYTES
        rows = self.texts * self.rows_per_text * model.layers
        values = rows * (model.q_heads * (vector + _ATTENTION_BYTES) + model.k_heads * vector)
        return self.compressed * values / 1e9

    def core_hours(self, model: ModelShape) -> float:
        """Hours of one CPU core for the analysis."""
        return model.heads * self.core_seconds / _HOUR


def main() -> None:
    """Print the tables of a study, or measured forwards against the formula."""
    options = _options()
    if options.measure:
        measure(options.tokens)
        return
    study = Study(
        options.texts,
        options.tokens,
        options.rows_per_text,
        options.tflops,
        options.start_seconds,
        options.core_seconds,
        options.compressed,
        options.gpu_dollars,
        options.core_dollars,
        options.storage_dollars,
    )
    for model in MODELS:
        _print_model(study, model)
    for model in MODELS:
        _print_many(study, model, 100)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", action="store_true", help="time forwards on this GPU")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=131_072, help="per text")
    parser.add_argument("--rows_per_text", type=float, default=16.0, help="of one head")
    parser.add_argument("--tflops", type=float, default=530.0, help="of a GPU, 10^12 operations/s")
    parser.add_argument("--start_seconds", type=float, default=60.0, help="to load a model")
    parser.add_argument("--core_seconds", type=float, default=0.9, help="analysis of a query head")
    parser.add_argument("--compressed", type=float, default=0.8, help="file size over value size")
    parser.add_argument("--gpu_dollars", type=float, default=3.5, help="per GPU and hour")
    parser.add_argument("--core_dollars", type=float, default=0.05, help="per CPU core and hour")
    parser.add_argument("--storage_dollars", type=float, default=0.023, help="per GB and month")
    return parser.parse_args()


def _print_model(study: Study, model: ModelShape) -> None:
    operations = model.operations(study.tokens)
    attention = 1 - 2 * model.weights * study.tokens / operations
    cores, size = study.core_hours(model), study.gigabytes(model)
    print(
        f"\n{model.name}: {model.weights / 1e9:.2f}·10⁹ weights in {model.layers} layers, "
        f"{model.heads:,} query heads"
    )
    print(f"  operations per text   {operations / 1e15:8.2f}·10¹⁵, {attention:.0%} in attention")
    print(f"  seconds per text      {study.seconds_per_text(model):8.1f}")
    for gpus in (model.gpus, 64):
        hours = study.hours(model, gpus)
        dollars = hours * gpus * study.gpu_dollars
        name = f"capture, {gpus} GPU" + "s" * (gpus > 1)
        print(f"  {name:22}{hours:8.2f} h   {dollars:8.2f} $")
    print(f"  rows                  {study.rows(model) / 1e6:8.1f}·10⁶")
    print(f"  dump                  {size:8.1f} GB  {size * study.storage_dollars:8.2f} $/month")
    print(f"  analysis, 1 core      {cores:8.2f} h   {cores * study.core_dollars:8.2f} $")
    print(f"  analysis, 64 cores    {cores / 64 * 60:8.2f} min")


def _print_many(study: Study, model: ModelShape, number: int) -> None:
    cores = number * study.core_hours(model)
    size = number * study.gigabytes(model)
    print(f"\n{number} models of {model.name}")
    alone, shared = study.hours(model, model.gpus), study.hours(model, 64)
    rounds = math.ceil(number / (64 // model.gpus))
    for what, hours, gpus in (
        (f"{model.gpus} GPU{'s' * (model.gpus > 1)}", number * alone, model.gpus),
        ("64 GPUs, each model on 64", number * shared, 64),
        (f"64 GPUs, each model on {model.gpus}", rounds * alone, 64),
    ):
        dollars = hours * gpus * study.gpu_dollars
        print(f"  capture, {what:26}{hours:7.1f} h   {dollars:7,.0f} $")
    print(f"  dumps                 {size:8,.0f} GB  {size * study.storage_dollars:.0f} $/month")
    print(f"  analysis              {cores:8.1f} core hours   {cores * study.core_dollars:.0f} $")


def measure(tokens: int) -> None:
    """Time forwards of random models and compare them with the formula.

    The larger model does not fit on one GPU, so some of its layers are timed.
    """
    import torch

    print(f"{torch.cuda.get_device_name()}, bfloat16, sdpa, {tokens:,} tokens")
    print("model   layers  seconds   10¹⁵ operations   10¹² operations/s   peak memory")
    for shape, layers in ((MODELS[0], (12, 36)), (MODELS[1], (8, 24))):
        for number in layers:
            seconds, peak = _forward_seconds(shape, number, tokens)
            part = ModelShape(**{**vars(shape), "layers": number})
            operations = part.operations(tokens)
            print(
                f"{shape.name:8}{number:6}{seconds:9.2f}{operations / 1e15:16.2f}"
                f"{operations / seconds / 1e12:18.0f}{peak / 1e9:15.1f} GB"
            )


def _forward_seconds(shape: ModelShape, layers: int, tokens: int) -> tuple[float, float]:
    """Best of two forwards after a first one, and the peak of the GPU memory."""
    import torch
    from transformers import AutoModel, Qwen3Config

    from qk_sniffer.engines.hf.layout import decoder_of, run_backbone

    config = Qwen3Config(
        num_hidden_layers=layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.q_heads,
        num_key_value_heads=shape.k_heads,
        head_dim=shape.width,
        vocab_size=32_000,
        max_position_embeddings=tokens,
    )
    auto: Any = AutoModel
    with torch.device("cuda"):
        model = auto.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    ids = torch.randint(0, 1000, (1, tokens))
    torch.cuda.reset_peak_memory_stats()
    seconds = _timed_forwards(decoder_of(model), ids, run_backbone)
    peak = float(torch.cuda.max_memory_allocated())
    del model
    torch.cuda.empty_cache()
    return min(seconds[1:]), peak


def _timed_forwards(decoder: Any, ids: Any, run_backbone: Any) -> Sequence[float]:
    import torch

    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run_backbone(decoder, ids)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
