"""The capture of `attention-plasticity demo --capture`: from a package and a book to a dump."""

from __future__ import annotations

import os
import sys
from contextlib import chdir
from pathlib import Path

from qk_sniffer.extras import capture_extra
from qk_toolkit.files import user_path

BUCKETS = 16
KEPT_PER_BUCKET = 32.0  # twelve texts give each bucket six queries per dimension


def capture_demo(
    folder: Path,
    book: str = "moby-dick",
    context: int = 8192,
    pieces: int = 12,
    wheel: str | None = None,
) -> Path:
    """Make or complete the dump `FOLDER/dumps/BOOK-CONTEXT` and return its path.

    All paths are relative to one folder, so that the dump holds no path of this machine.
    """
    from qk_sniffer.demo.books import write_pieces

    package = user_path(wheel).resolve() if wheel is not None else None
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    dump, texts = Path("dumps") / f"{book}-{context}", Path("texts") / f"{book}-{context}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder), capture_extra():
        write_pieces(texts, book, pieces, context)
        from qk_sniffer.demo.weights import demo_model

        model = demo_model(Path("model"), package, lambda line: print(line, file=sys.stderr))
        _capture(model, texts, dump, context)
    return folder / dump


def _capture(model: Path, pieces: Path, dump: Path, context: int) -> None:
    from qk_sniffer.capture.run import run_capture
    from qk_sniffer.config import make_config
    from qk_toolkit.terminal import TerminalWatcher

    config = make_config(
        dataset={"path": str(pieces), "id_column": "id"},
        model={"name": str(model), "dtype": "float32"},
        tokenizer={"max_length": context},
        capture={
            "sampler": {"type": "uniform", "base_rate": KEPT_PER_BUCKET},
            "min_bucket_size": context // BUCKETS,
        },
        output={"data_root": str(dump)},
    )
    with TerminalWatcher() as watcher:
        run_capture(config, watcher)
