"""Entry points of the commands."""

from qk_toolkit.entry import run


def main() -> int:
    """`attention-plasticity`."""
    return run("attention_plasticity.cli", "main")


def analyze() -> int:
    """`python analyze.py`."""
    return run("attention_plasticity.cli", "analyze")


def plot(kind: str, file: str) -> int:
    """`python scripts/plot_*.py`."""
    return run("attention_plasticity.figures.command", "script", kind, file)
