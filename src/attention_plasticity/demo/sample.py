"""Real queries and keys that come with the package: some layers of SmolLM2-135M on Moby-Dick."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from qk_dump.layout import Dump
from qk_dump.source import open_dump


def sample_path() -> Path:
    """The folder of the dump. Its README.md describes the content."""
    return Path(str(files("attention_plasticity") / "demo" / "smollm2-135m"))


def repeated_path() -> Path:
    """The folder of the dump of random tokens that come twice, for the roles of these heads."""
    return sample_path().with_name("smollm2-135m-repeated")


def open_sample() -> Dump:
    """The dump that comes with the package: enough to try everything without a model.

    Examples:
        >>> from attention_plasticity import open_sample
        >>> dump = open_sample()
        >>> len(dump.query_heads), len(dump.key_heads)
        (27, 9)
        >>> dump.query_heads[:2]  # layer and head
        [(0, 0), (0, 1)]
    """
    return open_dump(sample_path())
