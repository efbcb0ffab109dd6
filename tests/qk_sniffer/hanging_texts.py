"""`sniff-qk` with a dataset that stops answering. Started as a process, or forked from one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

TEXTS_BEFORE = "TEXTS_BEFORE_IT_HANGS"


def sniff_qk(flags: Sequence[str]) -> int:
    """The command; its dataset hangs after as many texts as the variable says."""
    from qk_sniffer.cli import main
    from qk_sniffer.pipeline.texts import Texts

    def hanging(texts: Any, complete: Any = Texts.__iter__) -> Iterator[Any]:
        yield from islice(complete(texts), int(os.environ[TEXTS_BEFORE]))
        print("hangs", flush=True)
        threading.Event().wait()

    Texts.__iter__ = hanging  # type: ignore[assignment]
    return main(flags)


if __name__ == "__main__":
    import qk_sniffer.entry  # noqa: F401  # quiet signals

    sys.exit(sniff_qk(sys.argv[1:]))
