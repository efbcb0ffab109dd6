"""Entry point of `sniff-qk`. Signals are quiet before anything else is imported."""

import os

try:
    from qk_toolkit.quiet_start import quiet_signals

    quiet_signals()
except KeyboardInterrupt:
    os._exit(130)


def main() -> int:
    """`sniff-qk`."""
    from qk_sniffer.cli import main

    return main()
