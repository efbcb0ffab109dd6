"""Makes docs/gallery.md and its images: every figure with its command and its caption.

The runs are results/smollm2-135m, the sample of the package, and a small model with random weights
and sliding windows. A further figure is one more `Entry` in `entries`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import attention_plasticity as ap
from attention_plasticity.plots import caption_of
from attention_plasticity.plots.style import figure_style

DOCUMENT, IMAGES = Path("docs/gallery.md"), Path("docs/images/gallery")
RESULTS = "results/smollm2-135m"
OWN = "results/mine"  # stands for a run of the reader
SAMPLE = "results/sample"  # stands for a run of the embedded sample
STEPS = ("step-1000", "step-2000", "step-3000", "step-4000")  # stand for checkpoints
DPI = 100
LENGTHS = (4096, 4000, 3800, 3600, 3300, 2900, 2400, 2000, 1600, 1200, 900, 700)  # of the texts
SLIDING, FULL = "sliding_attention", "full_attention"
BEGINNING = """\
<!-- Made by `make gallery` (scripts/make_gallery.py). -->
# Gallery

Every figure with the command that draws it and the caption that is written beside it. The options
are in [figures.md](figures.md). Most figures show [SmolLM2-135M](findings-smollm2.md) on twelve
pieces of Moby-Dick. Figures of `random-weights` show a small model with sliding windows, random
weights and random tokens; the scores of the last figure are random numbers. They are examples of
the layout, not results. After `attention-plasticity baseline`, the figures `plasticity` and
`profile` also have lines for random weights and shuffled tokens; the runs shown here have no
baselines.
"""


@dataclass(frozen=True)
class Entry:
    """A figure of the gallery."""

    name: str  # of the image
    heading: str
    command: str
    draw: Callable[[], Figure]


class Runs:
    """The runs that the gallery shows, made when they are first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def smollm2(self) -> ap.Run:
        """All heads of a real model."""
        return ap.open_run(RESULTS)

    @cached_property
    def sample(self) -> ap.Run:
        """Some heads of the same model, with the default settings, and the fidelity of scores."""
        folder = str(self._folder / "sample" / "SmolLM2-135M")
        return ap.analyze_dump(ap.open_sample(), output_dir=folder, fidelity=True)

    @cached_property
    def windows(self) -> ap.Run:
        """A random model with ten layers of sliding windows and two of full attention."""
        return self._random(0, LENGTHS)

    @cached_property
    def steps(self) -> ap.Comparison:
        """Four random models on texts of equal length, with random scores."""
        runs = [self._random(seed, (2048,) * 8) for seed in range(1, 5)]
        scores = self._folder / "scores.csv"
        numbers = np.random.default_rng(0).normal(50.0, 10.0, len(runs))
        rows = [f"{name},{number:.1f}" for name, number in zip(STEPS, numbers, strict=True)]
        scores.write_text("\n".join(["model,random score", *rows]))
        return ap.compare(runs, labels=STEPS, scores=scores)

    def _random(self, seed: int, lengths: Sequence[int]) -> ap.Run:
        dump = _random_windows(self._folder / f"dump-{seed}", seed, lengths)
        return ap.analyze_dump(dump, output_dir=str(self._folder / f"random weights {seed}"))


