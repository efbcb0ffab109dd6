"""Cost of a large study: hours, dollars and bytes, from formulas and measured speeds (`make cost`).

docs/scale.md explains the arithmetic.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

_OTHER_BYTES = 16  # bucket, text, position and window of a row
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
        """Floating-point operations of a forward with causal attention.

        QKᵀ and the weighted sum of values: 2 · width each per pair of tokens, half of the pairs.
        """
        attention = 2 * self.layers * self.q_heads * self.width * tokens**2
        return float(2 * self.weights * tokens + attention)


MODELS = (
    ModelShape("8B", 36, 4096, 12_288, 32, 8, 128, 1),
    ModelShape("70B", 80, 8192, 28_672, 64, 8, 128, 2),
)


@dataclass(frozen=True)
class Study:
    """The texts, what is kept of them, and the speeds and prices of the machines."""

    texts: int = 500
    tokens: int = 131_072  # of a text
    rows_per_text: float = 16.0  # of a head
    tflops: float = 530.0  # 10¹² operations per second of a GPU
    start_seconds: float = 60.0  # to load a model
    core_seconds: float = 0.9  # analysis of a query head
    compressed: float = 0.8  # size of the files over the size of the values
    gpu_dollars: float = 3.5  # per GPU and hour
    core_dollars: float = 0.05  # per core and hour
    storage_dollars: float = 0.023  # per GB and month

    def hours(self, model: ModelShape, gpus: int) -> float:
        """Hours of a capture; every process has the GPUs that its model needs."""
        texts = math.ceil(self.texts / (gpus // model.gpus))  # of the process with the most
        seconds = model.operations(self.tokens) / (self.tflops * 1e12)
        return (self.start_seconds + texts * seconds) / _HOUR

    def gigabytes(self, model: ModelShape) -> float:
        """Size of the dump."""
        vector = 4 * model.width + _OTHER_BYTES
        of_layer = model.q_heads * (vector + _ATTENTION_BYTES) + model.k_heads * vector
        values = self.texts * self.rows_per_text * model.layers * of_layer
        return self.compressed * values / 1e9

    def core_hours(self, model: ModelShape) -> float:
        """Hours of one CPU core for the analysis."""
        return model.layers * model.q_heads * self.core_seconds / _HOUR

    def lines(self, model: ModelShape) -> Iterator[str]:
        """What one model costs."""
        operations = model.operations(self.tokens)
        share = 1 - 2 * model.weights * self.tokens / operations
        heads = model.layers * (model.q_heads + model.k_heads)
        yield f"\n{model.name}: {model.weights / 1e9:.2f}·10⁹ weights in {model.layers} layers"
        yield f"  operations per text   {operations / 1e15:.2f}·10¹⁵, {share:.0%} in attention"
        yield f"  seconds per text      {operations / (self.tflops * 1e12):.1f}"
        for gpus in (model.gpus, 64):
            yield self._capture(f"{gpus} GPU{'s' * (gpus > 1)}", self.hours(model, gpus), gpus)
        yield f"  rows                  {heads * self.texts * self.rows_per_text / 1e6:.1f}·10⁶"
        yield from self._rest(model, 1)

    def lines_of_many(self, model: ModelShape, number: int) -> Iterator[str]:
        """What so many models of a size cost."""
        alone, shared = self.hours(model, model.gpus), self.hours(model, 64)
        rounds = math.ceil(number / (64 // model.gpus))
        yield f"\n{number} models of {model.name}"
        yield self._capture(f"{model.gpus} GPU{'s' * (model.gpus > 1)}", number * alone, model.gpus)
        yield self._capture("64 GPUs, each model on 64", number * shared, 64)
        yield self._capture(f"64 GPUs, each model on {model.gpus}", rounds * alone, 64)
        yield from self._rest(model, number)

    def _capture(self, how: str, hours: float, gpus: int) -> str:
        return f"  capture, {how:28}{hours:8.3f} h   {hours * gpus * self.gpu_dollars:.2f} $"

    def _rest(self, model: ModelShape, number: int) -> Iterator[str]:
        size, cores = number * self.gigabytes(model), number * self.core_hours(model)
        yield f"  dump                  {size:.1f} GB   {size * self.storage_dollars:.2f} $/month"
        yield f"  analysis              {cores:.2f} core hours   {cores * self.core_dollars:.2f} $"


def main() -> None:
    """Print what the models cost, alone and by the hundred."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in asdict(Study()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    study = Study(**vars(parser.parse_args()))
    for lines in (study.lines(model) for model in MODELS):
        print("\n".join(lines))
    for model in MODELS:
        print("\n".join(study.lines_of_many(model, 100)))


if __name__ == "__main__":
    main()
