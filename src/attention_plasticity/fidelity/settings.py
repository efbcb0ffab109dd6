"""FidelityConfig: every setting of `fidelity` with its check and its help text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from attention_plasticity.config import RunnerConfig
from qk_dump.limits import MOST_POSITIONS
from qk_toolkit.cpus import available_cpus
from qk_toolkit.settings import Indices

_DATA = "which data"
_HEADS = "which heads"
_METHOD = "how to measure"
_RUN = "where results go, and how to run"

RESULT_FIELDS = ("max_tokens_per_head", "bin_size", "near", "first_query", "seed")
"""Fields that change the numbers of a key head."""


class FidelityConfig(BaseModel):
    """Settings of one measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dump: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="folder, URL or hf:// place of a dump (in a command, it can also follow the "
        "word fidelity)",
    )
    rotary: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="file with the rotary records of the dump, made by add-rotary (default: those "
        "in dump.json)",
    )
    layers: Indices | None = Field(
        title=_HEADS, default=None, description="layers to measure, such as 0-3,8 (default: all)"
    )
    heads: Indices | None = Field(
        title=_HEADS,
        default=None,
        description="query heads to use in every layer (default: all); a key head is measured with "
        "those of its group",
    )
    max_tokens_per_head: int = Field(
        title=_METHOD,
        default=50_000,
        ge=3,
        description="largest number of rows per head; larger heads are sampled at random",
    )
    bin_size: Annotated[int, Field(ge=1, le=MOST_POSITIONS)] | Literal["auto"] = Field(
        title=_METHOD,
        default="auto",
        description="tokens per bin, for the scores that have a Gaussian per bin; auto: about a "
        "sixteenth of the longest text, or more if bins would hold few queries",
    )
    near: int = Field(
        title=_METHOD,
        default=128,
        ge=0,
        le=MOST_POSITIONS,
        description="keys at a smaller distance from a query are always kept, in tokens",
    )
    first_query: int | None = Field(
        title=_METHOD,
        default=None,
        ge=0,
        le=MOST_POSITIONS,
        description="first position of the queries whose attention is counted (default: a quarter "
        "of the longest text)",
    )
    seed: int = Field(title=_METHOD, default=0, ge=0, description="seed of every random choice")
    output_dir: str | None = Field(
        title=_RUN,
        default=None,
        min_length=1,
        description="new folder, or the folder of an analysis of the same dump (default: "
        "results/<name of the dump>)",
    )
    max_workers: int | None = Field(
        title=_RUN,
        default=None,
        ge=1,
        description="worker processes (default: one per available CPU)",
    )
    overwrite: bool = Field(
        title=_RUN, default=False, description="discard key heads that were measured earlier"
    )

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return self.max_workers or available_cpus()

    def for_reading(self) -> RunnerConfig:
        """The settings of an analysis that reads the same rows."""
        return RunnerConfig(
            layers=self.layers,
            heads=self.heads,
            max_tokens_per_head=self.max_tokens_per_head,
            bin_size=self.bin_size,
            seed=self.seed,
        )