def entries(runs: Runs) -> Iterator[Entry]:
    """The figures of the gallery, in their order."""

    def smollm2(name: str, heading: str, kind: str, **options: Any) -> Entry:
        return _entry(name, heading, RESULTS, lambda: runs.smollm2, kind, **options)

    def windows(name: str, heading: str, kind: str, **options: Any) -> Entry:
        return _entry(name, heading, OWN, lambda: runs.windows, kind, **options)

    def sample(name: str, heading: str, kind: str, **options: Any) -> Entry:
        return _entry(name, heading, SAMPLE, lambda: runs.sample, kind, **options)

    context = "Plasticity over the context"
    yield smollm2("plasticity", context, "plasticity", color_by_layer=True)
    yield smollm2("plasticity-trend", f"{context}, by trend", "plasticity", color_trend=True)
    yield windows("plasticity-texts", f"{context}, texts of unequal length", "plasticity")
    yield smollm2("profile", "Profile", "profile")
    yield windows("profile-layers", "Profile of one type of layers", "profile", layer_type="full")
    yield smollm2("heatmap", "Heatmap", "heatmap")
    yield windows("heatmap-types", "Heatmap of two types of layers", "heatmap")
    yield smollm2("map", "Map of heads", "map")
    yield smollm2("map-drop", "Map of the drop", "map", metric="drop")
    yield windows("map-types", "Map of two types of layers", "map", metric="drop")
    yield sample("phase", "Rotary phase", "phase")
    yield smollm2("predictability", "Predictability", "predictability")
    yield smollm2("components", "Components", "components")
    yield smollm2("attention", "Attention by distance", "attention")
    yield smollm2("attention-head", "Attention of one head", "attention", layer=12, head=3)
    yield smollm2("attention-position", "Attention by position", "attention", by_position=True)
    yield smollm2("attended", "Attended plasticity", "attended")
    yield smollm2("roles", "Roles of heads", "roles")
    yield sample("key-heads", "Static error by key head", "key_heads")
    yield sample("fidelity", "Scores without a query", "fidelity")
    yield smollm2("by-role", "Plasticity by role", "by_role")
    yield sample("bands", "Rotary bands", "bands")
    yield sample("bands-head", "Rotary bands of one head", "bands", layer=0, head=1)
    yield sample("kernel", "Rotary kernel", "kernel")
    yield sample("frequencies", "Rotary phase and fast bands", "frequencies")
    yield sample("drift", "Drift with position", "drift")
    runs_given = "attention-plasticity compare " + " ".join(f"results/{name}" for name in STEPS)
    labels = f" --labels {','.join(STEPS)}"
    for kind, heading, flags in (
        ("profiles", "Several runs", ""),
        ("trajectory", "Checkpoints", " --trajectory"),
        ("scores", "Drop against scores", " --scores scores.csv"),
    ):
        command = f"{runs_given}{labels}{flags} --output_dir results/comparison"
        yield Entry(kind, heading, command, partial(_compared, runs, kind))


def _compared(runs: Runs, kind: str) -> Figure:
    return runs.steps.plot(kind)


def _entry(
    name: str, heading: str, folder: str, run: Callable[[], ap.Run], kind: str, **options: Any
) -> Entry:
    flags = "".join(f" --{key} {str(value).lower()}" for key, value in options.items())
    command = f"attention-plasticity plot {kind} {folder}{flags} --output {name}.png"
    return Entry(name, heading, command, lambda: run().plot(kind, **options))


def main() -> None:
    """Draw every figure and write the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    parts = [BEGINNING]
    with TemporaryDirectory() as folder:
        for entry in entries(Runs(Path(folder))):
            figure = entry.draw()
            path = IMAGES / f"{entry.name}.png"
            _save(figure, path)
            parts.append(_section(entry, path, caption_of(figure) or ""))
            print(path, file=sys.stderr)
    DOCUMENT.write_text("\n".join(parts), encoding="utf-8")


def _section(entry: Entry, path: Path, caption: str) -> str:
    image = path.relative_to(DOCUMENT.parent)
    return (
        f"## {entry.heading}\n\n```bash\n{entry.command}\n```\n\n"
        f"![{entry.heading}]({image})\n\n{caption}\n"
    )


def _save(figure: Figure, path: Path) -> None:
    """Write a small PNG file."""
    drawn = BytesIO()
    with figure_style():
        figure.savefig(drawn, format="png", dpi=DPI)
    Image.open(drawn).convert("RGB").save(path, optimize=True)


def _random_windows(folder: Path, seed: int, lengths: Sequence[int]) -> Path:
    """A dump of a small Gemma 3 with random weights, on random tokens."""
    import torch
    from transformers import Gemma3TextConfig, Gemma3TextModel

    from qk_sniffer import tap

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "name_or_path": "random-weights",
        "vocab_size": 512,
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 512,
        "layer_types": [FULL if layer in (5, 11) else SLIDING for layer in range(12)],
        "initializer_range": 0.3,
    }
    model: Any = Gemma3TextModel(Gemma3TextConfig(**settings))
    model.eval()
    with (
        torch.no_grad(),
        tap(model, sampler="uniform", base_rate=16.0, min_bucket_size=256) as captured,
    ):
        for length in lengths:
            model(input_ids=torch.randint(0, 512, (1, length)))
    captured.save(folder)
    return folder


if __name__ == "__main__":
    main()
