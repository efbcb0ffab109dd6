"""The types of the fields of run.json that are read again.

A field may be missing: then the run is not complete, or an earlier version wrote it.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from attention_plasticity.tables.missing import heads_of
from qk_dump.heads import MOST_HEADS, MOST_LAYERS, require_head_count, require_multiple

Pair = Annotated[list[int], Field(min_length=2, max_length=2)]  # layer and query head


class _Part(BaseModel):
    """A part of run.json. Unknown fields are left alone."""

    model_config = ConfigDict(protected_namespaces=())


class _KeyHeadFailure(_Part):
    layer: int
    k_head: int
    reason: str


class _Failure(_KeyHeadFailure):
    q_head: int


class _Warning(_Part):
    kind: str
    text: str
    heads: int = 0
    reasons: list[str] | None = None


class _Missing(_Part):
    table: str
    columns: list[str]
    reason: str
    heads: int
    where: dict[str, str]

    @field_validator("where")
    @classmethod
    def _are_heads(cls, where: dict[str, str]) -> dict[str, str]:
        list(heads_of(where))  # raises a ValueError
        return where


class _Mean(_Part):
    value: float
    heads: int
    standard_error: float | None = None
    standard_error_texts: float | None = None
    eligible_heads: int | None = None
    groups: int | None = None


class _Config(_Part):
    pair_sampling: str | None = None
    query_model: str | None = None
    single_example: bool | None = None
    layers: list[int] | None = None
    heads: list[int] | None = None
    distant_from: int | None = None
    role_thresholds: dict[str, float] | None = None


class _Texts(_Part):
    count: int | None = None
    digest: str | None = None


class _Layout(_Part):
    """Numbers by which arrays are sized, so they are bounded."""

    num_layers: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    num_q_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS)
    num_k_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        require_multiple(self.num_q_heads, self.num_k_heads)
        require_head_count(self.num_layers or 1, self.num_q_heads or 1)
        return self


class _Dump(_Layout):
    model: str | None = None
    num_examples: int | None = None
    layers: list[dict[str, Any]] | None = None
    bucket_type: str | None = None
    min_bucket_size: int | None = None
    sampler: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    capture: dict[str, Any] | None = None
    eligible_q_heads: int | None = None


class _Input(_Part):
    path: str | None = None
    texts: _Texts | None = None
    dump: _Dump | None = None
    fingerprint: str | None = None


class _HeadLayout(_Layout):
    guessed: bool | None = None


class _Heads(_Part):
    analysed: int | None = None
    failed: int | None = None
    not_analysed: int | None = None
    not_captured: int | None = None


class RunInfo(_Part):
    """The fields of run.json that are read again."""

    config: _Config | None = None
    bin_size: int | None = None
    longest_text: int | None = None
    input: _Input | None = None
    head_layout: _HeadLayout | None = None
    heads: _Heads | None = None
    not_analysed: list[Pair] | None = None
    not_captured: list[Pair] | None = None
    failures: list[_Failure] | None = None
    warnings: list[_Warning] | None = None
    missing: list[_Missing] | None = None
    means: dict[str, _Mean] | None = None
    key_head_means: dict[str, _Mean] | None = None
    versions: dict[str, Any] | None = None
    tables: dict[str, str] | None = None
    sha256: dict[str, str | None] | None = None
