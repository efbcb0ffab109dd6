"""Entry points of the commands. Ctrl-C is quiet while modules are imported, too."""

import sys
from collections.abc import Callable


def run(command: Callable[[], int]) -> int:
    """The exit code of a command that imports its modules itself."""
    try:
        from qk_toolkit.debugging import print_without_secrets

        sys.excepthook = print_without_secrets
        return command()
    except KeyboardInterrupt:
        return 130


def main() -> int:
    """`attention-plasticity`."""

    def command() -> int:
        from attention_plasticity.cli import main

        return main()

    return run(command)


def analyze() -> int:
    """`python analyze.py`."""

    def command() -> int:
        from attention_plasticity.cli import analyze

        return analyze()

    return run(command)


def plot(kind: str, file: str) -> int:
    """`python scripts/plot_*.py`."""

    def command() -> int:
        from attention_plasticity.figures.command import script

        return script(kind, file)

    return run(command)
