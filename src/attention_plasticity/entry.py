"""Entry points of the commands. Signals are quiet before anything else is imported."""

import os
import sys

try:
    from qk_toolkit.early_signals import exit_on_signals

    exit_on_signals()
    from qk_toolkit.debugging import print_without_secrets

    sys.excepthook = print_without_secrets
except KeyboardInterrupt:
    os._exit(130)


def main() -> int:
    """`attention-plasticity`."""
    from attention_plasticity.cli import main

    return main()


def analyze() -> int:
    """`python analyze.py`."""
    from attention_plasticity.cli import analyze

    return analyze()


def plot(kind: str, file: str) -> int:
    """`python scripts/plot_*.py`."""
    from attention_plasticity.figures.command import script

    return script(kind, file)
