"""Ranks of a capture for processes of a Ray cluster.

To import this is cheap, so that a process that dies at once does not import torch first.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.result import CaptureResult
from qk_sniffer.config import CaptureConfig
from qk_toolkit.errors import ConfigError
from qk_toolkit.watcher import Watcher


def first_dies(
    begun: Path, always: bool, config: CaptureConfig, watcher: Watcher, ranks: Ranks
) -> CaptureResult:
    """A rank; the first one dies before it opens the folder, once or `always`."""
    if ranks.rank == 0 and (always or not begun.exists()):
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    from qk_sniffer.capture.run import run_rank

    return run_rank(config, watcher, ranks)


def fails(config: CaptureConfig, watcher: Watcher, ranks: Ranks) -> CaptureResult:
    """A rank whose model is missing."""
    raise ConfigError(f"model.name: {config.model.name}: does not exist")
