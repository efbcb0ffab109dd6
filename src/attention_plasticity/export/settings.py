"""The formats of `export`, and their options as flags."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Missing = Literal["refuse", "mean"]
Rule = Literal["ratio", "ramp"]
Layout = Literal["official", "tensorrt-llm"]
FormatName = Literal[
    "triattention", "expected-attention", "q-filters", "kvpress-budget", "duo", "layer-windows"
]

DEFAULT_ORDER = "aligned_plasticity"
_BOTH = "which heads"
_DUMP = "from a dump"
_RUN = "from a run"


@dataclass(frozen=True)
class Format:
    """The files of one tool."""

    reads: Literal["dump", "run"]
    function: str  # module and name of the function that makes the files
    options: tuple[str, ...]  # fields of `ExportSettings` that only some formats have
    help: str
    order: str = DEFAULT_ORDER  # of a run, if the user gives none

    def make(self, source: Any, settings: ExportSettings) -> Any:
        """The files, from the heads of a dump or of a run."""
        module, _, name = self.function.partition(".")
        return getattr(import_module(f"attention_plasticity.export.{module}"), name)(
            source, settings
        )


_OF_DUMP = ("max_tokens_per_head", "rotary")
FORMATS: dict[str, Format] = {
    "triattention": Format(
        "dump",
        "triattention.triattention",
        (*_OF_DUMP, "layout"),
        "triattention.pt: mean query per rotary band, for TriAttention",
    ),
    "expected-attention": Format(
        "dump",
        "formats.expected_attention",
        _OF_DUMP,
        "mean and covariance of queries, for ExpectedAttentionStatsPress of kvpress",
    ),
    "q-filters": Format(
        "dump",
        "formats.q_filters",
        _OF_DUMP,
        "one direction per key head, for Q-Filters (QFilterPress of kvpress)",
    ),
    "kvpress-budget": Format(
        "run",
        "budget.kvpress_budget",
        ("order", "rule"),
        "budget.npy: the share of its keys that each key head loses, for BudgetPress and LUKVPress",
    ),
    "duo": Format(
        "run",
        "gates.duo",
        ("order", "share", "threshold", "window_copying", "sink_size", "recent_size"),
        "full_attention_heads.tsv: which key heads need full attention",
    ),
    "layer-windows": Format(
        "run",
        "layers.layer_windows",
        ("order", "full_layers"),
        "layer_windows.json: which layers may have a window, for transformers and TensorRT-LLM",
        order="static_error",
    ),
}


class ExportSettings(BaseModel):
    """The format of an export, and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rare_flags: ClassVar[tuple[str, ...]] = (
        *("max_tokens_per_head", "rule", "window_copying", "threshold", "sink_size"),
        *("recent_size", "layout", "full_layers", "rotary"),
    )

    to: FormatName = Field(title=_BOTH, description="format")
    missing: Missing = Field(
        title=_BOTH,
        default="refuse",
        description="heads without values: refuse them, or use the mean of other heads (of the "
        "layer for statistics of a dump, of the model for values of a run)",
    )
    max_tokens_per_head: int = Field(
        title=_DUMP,
        default=50_000,
        ge=2,
        description="largest number of rows per head; larger heads are sampled at random",
    )
    rotary: str | None = Field(
        title=_DUMP,
        default=None,
        min_length=1,
        description="file with rotary records, from add-rotary",
    )
    layout: Layout = Field(
        title=_DUMP,
        default="official",
        description="with triattention: the layout of the method's own tool, or the flat one of "
        "TensorRT-LLM",
    )
    order: str | None = Field(
        title=_RUN,
        default=None,
        description="the value of a key head, by default aligned_plasticity, and static_error for "
        "layer-windows: a column with a standard error of "
        "key_head_metrics.csv, or of head_metrics.csv (mean over the query heads), or uniform",
    )
    rule: Rule = Field(
        title=_RUN,
        default="ratio",
        description="with kvpress-budget: how values become shares; ratio fixes the ratio of the "
        "largest to the smallest share, and ramp is linear in the rank",
    )
    share: float | None = Field(
        title=_RUN,
        default=None,
        ge=0,
        le=1,
        description="with duo: gate 1 for this share of heads, else 0",
    )
    threshold: float | None = Field(
        title=_RUN,
        default=None,
        allow_inf_nan=False,
        description="with duo: gate 1 for values from X, else 0",
    )
    window_copying: bool = Field(
        title=_RUN,
        default=False,
        description="with duo: heads that copy (induction, duplicate) may have a window, too",
    )
    full_layers: int | None = Field(
        title=_RUN,
        default=None,
        ge=0,
        description="with layer-windows: number of layers that keep full attention (default: half)",
    )
    sink_size: int = Field(
        title=_RUN, default=4, ge=0, description="with duo: first tokens that are kept"
    )
    recent_size: int = Field(
        title=_RUN, default=256, ge=1, description="with duo: last tokens that are kept"
    )

    @property
    def format(self) -> Format:
        """The chosen format."""
        return FORMATS[self.to]

    @model_validator(mode="after")
    def _options_of_the_format(self) -> Self:
        for name in type(self).model_fields:
            having = [kind for kind, one in FORMATS.items() if name in one.options]
            if having and name in self.model_fields_set and self.to not in having:
                raise ValueError(f"{name}: can only be used with --to {' or '.join(having)}")
        if self.threshold is not None and self.share is not None:
            raise ValueError("threshold: cannot be used together with --share; choose one")
        return self
