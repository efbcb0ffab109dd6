"""Errors of the clients of stores: whether a retry may help, and a reason of one line."""

from __future__ import annotations

import errno
import re

from qk_toolkit.passwords import without_secrets

_LASTING = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EINVAL,
    errno.EMSGSIZE,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.ENOSYS,
    errno.EPERM,
    getattr(errno, "EREMCHG", errno.EINVAL),  # S3: the bucket is in another region
}
_LASTING_TYPES = (AttributeError, ImportError, LookupError, RuntimeError, TypeError)
_LASTING_CODES = set(range(400, 500)) - {408, 425, 429}  # of HTTP
_MAX_CHARACTERS = 200
_ACCESS = re.compile(
    r"credential|access key|profile|forbidden|unauthori[sz]ed|denied"
    r"|\b(?:access|expired|invalid|provided|refresh|security|session|user) ?token"
    r"|\btoken (?:has|is|was)\b",
    re.I,
)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_transient(error: Exception) -> bool:
    """Whether a retry may help: a broken connection, or a temporary error of the server."""
    if is_checksum_error(error):  # bytes may have changed on their way
        return True
    if isinstance(error, (PermissionError, *_LASTING_TYPES)) or is_access_error(error):
        return False
    code = getattr(error, "code", None) or getattr(error, "status", None)
    if isinstance(code, int):
        return code not in _LASTING_CODES
    if isinstance(error, OSError):
        return error.errno not in _LASTING
    if isinstance(error, (ValueError, SyntaxError)):  # of a URL or an argument, or an answer
        return _is_unreadable_answer(error)
    return _is_network_error(error)


def _is_network_error(error: Exception) -> bool:
    """Whether an error of botocore comes from the network. Those of other clients count as such."""
    if not type(error).__module__.startswith("botocore"):
        return True
    from botocore import exceptions, parsers

    network = (exceptions.ConnectionError, exceptions.HTTPClientError, parsers.ResponseParserError)
    return isinstance(error, network)


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
