"""What a study finds out about texts before a capture: whether they changed, and one length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from qk_sniffer.config import CaptureConfig
from qk_sniffer.sampling.bucket_counts import nearest_power_of_two
from qk_sniffer.text_settings import DatasetSettings
from qk_study.plan import LENGTH, REPEATED, Part
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json, user_path, write_text
from qk_toolkit.formatting import count

_LOOKED_AT = 64  # texts whose lengths are measured
_LEAST_TEXTS = 4  # for errors


@dataclass(frozen=True)
class OneLength:
    """The length to which texts are cut."""

    tokens: int
    texts: int  # that reach it
    looked_at: int

    @property
    def of_whole_buckets(self) -> OneLength:
        """The length without the last tokens if they fill no bucket: such a bucket has few rows."""
        return replace(self, tokens=self.tokens - self.tokens % nearest_power_of_two(self.tokens))

    def describe(self) -> str:
        """A sentence for the user."""
        shorter = self.looked_at - self.texts
        rest = f"; {count(shorter, 'text')} of {self.looked_at} have fewer" if shorter else ""
        return (
            f"texts are cut to {self.tokens:,} tokens, so that they have one length{rest} "
            "(--no_one_length keeps whole texts)"
        )


def one_length(lengths: Sequence[int]) -> OneLength:
    """The length that keeps most tokens in texts that reach it.

    At least half of the texts reach it, and at least four if there are as many.
    """
    ordered = sorted(filter(None, lengths), reverse=True)
    least = min(len(ordered), max(_LEAST_TEXTS, (len(ordered) + 1) // 2))
    kept = [
        (number * ordered[number - 1], number) for number in range(max(1, least), len(ordered) + 1)
    ]
    texts = max(kept, default=(0, 0))[1]
    if not texts:
        raise ConfigError("texts: hold no tokens; give other texts")
    return OneLength(ordered[texts - 1], texts, len(lengths))


def chosen(part: Part) -> tuple[Part, str | None]:
    """The part with the value that the study chooses, and a sentence about it."""
    if part.chosen == LENGTH:
        found = one_length(_lengths(part.capture)).of_whole_buckets
        return part.with_choice(found.tokens), found.describe()
    if part.chosen == REPEATED:
        return part.with_choice(_repeated_length(part.capture)), None
    made = part.capture.dataset.made
    if made is not None and made.texts is None and made.tokens > _repeated_length(part.capture):
        allowed = _repeated_length(part.capture)
        raise ConfigError(
            f"repeated_length: {made.tokens:,} given, but the vocabulary and the context of the "
            f"model allow {allowed:,}; give at most {allowed}, or leave it out"
        )
    return part, None


def _lengths(config: CaptureConfig) -> list[int]:
    """The tokens of the first texts, at most the context of the model."""
    from qk_sniffer.capture.setup import texts_and_encoder

    texts, encoder = texts_and_encoder(config)
    return [len(encoder.tokens(text)) for text in islice(texts, _LOOKED_AT)]


def _repeated_length(config: CaptureConfig) -> int:
    """The tokens of a text of repeated tokens: fewer if the vocabulary or the context is small."""
    from qk_sniffer.capture.setup import texts_and_encoder

    assert config.dataset.synthetic is not None
    _, encoder = texts_and_encoder(config)
    most = min(encoder.max_length or config.dataset.synthetic.tokens, 2 * len(encoder.plain_tokens))
    return min(config.dataset.synthetic.tokens, most // 2 * 2)


def fingerprint(dataset: DatasetSettings) -> str | None:
    """A hash of the files with texts; None for texts that are made or not on this machine."""
    from qk_sniffer.texts.sources import local_files

    made = dataset.made
    path = dataset.path if made is None else made.texts
    root = None if path is None else user_path(path)
    if root is None or not root.exists():
        return None
    digest = hashlib.sha256()
    for file in local_files(root)[0]:
        name = "" if file == root else file.relative_to(root).as_posix()
        with file.open("rb") as content:
            own = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{name}\0{own}\n".encode())
    return digest.hexdigest()


def texts_changed(part: Part) -> bool:
    """Whether the texts of a capture are others than when it began.

    Texts that are not there any more are not changed texts.
    """
    try:
        recorded = read_json(user_path(_record(part)))["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    found = fingerprint(part.capture.dataset)
    return found is not None and found != recorded


def record_texts(part: Part) -> None:
    """Record the texts of a capture that begins."""
    found = fingerprint(part.capture.dataset)
    if found is not None:
        write_text(user_path(_record(part)), f'{{"sha256": "{found}"}}\n')


def _record(part: Part) -> str:
    return part.file.removesuffix(".yaml") + ".texts.json"
