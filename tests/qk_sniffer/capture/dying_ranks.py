"""Ranks of a capture for processes of a Ray cluster.

To import this is cheap, so that a process that dies at once does not import torch first.
"""

import os
import signal

from qk_toolkit.errors import ConfigError


def first_dies(begun, always, config, watcher, ranks):
    """A rank; the first one dies before it opens the folder, once or `always`."""
    if ranks.rank == 0 and (always or not begun.exists()):
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    from qk_sniffer.capture.run import run_rank

    return run_rank(config, watcher, ranks)


def fails(config, watcher, ranks):
    """A rank whose model is missing."""
    raise ConfigError(f"model.name: {config.model.name}: does not exist")
