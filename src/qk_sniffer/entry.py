"""Entry point of `sniff-qk`."""

from qk_toolkit.entry import run


def main() -> int:
    """`sniff-qk`."""

    def command() -> int:
        from qk_sniffer.cli import main

        return main()

    return run(command)
