"""URLs of fsspec: which ones are accepted, and the file system of each.

Errors of the clients of stores: whether a retry may help, and a reason of one line.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from typing import Any

from qk_toolkit.errors import ConfigError, StoreError, has_password, without_secrets
from qk_toolkit.raised_in import is_our_bug, modules_passed

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://", re.ASCII)
_FILE = re.compile(r"file://(?:localhost(?=/))?")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_TRANSIENT = {
    errno.EAGAIN,
    errno.EBUSY,  # S3: too many requests
    errno.EHOSTUNREACH,
    errno.EIO,  # S3: a code that the client does not know, such as that of a gateway
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    getattr(errno, "EREMOTEIO", errno.EIO),  # S3: an internal error
}
_TRANSIENT_CODES = {408, 425, 429, 500, 502, 503, 504}  # of HTTP
_NETWORK_TYPES = (ConnectionError, EOFError, TimeoutError, socket.gaierror, ssl.SSLEOFError)
_NETWORK_NAMES = {
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "azure": ("IncompleteReadError", "ServiceRequestError", "ServiceResponseError"),
    "botocore": ("ConnectionError", "HTTPClientError", "ResponseParserError"),
    "ftplib": ("error_temp",),
    "google": ("ServerError", "TooManyRequests", "TransportError"),
    "http": ("IncompleteRead",),
    "requests": ("ChunkedEncodingError", "ConnectionError", "Timeout"),
    "urllib3": ("MaxRetryError", "ProtocolError", "TimeoutError"),
}
"""Classes of the clients and their libraries, which are imported only if a URL needs them."""
_ARGUMENTS = "fsspec.asyn"  # passes the arguments of a call to the client
_MAX_CHARACTERS = 200
_ACCESS = re.compile(
    r"credential|access key|profile|forbidden|unauthori[sz]ed|denied"
    r"|\b(?:access|expired|invalid|provided|refresh|security|session|user) ?token"
    r"|\btoken (?:has|is|was)\b",
    re.I,
)
_FULL = (errno.ENOSPC, errno.EDQUOT)


_PACKAGES |= dict.fromkeys(("abfs", "abfss", "az"), "adlfs")
_NO_LISTINGS = ("http", "https")
_S3_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30}  # seconds without an answer


def is_url(text: object) -> bool:
    """Whether a path is a URL such as s3://bucket/folder."""
    return _URL.match(str(text)) is not None


def without_file_scheme(text: str) -> str:
    """The path of file:///data/dump or file://localhost/data/dump; any other text as it is."""
    found = _FILE.match(text)
    return text if found is None else text[found.end() :]


def is_remote(text: object) -> bool:
    """Whether a path is a URL that is not a path of this machine."""
    return is_url(without_file_scheme(str(text)))


def url_name(url: str) -> str:
    """The last part of a URL."""
    return url.rstrip("/").rpartition("/")[2]


def require_usable(url: str) -> str:
    """The URL without a slash at its end. Raises a `ConfigError` that never shows a password."""
    refuse_password(url)
    scheme, _, rest = url.partition("://")
    if "?" in rest:
        raise ConfigError(
            f"{scheme}://{rest.partition('?')[0]}: a URL with '?' cannot be used; leave out the "
            "part from '?' on"
        )
    if scheme in _NO_LISTINGS:
        raise ConfigError(
            f"{url}: folders cannot be listed at {scheme}://; download the folder, or use the "
            "protocol of the store, such as s3://"
        )
    if not rest.strip("/"):
        raise ConfigError(f"{url}: expected a URL such as {scheme}://bucket/folder")
    return url.rstrip("/")


def refuse_password(url: str) -> None:
    """Raise a `ConfigError` for s3://key:secret@bucket. It shows what follows the password."""
    if has_password(url):
        place = re.split("[/?]", url.rpartition("@")[2])[0]
        raise ConfigError(
            f"{url.partition('://')[0]}://…@{place}: a URL with a password cannot be used; give "
            "the credentials in environment variables or in the files of the client"
        )


