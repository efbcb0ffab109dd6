"""What pushing and fetching share: names of dumps on the Hub, patience, and plain words for errors.

The Hub's client retries some requests by itself and others not at all; here every step is tried a
few times, and every failure becomes one line that says what to do. Tokens never enter a message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import ConfigError, HubError, ToolkitError
from qk_toolkit.files import UnusableFileError

_WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before each further try
_LONGEST_WAIT = 300.0  # however long a server asks for
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_CONFLICT = 412
_MISREAD = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the client raises on an answer that is no JSON, or has not the members it looks for."""
_LOGIN = "needs a token; set HF_TOKEN or run 'hf auth login'"

Result = TypeVar("Result")


class GarbledAnswerError(Exception):
    """An answer that is not the Hub's: the client could not make anything of it."""


def hub_api(token: str | None = None) -> Any:
    """The client, with the token given, or HF_TOKEN, or that of an earlier login."""
    from huggingface_hub import HfApi

    endpoint = os.environ.get("HF_ENDPOINT")  # the client itself looks only once, when imported
    return HfApi(endpoint=endpoint, token=token, library_name="attention-plasticity")


@contextmanager
def without_client_bars() -> Iterator[None]:
    """Hide the progress bars of the Hub's client, one per file."""
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils
    shown = not client.are_progress_bars_disabled()
    if shown:
        client.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            client.enable_progress_bars()


def hide_client_bars() -> None:
    """Hide the progress bars of the Hub's client, in this process from now on."""
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils
    if not client.are_progress_bars_disabled():
        client.disable_progress_bars()


def require_token(place: HubPlace, doing: str, token: str | None = None) -> None:
    """Refuse early where there is no token, or one that no request could carry."""
    from huggingface_hub import get_token

    known = token or get_token()
    if known is None:
        raise HubError(f"{place}: {doing} {_LOGIN}")
    if not (known.isascii() and known.isprintable() and " " not in known):
        raise ConfigError(
            "HF_TOKEN: the token holds characters that no token has; copy it anew from "
            "https://huggingface.co/settings/tokens"
        )


def with_retries(
    step: Callable[[], Result], *, settled: Callable[[], Result | None] | None = None
) -> Result:
    """Do a step, again after a pause when the network or the server failed in passing.

    `settled` tells, after a failure, whether the step took effect all the same: its reply may have
    been lost, or somebody else did the same. What it returns then is the step's result.
    """
    for wait in (*_WAITS, None):
        try:
            return _answered(step)
        except Exception as error:
            transient = is_transient(error)
            if settled is not None and (transient or is_conflict(error)):
                result = settled()
                if result is not None:
                    return result
            if wait is None or not transient:
                raise
            time.sleep(max(wait, _asked_to_wait(error)))
    raise AssertionError("unreachable")


def _answered(step: Callable[[], Result]) -> Result:
    from huggingface_hub.errors import HFValidationError

    try:
        return step()
    except (HFValidationError, OSError):  # our own names, our own files, or the network
        raise
    except Exception as error:
        misread = isinstance(error, _MISREAD) or type(error).__name__ == "InvalidURL"
        if not misread or isinstance(error, _transport_error()):
            raise
        raise GarbledAnswerError(type(error).__name__) from error


def is_transient(error: Exception) -> bool:
    """Whether another try may help: a broken connection, or a server that is busy or stumbled."""
    found = network_error(error)
    if found is None or _is_offline(found) or _is_circle(found):
        return False
    status = _status(found)
    return status is None or status in _TRANSIENT


def is_conflict(error: Exception) -> bool:
    """Whether a commit was refused because the branch had moved meanwhile."""
    found = network_error(error)
    return found is not None and _status(found) == _CONFLICT


def _is_offline(error: Exception) -> bool:
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled)


def _is_circle(error: Exception) -> bool:
    return type(error).__name__ == "TooManyRedirects"  # of the library that the client uses


def network_error(error: BaseException) -> Exception | None:
    """The failed request behind an error; the client wraps some in errors of its own.

    Of several in the chain, one with the server's answer tells most, else the innermost.
    """
    network = (_transport_error(), ConnectionError, TimeoutError, GarbledAnswerError)
    found: Exception | None = None
    cause = None if isinstance(error, ToolkitError) else error
    while cause is not None and (found is None or _status(found) is None):
        if isinstance(cause, network):
            found = cause
        cause = cause.__cause__
    return found


@contextmanager
def hub_errors(place: HubPlace, doing: str) -> Iterator[None]:
    """Turn the client's errors into one line that says what to do."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except ToolkitError:
        raise
    except LocalTokenNotFoundError as error:
        raise HubError(f"{place}: {doing} {_LOGIN}") from error
    except UnusableFileError as error:
        raise ConfigError(f"{error}; remove it, then run the same command again") from error
    except HFValidationError as error:
        raise ConfigError(f"{place}: {' '.join(str(error).split())}") from error
    except Exception as error:
        found = network_error(error)
        if found is None:
            raise
        raise HubError(f"{place}: {doing} failed: {_in_words(found, place, doing)}") from error


def _transport_error() -> type[Exception]:
    """The base of what the client raises when a request or its connection fails."""
    import huggingface_hub.errors

    errors: Any = huggingface_hub.errors
    base: type[Exception] = errors.HTTPError
    return base


def _in_words(error: Exception, place: HubPlace, doing: str) -> str:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = _status(error)
    if _is_offline(error):
        return "HF_HUB_OFFLINE is set; unset it, then run the same command again"
    if _is_circle(error):
        return "the Hub redirects in a circle; is HF_ENDPOINT set right?"
    if isinstance(error, GarbledAnswerError):
        return "the answer was garbled on its way; run the same command again"
    if isinstance(error, GatedRepoError):
        return "the dataset is gated; ask for access on its page, then use a token of that account"
    if isinstance(error, RevisionNotFoundError):
        return f"there is no branch, tag or commit {place.revision!r}; see the card on main"
    if isinstance(error, EntryNotFoundError):
        return "a file is gone from the commit"
    if status == 401 or (isinstance(error, RepositoryNotFoundError) and status != 404):
        return "no such dataset, or no right to it; check the name, and HF_TOKEN or 'hf auth login'"
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return "no such dataset; check the name (a private one needs HF_TOKEN or 'hf auth login')"
    if status == 403:
        right = "access" if doing == "fetching" else "write access"
        return f"the token may not do this; it needs {right} to the dataset"
    if status == _CONFLICT:
        return "somebody else changed the branch meanwhile; run the same command again"
    if status == 429:
        return "too many requests; wait a while, then run the same command again"
    if status is not None:
        return f"the Hub answered {status}; run the same command again later"
    return f"no connection ({type(error).__name__}); run the same command again"


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return int(status) if status is not None else None


def _asked_to_wait(error: Exception) -> float:
    response = getattr(network_error(error), "response", None)
    headers = getattr(response, "headers", None) or {}
    try:
        return min(float(headers.get("Retry-After", 0)), _LONGEST_WAIT)
    except ValueError:
        return 0.0
