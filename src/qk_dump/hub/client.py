"""Access to the Hub client: retries, and error messages of one line.

The Hub client retries only some requests. Here every request is tried a few times. A lasting
failure becomes an error that says what to do. Messages never contain a token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import ConfigError, HubError, ToolkitError
from qk_toolkit.files import UnusableFileError
from qk_toolkit.raised_in import OURS, is_in, modules_passed

_WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before each retry
_MAX_WAIT = 300.0  # seconds, also if the server asks for more
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_CONFLICT = 412
_PARSE_ERRORS = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Raised in the client when an answer is not JSON or lacks expected members."""
_CUT_ANSWERS = (json.JSONDecodeError, UnicodeDecodeError)  # part of an answer is missing
_CLIENT = "huggingface_hub"
_ARGUMENT_CHECKS = "huggingface_hub.utils._validators"  # calls the methods of the client
_LOGIN = "needs a token; set HF_TOKEN or run 'hf auth login'"

Result = TypeVar("Result")


class InvalidAnswerError(Exception):
    """The client could not parse the answer of the server. A cut answer may be whole next time."""

    def __init__(self, reason: str, *, is_cut: bool = False) -> None:
        super().__init__(reason)
        self.is_cut = is_cut


def hub_api(token: str | None = None) -> Any:
    """The client with the given token, HF_TOKEN, or the token of `hf auth login`."""
    from huggingface_hub import HfApi

    endpoint = os.environ.get("HF_ENDPOINT")  # the client reads it only at import
    return HfApi(endpoint=endpoint, token=token, library_name="attention-plasticity")


@contextmanager
def without_client_bars() -> Iterator[None]:
    """Hide the progress bars of the Hub's client in the block."""
    from huggingface_hub.utils import enable_progress_bars  # type: ignore[attr-defined]

    were_shown = hide_client_bars()
    try:
        yield
    finally:
        if were_shown:
            enable_progress_bars()


def hide_client_bars() -> bool:
    """Hide the progress bars of the Hub's client from now on. Returns whether they were shown."""
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils
    were_shown = not client.are_progress_bars_disabled()
    if were_shown:
        client.disable_progress_bars()
    return were_shown


def require_token(place: HubPlace, doing: str, token: str | None = None) -> None:
    """Raise an error before any request when the token is missing or invalid."""
    from huggingface_hub import get_token

    known = token or get_token()
    if known is None:
        raise HubError(f"{place}: {doing} {_LOGIN}")
    if not (known.isascii() and known.isprintable() and " " not in known):
        raise ConfigError(
            "HF_TOKEN: the token holds characters that are invalid in a token; copy it again from "
            "https://huggingface.co/settings/tokens"
        )


def with_retries(
    request: Callable[[], Result], *, find_result: Callable[[], Result | None] | None = None
) -> Result:
    """Run a request. Retry it after transient failures of the network or the server.

    After a failure, `find_result` checks whether the request took effect anyway: the reply may have
    been lost, or another process did the same. A result that is not None is returned.
    """
    for wait in (*_WAITS, None):
        try:
            return _parsed(request)
        except client_errors() as error:
            transient = is_transient(error)
            if find_result is not None and (transient or is_conflict(error)):
                result = find_result()
                if result is not None:
                    return result
            if wait is None or not transient:
                raise
            time.sleep(max(wait, _retry_after(error)))
    raise AssertionError("unreachable")


def _parsed(request: Callable[[], Result]) -> Result:
    """Run a request; an answer that cannot be parsed raises an `InvalidAnswerError`."""
    from huggingface_hub.errors import HFValidationError

    try:
        return request()
    except (HFValidationError, OSError):  # an invalid repository name, a local file, the network
        raise
    except (*_PARSE_ERRORS, _invalid_url_error()) as error:
        if isinstance(error, _transport_error()) or not _is_of_client(error):
            raise
        is_cut = isinstance(error, _CUT_ANSWERS)
        raise InvalidAnswerError(type(error).__name__, is_cut=is_cut) from error


def _is_of_client(error: Exception) -> bool:
    """Whether the client raised an error in its own code, and not because of its arguments.

    A wrong call is a bug of this program. It is raised in our code, or where the client passes the
    arguments on.
    """
    modules = modules_passed(error)
    if isinstance(error, TypeError) and modules[-1] == _ARGUMENT_CHECKS:
        return False
    known = [module for module in modules if is_in(module, (_CLIENT, *OURS))]
    return bool(known) and is_in(known[-1], (_CLIENT,))


