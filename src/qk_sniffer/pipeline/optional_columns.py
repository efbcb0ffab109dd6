"""The optional columns of the rows of a capture, by its settings."""

from __future__ import annotations

from qk_dump.attention_columns import ATTENTION_COLUMNS, KEY_COLUMNS, TOKEN_COLUMNS
from qk_dump.layout import Kind
from qk_dump.received_columns import RECEIVED_COLUMNS
from qk_dump.schema import TOKEN, TOKEN_ID, VALUE_NORM
from qk_sniffer.config import CaptureSettings


def optional_columns(settings: CaptureSettings, kind: Kind, *, received: bool) -> tuple[str, ...]:
    """The optional columns of the rows of this kind.

    `received` is whether the attention that keys receive is measured.
    """
    columns = [TOKEN] * settings.capture_token_strings + [TOKEN_ID] * settings.tokens
    if kind == "q":
        return (*columns, *attention_columns(settings))
    columns += [VALUE_NORM] * settings.attention
    return (*columns, *(RECEIVED_COLUMNS if received else ()))


def attention_columns(settings: CaptureSettings) -> list[str]:
    """The attention columns of queries."""
    if not settings.attention:
        return []
    return [*ATTENTION_COLUMNS, *KEY_COLUMNS, *(TOKEN_COLUMNS if settings.tokens else ())]
