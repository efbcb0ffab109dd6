"""Entry point of `sniff-qk`. Signals are quiet before anything else is imported."""

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
    """`sniff-qk`."""
    from qk_sniffer.cli import main

    return main()