def is_transient(error: Exception) -> bool:
    """Whether a retry may help: a broken connection, or a temporary error of the server."""
    found = network_error(error)
    if found is None or _is_offline(found) or _is_redirect_loop(found):
        return False
    if isinstance(found, InvalidAnswerError):
        return found.is_cut
    status = _status(found)
    return status is None or status in _TRANSIENT


def is_conflict(error: Exception) -> bool:
    """Whether a commit was refused because the branch has a newer commit."""
    found = network_error(error)
    return found is not None and _status(found) == _CONFLICT


def _is_offline(error: Exception) -> bool:
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled)


def _is_redirect_loop(error: Exception) -> bool:
    return type(error).__name__ == "TooManyRedirects"  # of the HTTP library of the client


def network_error(error: BaseException) -> Exception | None:
    """The failed request in the chain of causes of an error; None without one.

    Returns the first one with an answer of the server, else the innermost.
    """
    network = (_transport_error(), ConnectionError, TimeoutError, InvalidAnswerError)
    found: Exception | None = None
    cause: BaseException | None = error if isinstance(error, client_errors()) else None
    while cause is not None and (found is None or _status(found) is None):
        if isinstance(cause, network):
            found = cause
        cause = cause.__cause__
    return found


@contextmanager
def hub_errors(place: HubPlace, doing: str) -> Iterator[None]:
    """Convert errors of the client to a `HubError` or `ConfigError` of one line."""
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
    except client_errors() as error:
        found = network_error(error)
        if found is None:
            raise
        raise HubError(f"{place}: {doing} failed: {_reason(found, place, doing)}") from error


def client_errors() -> tuple[type[Exception], ...]:
    """What the client raises after a failed request: a RuntimeError for uploads, with a cause."""
    return (_transport_error(), OSError, RuntimeError, InvalidAnswerError)


def _invalid_url_error() -> type[Exception]:
    """What the HTTP library of the client raises for a redirect or a next page that is no URL."""
    library: Any = sys.modules[_transport_error().__module__]
    kind: type[Exception] = library.InvalidURL
    return kind


def _transport_error() -> type[Exception]:
    """The base class of failed requests and connections."""
    import huggingface_hub.errors

    errors: Any = huggingface_hub.errors
    base: type[Exception] = errors.HTTPError
    return base


def _reason(error: Exception, place: HubPlace, doing: str) -> str:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = _status(error)
    if _is_offline(error):
        return "HF_HUB_OFFLINE is set; unset it, then run the same command again"
    if _is_redirect_loop(error):
        return "too many redirects; check HF_ENDPOINT"
    if isinstance(error, InvalidAnswerError):
        return "the answer cannot be parsed; run the same command again"
    if isinstance(error, GatedRepoError):
        return "the dataset is gated; ask for access on its page, then use a token of that account"
    if isinstance(error, RevisionNotFoundError):
        return f"there is no branch, tag or commit {place.revision!r}; see the card on main"
    if isinstance(error, EntryNotFoundError):
        return "a file of the commit was deleted; run the same command again"
    if status == 401 or (isinstance(error, RepositoryNotFoundError) and status != 404):
        return "no such dataset, or no access; check the name, and HF_TOKEN or 'hf auth login'"
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return "no such dataset; check the name (a private one needs HF_TOKEN or 'hf auth login')"
    if status == 403:
        right = "access" if doing == "fetching" else "write access"
        return f"the token has no permission; it needs {right} to the dataset"
    if status == _CONFLICT:
        return "another push changed the branch; run the same command again"
    if status == 429:
        return "too many requests; wait a while, then run the same command again"
    if status is not None:
        return f"the Hub answered {status}; run the same command again later"
    return f"no connection ({type(error).__name__}); run the same command again"


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return int(status) if status is not None else None


def _retry_after(error: Exception) -> float:
    response = getattr(network_error(error), "response", None)
    headers = getattr(response, "headers", None) or {}
    try:
        return min(float(headers.get("Retry-After", 0)), _MAX_WAIT)
    except ValueError:
        return 0.0
