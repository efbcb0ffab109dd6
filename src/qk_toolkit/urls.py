"""URLs of fsspec: which ones are accepted, and the file system of each."""

from __future__ import annotations

import os
import re
from typing import Any

from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.passwords import has_password
from qk_toolkit.store_errors import is_bug, reason_of, remedy

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://", re.ASCII)
_FILE = re.compile(r"file://(?:localhost(?=/))?")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
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
