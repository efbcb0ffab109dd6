"""Access to the Hub client: repetitions of failed work, and error messages of one line.

The client itself retries listings, uploads and broken downloads (408, 429, 5xx and connections,
five times, after 1 to 8 seconds). It does not retry questions about a dataset or its branches,
their creation, a commit, and a download that begins with a 5xx or is reset. So a whole fetch or
push is repeated here. This is safe, because both continue where they ended: files that arrived are
kept, and a branch that has the dump gets no second commit. Messages never contain a token.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import ConfigError, DumpError, HubError, ToolkitError
from qk_toolkit.files import cannot_write
from qk_toolkit.raised_in import is_raised_by_us

_WAITS = (2.0, 8.0)  # seconds before each repetition
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_REASONS: dict[int | str, str] = {
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set; unset it, then run the same command again",
    "TooManyRedirects": "too many redirects; check HF_ENDPOINT",
    "GatedRepoError": "the dataset is gated; ask for access on its page, then use a token of that "
    "account",
    "RevisionNotFoundError": "there is no branch, tag or commit {revision!r}; see the card on main",
    "RemoteEntryNotFoundError": "a file of the commit was deleted; run the same command again",
    401: "no such dataset, or no access; check the name, and HF_TOKEN or 'hf auth login'",
    403: "the token has no permission; it needs access to the dataset, and write access to publish",
    404: "no such dataset; check the name (a private one needs HF_TOKEN or 'hf auth login')",
    412: "another push changed the branch; run the same command again",
    429: "too many requests; wait a while, then run the same command again",
}
"""By the name of the client's error, or else by the status of the answer."""

Result = TypeVar("Result")


class WrongContentError(HubError):
    """Files differ from what the commit lists. They are not kept; a repetition may help."""


def hub_api(token: str | None = None) -> Any:
    """The client with the given token, HF_TOKEN, or the token of `hf auth login`."""
    from huggingface_hub import HfApi

    endpoint = os.environ.get("HF_ENDPOINT")  # the client reads it only at import
    return HfApi(endpoint=endpoint, token=token, library_name="attention-plasticity")


def require_token(place: HubPlace, token: str | None = None) -> None:
    """Raise an error before any request when the token for publishing is missing or invalid."""
    from huggingface_hub import get_token

    known = token or get_token()
    if known is None:
        raise HubError(f"{place}: publishing needs a token; set HF_TOKEN or run 'hf auth login'")
    if not (known.isascii() and known.isprintable() and " " not in known):
        raise ConfigError(
            "HF_TOKEN: the token holds characters that are invalid in a token; copy it again from "
            "https://huggingface.co/settings/tokens"
        )


def repeated(work: Callable[[], Result], *, after_conflict: bool = False) -> Result:
    """Do the work, and again after transient failures, at most three times in all.

    `after_conflict`: also if somebody else changed the branch meanwhile.
    """
    for wait in _WAITS:
        try:
            return work()
        except Exception as error:  # the client has no common class of errors
            if not (is_transient(error) or (after_conflict and is_conflict(error))):
                raise
            time.sleep(wait)
    return work()


def is_transient(error: Exception) -> bool:
    """Whether a repetition may help: a broken connection, or a temporary error of the server."""
    found = _request_error(error)
    if found is None or type(found).__name__ in _REASONS:
        return isinstance(error, WrongContentError)
    return _status(found) is None or _status(found) in _TRANSIENT


def is_conflict(error: Exception) -> bool:
    """Whether a commit was refused because the branch has a newer commit."""
    found = _request_error(error)
    return found is not None and _status(found) == 412


@contextmanager
def hub_errors(place: HubPlace, doing: str) -> Iterator[None]:
    """Convert errors of the client to a `ToolkitError` of one line. Bugs of ours pass."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except ToolkitError:
        raise
    except HFValidationError as error:
        raise ConfigError(f"{place}: {' '.join(str(error).split())}") from error
    except Exception as error:  # the client has no common class of errors
        found = _request_error(error)
        if found is None and isinstance(error, OSError) and error.filename is not None:
            raise _local_error(error, doing) from error
        if found is None and is_raised_by_us(error):
            raise
        raise HubError(f"{place}: {doing} failed: {_reason(found, place)}") from error


def _local_error(error: OSError, doing: str) -> ToolkitError:
    """The error for a file of this machine."""
    if doing == "fetching":
        return cannot_write(Path(error.filename2 or error.filename), error)
    return DumpError(
        f"{error.filename}: cannot be read ({error.strerror}); the branch is unchanged"
    )


def _request_error(error: BaseException | None) -> Exception | None:
    """The failed request among the causes of an error: the first with an answer, else the last."""
    from huggingface_hub import errors

    client: Any = errors
    found: Exception | None = None
    while error is not None and (found is None or _status(found) is None):
        if isinstance(error, (client.HTTPError, ConnectionError, TimeoutError)):
            found = error
        error = error.__cause__
    return found


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return int(status) if status is not None else None


def _reason(error: Exception | None, place: HubPlace) -> str:
    if error is None:
        return "the answer cannot be used; check HF_ENDPOINT, then run the same command again"
    name, status = type(error).__name__, _status(error)
    known = _REASONS.get(name) or _REASONS.get(status or 0)
    if known is not None:
        return known.format(revision=place.revision)
    if status is not None:
        return f"the Hub answered {status}; run the same command again later"
    return f"no connection ({name}); run the same command again"
