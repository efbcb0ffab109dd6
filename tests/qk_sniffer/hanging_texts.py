"""`sniff-qk` with a dataset that stops answering. Started as a process, or forked from one."""

import os
import sys
import threading

TEXTS_BEFORE = "TEXTS_BEFORE_IT_HANGS"


def sniff_qk(flags):
    """The command; its dataset hangs after as many texts of chunks as the variable says."""
    from qk_sniffer.cli import main
    from qk_sniffer.texts.sources import Texts

    read = Texts.between
    left = int(os.environ[TEXTS_BEFORE])

    def hanging(texts, start, end):
        nonlocal left
        if threading.current_thread().name == "prepare":  # texts are looked at before, too
            left -= end - start
        if left < 0:
            print("hangs", flush=True)
            threading.Event().wait()
        return read(texts, start, end)

    Texts.between = hanging
    return main(flags)


if __name__ == "__main__":
    import qk_sniffer.entry  # noqa: F401  # quiet signals

    sys.exit(sniff_qk(sys.argv[1:]))
