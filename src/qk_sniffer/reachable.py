"""Whether a name on the Hub can be fetched, asked once: the client repeats refused requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from qk_toolkit.errors import SettingError

_SECONDS = 10.0  # to wait for an answer


def require_reachable(setting: str, name: str, kind: Literal["model", "dataset"] = "model") -> None:
    """Refuse a name that is in no cache while the Hub does not answer.

    What the Hub answers, such as that there is no such model, is left to the libraries.
    """
    import huggingface_hub
    from huggingface_hub import errors

    client: Any = errors
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return
    try:
        folder = huggingface_hub.file_download.repo_folder_name(repo_id=name, repo_type=kind)
        cached = Path(huggingface_hub.constants.HF_HUB_CACHE, folder, "snapshots")
        if not cached.is_dir():
            huggingface_hub.HfApi().repo_info(name, repo_type=kind, timeout=_SECONDS)
    except client.HFValidationError:
        return
    except (client.HTTPError, OSError) as error:
        if getattr(error, "response", None) is None:
            raise SettingError(
                setting,
                f"{name}: is no local path, and the Hub cannot be reached "
                f"({type(error).__name__}); check the name and the connection",
            ) from error
