"""The real command in a process of its own, as a user runs it."""

import os
import subprocess
import sys

from waiting import PATIENCE


def command(*words):
    """The command line that `analyze` and `start` run."""
    return [sys.executable, "-m", "attention_plasticity", *(str(word) for word in words)]


def analyze(*words, **options):
    """Run `attention-plasticity analyze` to its end."""
    return run("analyze", *words, **options)


def run(*words, **options):
    """Run `attention-plasticity` to its end."""
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=PATIENCE, check=False, **options
    )


def start(*words, **options):
    """Start `attention-plasticity` and leave it running."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command(*words), env=environment, **options)
