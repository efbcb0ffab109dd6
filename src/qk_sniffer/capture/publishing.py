"""Publication of a complete dump on the Hub, if `output.hf_repo_id` asks for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from qk_dump.hub.publish import Pushed, push_dump, require_target
from qk_sniffer.config import CaptureConfig
from qk_toolkit.watcher import Watcher


def require_publishable(config: CaptureConfig) -> None:
    """Refuse wrong names of the dataset and the branch before the capture begins."""
    if config.output.hf_repo_id is not None:
        require_target(config.output.hf_repo_id, config.hf_branch)


def publish(config: CaptureConfig, folder: Path, watcher: Watcher) -> Pushed | None:
    """Send the dump in `folder` to the Hub; None if this is not wanted."""
    output = config.output
    if output.hf_repo_id is None:
        return None
    watcher.note(f"{folder}: is complete; sending it to {output.hf_repo_id}")
    on_bytes = partial(watcher.show, "sending", in_bytes=True)
    pushed = push_dump(
        folder, output.hf_repo_id, config.hf_branch, private=output.private, on_bytes=on_bytes
    )
    for note in pushed.notes:
        watcher.note(note)
    return pushed
