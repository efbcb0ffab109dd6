"""URLs of fsspec: which ones are accepted, the file system of each, and errors of its client."""

from __future__ import annotations

import errno
import re
from typing import Any

from qk_toolkit.errors import ConfigError, StoreError, has_password, without_secrets
from qk_toolkit.raised_in import is_our_bug

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://", re.ASCII)
_FILE = re.compile(r"file://(?:localhost(?=/))?")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
}
_NO_LISTINGS = ("http", "https")
_S3_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30}  # seconds without an answer
_MAX_CHARACTERS = 200
FULL = (errno.ENOSPC, errno.EDQUOT)  # of an `OSError`


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
    package = _PACKAGES.get(protocol)
    options: dict[str, Any] = {"use_listings_cache": False}
    if package == "s3fs":
        given = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
        options["config_kwargs"] = {**_S3_TIMEOUTS, **given}
    try:
        return fsspec.core.url_to_fs(url, **options)[0]
    except ImportError as error:
        problem = f"needs {package} (pip install {package})" if package else reason_of(error)
        raise ConfigError(f"{url}: {problem}") from error
    except (ValueError, TypeError) as error:  # TypeError: an unknown name in the configuration
        raise ConfigError(f"{url}: is not a usable URL ({reason_of(error)})") from error
    except Exception as error:  # some clients connect at once; they have no common class of errors
        if is_our_bug(error):
            raise
        raise StoreError(f"{url}: connecting failed: {remedy(error)}") from error


def remedy(error: Exception) -> str:
    """The reason of an error of a client and what to do."""
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{reason_of(error)}; free some space, then run the same command again"
    return f"{reason_of(error)}; check the URL and the credentials, then run the same command again"


def reason_of(error: Exception) -> str:
    """The reason of an error in one line, without passwords and signatures."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(without_secrets(text).split())[:_MAX_CHARACTERS].rstrip(".")
    return line or type(error).__name__
