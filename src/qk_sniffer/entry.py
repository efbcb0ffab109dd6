"""Entry point of `sniff-qk`."""

from qk_toolkit.entry import run


def main() -> int:
    """`sniff-qk`."""
    return run("qk_sniffer.cli", "main")
