"""Entry points of the commands."""

from qk_toolkit.entry import run


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
