"""Entry point of `sniff-qk`. Ctrl-C is quiet while modules are imported, too."""

import sys


def main() -> int:
    """`sniff-qk`."""
    try:
        from qk_toolkit.debugging import print_without_secrets

        sys.excepthook = print_without_secrets
        from qk_sniffer.cli import main

        return main()
    except KeyboardInterrupt:
        return 130
