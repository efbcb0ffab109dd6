"""Whether a model can be fetched, asked once: the client repeats refused requests for a minute."""

from __future__ import annotations

from typing import Any

from qk_toolkit.errors import SettingError

_SECONDS = 10.0  # to wait for an answer


def require_reachable(setting: str, name: str, revision: str | None) -> None:
    """Refuse a name that is in no cache while the Hub does not answer.

    What the Hub answers, such as that there is no such model, is left to transformers.
    """
    import huggingface_hub
    from huggingface_hub import errors

    client: Any = errors
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return
    try:
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(cached, str):
            huggingface_hub.HfApi().model_info(name, timeout=_SECONDS)
    except client.HFValidationError:
        return
    except (client.HTTPError, OSError) as error:
        if getattr(error, "response", None) is None:
            raise SettingError(
                setting,
                f"{name}: is no local folder, and the Hub cannot be reached "
                f"({type(error).__name__}); check the name and the connection",
            ) from error
