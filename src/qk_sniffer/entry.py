"""Entry point of `sniff-qk`. Signals are quiet before anything else is imported."""

import os

try:
    from qk_toolkit.early_signals import exit_on_signals

    exit_on_signals()
except KeyboardInterrupt:
    os._exit(130)


def main() -> int:
    """`sniff-qk`."""
    from qk_sniffer.cli import main

    return main()
