"""Which URLs are accepted."""

from __future__ import annotations

import importlib.util

import pytest

from qk_toolkit.errors import ConfigError
from qk_toolkit.store import Store
from qk_toolkit.urls import is_url, url_name, without_file_scheme


def test_urls_and_paths() -> None:
    assert is_url("s3://bucket/dump")
    assert is_url("abfs://container@account/x")
    assert not is_url("dumps/a")
    assert not is_url("C:\\dumps")
    assert not is_url("a b://x")
    assert url_name("s3://bucket/a/dump/") == "dump"
    assert url_name("s3://bucket") == "bucket"
    assert without_file_scheme("file:///data/dump") == "/data/dump"
    assert without_file_scheme("file://localhost/data/dump") == "/data/dump"
    assert without_file_scheme("s3://bucket") == "s3://bucket"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://key:hidden@bucket/dump", "s3://…@bucket: a URL with a password cannot be used"),
        ("s3://key:hid/hidden@bucket/dump", "s3://…@bucket: a URL with a password cannot be used"),
        ("https://key:hidden@host:80/dump", "https://…@host:80: a URL with a password"),
        ("s3://bucket/dump?token=hidden", "s3://bucket/dump: a URL with '[?]' cannot be used"),
        ("https://host/dump", "folders cannot be listed"),
        ("s3://", "expected a URL such as s3://bucket/folder"),
        ("nothing://bucket", "Protocol not known: nothing"),
        ("S3://bucket", "Protocol not known: S3"),
    ],
)
def test_refusals(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        Store(url).files()
    assert "hidden" not in str(raised.value)


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_the_package_of_a_protocol_is_named() -> None:
    with pytest.raises(ConfigError, match=r"needs gcsfs .pip install gcsfs."):
        Store("gs://bucket/dump").files()
