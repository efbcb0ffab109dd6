"""The folder for files that can be made or fetched again."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from qk_toolkit.files import user_path
from qk_toolkit.urls import url_name


def cache_folder() -> Path:
    """`$ATTENTION_PLASTICITY_CACHE`, else `attention-plasticity` in the user's cache folder."""
    folder = os.environ.get("ATTENTION_PLASTICITY_CACHE")
    if folder:
        return user_path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(base) / "attention-plasticity"


def folder_of_url(url: str, purpose: str, parent: Path | None = None) -> Path:
    """The local folder for the files of a URL, in the cache or in `parent`.

    Its name is the last part of the URL.
    """
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", url_name(url).rpartition("@")[2]).strip(".")
    return (parent or cache_folder() / purpose) / digest / (name or "root")
