"""Options of figures, as flags, as lines of a YAML file and as arguments of `run.plot`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_toolkit.settings import Indices

_DATA, _LOOK, _WORDS, _OUTPUT = "which data", "appearance", "words", "output"


class FigureOptions(BaseModel):
    """Options of all figures. A figure takes those that its entry in the registry names."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    everywhere: ClassVar[tuple[str, ...]] = (
        *("layers", "layer_type", "heads", "width", "title", "footnote", "model_name"),
    )
    """Options that every figure takes."""

    layers: Indices | None = Field(
        title=_DATA, default=None, description="layers to draw, such as 0-3,8 (default: all)"
    )
    layer_type: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="layers of one type: full, sliding, chunked or another word of layer_type",
    )
    heads: Indices | None = Field(
        title=_DATA,
        default=None,
        description="numbers of heads in their layer, such as 0,2",
    )
    metric: str | None = Field(
        title=_DATA,
        default=None,
        description="a column of the table; drop: ap_aligned_drop_position",
    )
    plasticity: Literal["position", "bucket"] | None = Field(
        title=_DATA,
        default=None,
        description="RoPE-aligned plasticity, or over a bucket (default: position, if known)",
    )
    limit: int | None = Field(
        title=_DATA, default=None, gt=0, description="number of dimensions, or of heads at each end"
    )
    agg: Literal["mean", "median"] = Field(
        title=_DATA, default="mean", description="aggregation over heads"
    )
    color: Literal["layer", "trend", "none"] | None = Field(
        title=_LOOK, default=None, description="what the colours of lines or points stand for"
    )
    trend_threshold: float = Field(
        title=_LOOK,
        default=0.5,
        ge=0,
        le=1,
        description="smallest rank correlation with position of a rising or falling head",
    )
    cmap: str | None = Field(title=_LOOK, default=None, description="colormap")
    range: Literal["data", "unit"] = Field(
        title=_LOOK,
        default="data",
        description="range of the axis or the colours of a share: that of the data, or 0 to 1",
    )
    vmin: float | None = Field(title=_LOOK, default=None, description="value of the first colour")
    vmax: float | None = Field(title=_LOOK, default=None, description="value of the last colour")
    intervals: bool = Field(title=_LOOK, default=True, description="draw 95 % intervals")
    fade: bool = Field(
        title=_LOOK, default=True, description="fade heads whose 95 % interval contains 0"
    )
    baselines: bool = Field(
        title=_LOOK, default=True, description="draw the baselines of the run as reference lines"
    )
    width: Literal["column", "text"] = Field(
        title=_LOOK, default="column", description="3.3 inches, or 6.75 inches, for a paper"
    )
    title: str | None = Field(
        title=_WORDS, default=None, description='title of the figure; "" leaves it out'
    )
    footnote: str | None = Field(
        title=_WORDS, default=None, description='small text at the bottom; "" leaves it out'
    )
    model_name: str | None = Field(
        title=_WORDS, default=None, description="name in the caption (default: from the run)"
    )
    ylabel: str | None = Field(title=_WORDS, default=None, description="label of the vertical axis")

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.vmin is not None and self.vmax is not None and self.vmin >= self.vmax:
            raise ValueError(f"vmin: must be below vmax, got {self.vmin} and {self.vmax}")
        return self

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {
            name: getattr(self, name)
            for name in FigureOptions.model_fields
            if name in self.model_fields_set
        }


class PlotSettings(FigureOptions):
    """Settings of `attention-plasticity plot`."""

    run: str = Field(
        title=_DATA,
        min_length=1,
        description="folder of an analysis; the word --run can be omitted",
    )
    output: str | None = Field(
        title=_OUTPUT,
        default=None,
        min_length=1,
        description="a .png, .svg or .pdf file, its caption is written beside it as .txt; of all: "
        "a folder (default: RUN/figures)",
    )
    format: Literal["png", "svg", "pdf"] | None = Field(
        title=_OUTPUT, default=None, description="file format (default: png)"
    )


class ScriptSettings(FigureOptions):
    """Settings of the scripts of `scripts/`, with the names of the original tool."""

    cmap: str | None = Field(title=_LOOK, default=None, description="colormap")
    run: str | None = Field(
        title=_DATA, default=None, min_length=1, description="folder of an analysis"
    )
    bucket_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_bucket_plasticity.csv"
    )
    component_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_component_weights.csv"
    )
    bucket_type: Literal["uniform", "log"] | None = Field(
        title=_DATA, default=None, description="division of positions into buckets"
    )
    bucket_min_size: int | None = Field(
        title=_DATA, default=None, ge=1, description="for uniform buckets, their size in tokens"
    )
    color_by_layer: bool = Field(title=_LOOK, default=False, description="colour lines by layer")
    color_trend: bool = Field(
        title=_LOOK, default=False, description="colour lines by trend: rising, falling or neither"
    )
    color_range: Literal["unit", "data"] | None = Field(
        title=_LOOK, default=None, description="the same as range"
    )
    output: str | None = Field(
        title=_OUTPUT,
        default=None,
        min_length=1,
        description="a .png, .svg or .pdf file (default: show a window)",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("run", "bucket_csv", "component_csv") if getattr(self, name)]
        if len(given) != 1:
            extra = ", not both" if given else ""
            raise ValueError(f"bucket_csv: give one table, or the folder of a run{extra}")
        if self.color_by_layer and self.color_trend:
            raise ValueError("color_by_layer: cannot be used together with color_trend; choose one")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options of the figure."""
        found = self.given()
        if self.color_by_layer or self.color_trend:
            found["color"] = "layer" if self.color_by_layer else "trend"
        if self.color_range is not None:
            found["range"] = self.color_range
        return found