def file_system(url: str) -> Any:
    """The file system of fsspec for a URL, with the configuration of the user."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        system, _ = fsspec.core.url_to_fs(url, **_options(protocol, fsspec.config.conf))
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        problem = f"needs {package} (pip install {package})" if package else reason_of(error)
        raise ConfigError(f"{url}: {problem}") from error
    except (ValueError, TypeError) as error:  # TypeError: an unknown name in the configuration
        raise ConfigError(f"{url}: is not a usable URL ({reason_of(error)})") from error
    except Exception as error:  # some clients connect at once; they have no common class of errors
        if is_bug(error):
            raise
        raise StoreError(f"{url}: connecting failed: {remedy(error)}") from error
    if _PACKAGES.get(protocol) == "s3fs":
        system.retries = 1  # `Store` repeats requests
    return system


def _options(protocol: str, configured: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"use_listings_cache": False}
    if _PACKAGES.get(protocol) != "s3fs":
        return options
    client: dict[str, Any] = dict(_S3_TIMEOUTS)
    if not {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"} & set(os.environ):
        client["retries"] = {"max_attempts": 0}
    given = configured.get(protocol, {}).get("config_kwargs", {})
    return options | {"config_kwargs": {**client, **given}}


def is_transient(error: Exception) -> bool:
    """Whether a retry may help: a broken connection, or a temporary error of the server.

    An error of a type that is not listed here is not transient.
    """
    if is_checksum_error(error):  # bytes may have changed on their way
        return True
    if isinstance(error, PermissionError) or is_access_error(error):
        return False
    code = _http_code(error)
    if code is not None:
        return code in _TRANSIENT_CODES
    if isinstance(error, _NETWORK_TYPES) or _is_network_error(error):
        return True
    if isinstance(error, OSError):
        return error.errno in _TRANSIENT
    return isinstance(error, (ValueError, SyntaxError)) and _is_unreadable_answer(error)


def _http_code(error: Exception) -> int | None:
    codes = (getattr(error, name, None) for name in ("code", "status", "status_code"))
    return next((code for code in codes if isinstance(code, int) and code), None)


def _is_network_error(error: Exception) -> bool:
    """Whether a client names an error as one of the network or of a busy server."""
    return any(
        kind.__name__ in _NETWORK_NAMES.get(kind.__module__.partition(".")[0], ())
        for kind in type(error).__mro__
    )


def is_bug(error: Exception) -> bool:
    """Whether an error is a bug of this program, such as a wrong call, and not of a client."""
    is_wrong_call = isinstance(error, TypeError) and modules_passed(error)[-1:] == [_ARGUMENTS]
    return is_wrong_call or is_our_bug(error)


def _is_unreadable_answer(error: Exception) -> bool:
    """Whether an answer of the server is not valid, for example because its end is missing."""
    named = " ".join(kind.__name__ for kind in type(error).__mro__).lower()
    return "parse" in named or "jsondecode" in named or "expat" in named


def is_checksum_error(error: Exception) -> bool:
    """Whether the content that was received does not have the checksum that the store recorded."""
    return "checksum" in type(error).__name__.lower()  # of botocore and gcsfs


def is_disk_full(error: Exception) -> bool:
    """Whether a write failed because there is no space left."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_access_error(error: Exception) -> bool:
    """Whether credentials are missing, wrong or expired, or have no permission."""
    if isinstance(error, PermissionError):
        return True
    if _is_unreadable_answer(error):  # its text may have any words
        return False
    named = type(error).__name__.lower()
    if isinstance(error, (ConnectionError, TimeoutError)) or "connect" in named:
        return False
    return "credential" in named or _ACCESS.search(str(error)) is not None


def remedy(error: Exception) -> str:
    """The reason of an error and what to do."""
    reason = reason_of(error)
    if is_access_error(error):
        return f"no access ({reason}); check the credentials, then run the same command again"
    if isinstance(error, FileNotFoundError):
        return f"{reason}; check the names of the bucket and the folder"
    if is_disk_full(error):
        return f"{reason}; free some space, then run the same command again"
    if is_transient(error):
        return f"{reason}; run the same command again"
    return f"{reason}; check the URL, the credentials and the configuration of the client"


def reason_of(error: Exception) -> str:
    """The reason of an error in one line, without passwords and signatures."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(without_secrets(text).split())[:_MAX_CHARACTERS].rstrip(".")
    return line or type(error).__name__
