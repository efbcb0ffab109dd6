"""Write the tables of figures in docs/figures.md: the entries of the registry.

The part of the page between `<!-- figures: begin -->` and `<!-- figures: end -->` is replaced.
"""

from __future__ import annotations

from pathlib import Path

from attention_plasticity.figures.registry import Spec, figures_of

PAGE = Path(__file__).parents[1] / "docs" / "figures.md"
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"


def with_figures(page: str) -> str:
    """The page with the figures as they are now."""
    before, found, rest = page.partition(_BEGIN)
    _, closed, after = rest.partition(_END)
    if not (found and closed):
        raise ValueError(f"{PAGE}: has no part {_BEGIN} … {_END}")
    lines = [
        *("| figure of a run | content | needs |", "|---|---|---|"),
        *map(_row, figures_of("run")),
        *("", "| figure of a study | content | needs |", "|---|---|---|"),
        *map(_row, figures_of("runs")),
    ]
    return "\n".join([f"{before}{_BEGIN}", *lines, f"{_END}{after}"])


def _row(spec: Spec) -> str:
    needs = ", ".join(dict.fromkeys(need.words for need in spec.needs))
    return f"| `{spec.name}` | {spec.shows} | {needs} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
