"""The heads of a dump and the columns of their rows, by the settings of the capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qk_dump.attention_columns import ATTENTION_COLUMNS, KEY_COLUMNS, TOKEN_COLUMNS
from qk_dump.layout import HeadId, Kind
from qk_dump.received_columns import RECEIVED_COLUMNS
from qk_dump.schema import TOKEN, TOKEN_ID, VALUE_NORM
from qk_sniffer.config import CaptureSettings

if TYPE_CHECKING:  # to import the model is slow
    from qk_sniffer.pipeline.setup import Setup


class ExpectedHead(NamedTuple):
    """A head of the dump and what its rows must be."""

    head: HeadId
    width: int  # of the vectors
    window: int | None
    optional: tuple[str, ...] = ()  # its optional columns
    group: int = 0  # query heads whose attention its keys receive, if it is measured


def expected_heads(setup: Setup) -> list[ExpectedHead]:
    """The heads of the dump."""
    heads = []
    for layer in setup.dump_heads:
        facts = layer.facts
        for head in layer.head_ids():
            received = setup.attended is not None and head.kind == "k"
            optional = optional_columns(setup.config.capture, head.kind, received=received)
            group = facts.group if received else 0
            expected = ExpectedHead(head, facts.width, facts.window, optional, group)
            heads.append(expected)
            if received and facts.layer in setup.attended_layers:
                heads.append(expected._replace(head=head._replace(attended=True)))
    return heads


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
