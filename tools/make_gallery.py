"""Makes docs/gallery.md and its images: every figure of one run with its command.

The runs are results/smollm2-135m, the sample of the package, and a small model with random weights
and sliding windows. The figures are those of the registry; `MORE` has further options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

import attention_plasticity as ap
from attention_plasticity.figures import FIGURES
from attention_plasticity.figures.spec import Spec
from attention_plasticity.figures.style import figure_style

DOCUMENT, IMAGES = Path("docs/gallery.md"), Path("docs/images/gallery")
RESULTS = "results/smollm2-135m"
OWN = "results/mine"  # stands for a run of the reader
SAMPLE = "results/sample"  # stands for a run of the embedded sample
DPI = 200
LENGTHS = (4096, 4000, 3800, 3600, 3300, 2900, 2400, 2000, 1600, 1200, 900, 700)  # of the texts
SLIDING, FULL = "sliding_attention", "full_attention"
MORE: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("plasticity-trend", RESULTS, "plasticity", {"color": "trend"}),
    ("heatmap-types", OWN, "heatmap", {}),
    ("map-types", OWN, "map", {"metric": "drop"}),
)
"""Further pictures: name of the image, run, figure and options."""
ON_SAMPLE = ("phase", "ranks")  # its few heads are easy to see
BEGINNING = """\
<!-- Made by `make gallery` (tools/make_gallery.py). -->
# Gallery

Every figure of one run with the command that draws it. The command also writes a caption beside the
figure. Options and notes are in [figures.md](figures.md). Most figures show
[SmolLM2-135M](findings-smollm2.md) on twelve pieces of Moby-Dick, some only the heads of the
embedded sample. Figures of `results/mine` show a small model with sliding windows and random
weights: examples of the layout, not results.
"""


class Runs:
    """The runs that the gallery shows, made when they are first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, place: str) -> ap.Run:
        """The run that a command names."""
        runs = {RESULTS: "smollm2", SAMPLE: "sample", OWN: "windows"}
        found: ap.Run = getattr(self, runs[place])
        return found

    @cached_property
    def smollm2(self) -> ap.Run:
        """All heads of a real model."""
        return ap.open_run(RESULTS)

    @cached_property
    def sample(self) -> ap.Run:
        """Some heads of the same model, with the default settings."""
        folder = str(self._folder / "sample" / "SmolLM2-135M")
        return ap.analyze_dump(ap.open_sample(), output_dir=folder)

    @cached_property
    def windows(self) -> ap.Run:
        """A random model with ten layers of sliding windows and two of full attention."""
        dump = _random_windows(self._folder / "dump", 0, LENGTHS)
        return ap.analyze_dump(dump, output_dir=str(self._folder / "random weights"))


def pictures(runs: Runs) -> Iterator[tuple[str, str, Spec, dict[str, Any]]]:
    """Name of the image, run, figure and options of every picture."""
    for spec in FIGURES:
        fits = spec.obstacle(runs.smollm2) is None and spec.name not in ON_SAMPLE
        place = RESULTS if fits else SAMPLE
        for name, options in spec.files.items():
            yield name, place, spec, dict(options)
        for name, place, figure, options in MORE:
            if figure == spec.name:
                yield name, place, spec, options


def main() -> None:
    """Draw every figure and write the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for earlier in IMAGES.glob("*.png"):
        earlier.unlink()
    parts, heading = [BEGINNING], ""
    with TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        for name, place, spec, options in pictures(runs):
            figure = runs.at(place).plot(spec.name, **options)
            path = IMAGES / f"{name}.png"
            _save(figure, path)
            if spec.name != heading:
                heading = spec.name
                parts.append(f"## {heading}\n\n{spec.shows[:1].upper()}{spec.shows[1:]}.\n")
            parts.append(_section(name, place, spec, options))
            print(path, file=sys.stderr)
    DOCUMENT.write_text("\n".join(parts), encoding="utf-8")


def _section(name: str, place: str, spec: Spec, options: dict[str, Any]) -> str:
    flags = "".join(f" --{key} {str(value).lower()}" for key, value in options.items())
    command = f"attention-plasticity plot {spec.name} {place}{flags} --output {name}.png"
    image = (IMAGES / f"{name}.png").relative_to(DOCUMENT.parent)
    return f"```bash\n{command}\n```\n\n![{name}]({image})\n"


def _save(figure: Figure, path: Path) -> None:
    """Write a small PNG file."""
    drawn = BytesIO()
    with figure_style():
        figure.savefig(drawn, format="png", dpi=DPI)
    Image.open(drawn).convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE).save(
        path, optimize=True
    )


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
