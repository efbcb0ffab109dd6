"""The folder for files that can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path

from qk_toolkit.files import user_path


def cache_folder() -> Path:
    """`$ATTENTION_PLASTICITY_CACHE`, else `attention-plasticity` in the user's cache folder."""
    folder = os.environ.get("ATTENTION_PLASTICITY_CACHE")
    if folder:
        return user_path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(base) / "attention-plasticity"
