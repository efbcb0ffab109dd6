"""Settings of the figures, as flags and as lines of a YAML file."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_toolkit.settings import Indices

Shown = Literal["position", "bucket"]
Agg = Literal["mean", "median"]
ColorRange = Literal["unit", "data"]
BandMetric = Literal["variance_share", "norm_product", "q_concentration", "k_concentration"]

_DATA = "which data"
_LOOK = "appearance"


class _Source(BaseModel):
    run: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="folder of an analysis (its output_dir); the word --run can be omitted",
    )
    output: str | None = Field(
        title="output",
        default=None,
        min_length=1,
        description="a .png, .svg or .pdf file; its caption is written beside it as .txt "
        "(default: show a window)",
    )


class _Common(BaseModel):
    """Settings of one figure and of all figures."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    layers: Indices | None = Field(
        title=_DATA, default=None, description="layers to draw, such as 0-3,8 (default: all)"
    )
    layer_type: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="draw the layers of one type: full, sliding, chunked or another word of the "
        "column layer_type",
    )
    model_name: str | None = Field(
        title=_LOOK, default=None, description="name in the title (default: read from the run)"
    )
    title: str | None = Field(
        title=_LOOK, default=None, description='title of the figure; "" leaves it out'
    )
    footnote: str | None = Field(
        title=_LOOK,
        default=None,
        description='small text at the bottom (default: numbers of heads, intervals); "" leaves '
        "it out",
    )


class _Settings(_Common, _Source):
    """Settings of one figure."""


class _OfPlasticity(BaseModel):
    plasticity: Shown | None = Field(
        title=_DATA,
        default=None,
        description="plasticity at one position, or over a bucket (default: position, if the run "
        "has it)",
    )


class _OverContext(BaseModel):
    baselines: bool = Field(
        title=_LOOK,
        default=True,
        description="draw the baselines of the run, made by the verb baseline, as reference lines",
    )


class _CellSettings(_OfPlasticity, _Settings):
    bucket_csv: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="head_bin_plasticity.csv or head_bucket_plasticity.csv, instead of a run",
    )
    bucket_type: Literal["uniform", "log"] | None = Field(
        title=_DATA,
        default=None,
        description="division of positions into buckets (default: read from the run); with it, "
        "plasticity over a bucket is drawn",
    )
    bucket_min_size: int | None = Field(
        title=_DATA,
        default=None,
        ge=1,
        description="min_bucket_size of the capture; for uniform buckets, their size in tokens",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "bucket_csv")
        if self.plasticity == "position" and self.has_buckets:
            raise ValueError(
                "plasticity: bucket_type and bucket_min_size are of buckets, not of bins; leave "
                "them out, or give plasticity bucket"
            )
        return self

    @property
    def has_buckets(self) -> bool:
        """Whether the division into buckets is given."""
        return self.bucket_type is not None or self.bucket_min_size is not None


class PlasticityPlot(_OverContext, _CellSettings):
    """Plasticity over the context, one line per head."""

    color_by_layer: bool = Field(title=_LOOK, default=False, description="colour lines by layer")
    color_trend: bool = Field(
        title=_LOOK, default=False, description="colour lines by trend: rising, falling or neither"
    )
    trend_threshold: float = Field(
        title=_LOOK,
        default=0.5,
        ge=0,
        le=1,
        description="smallest rank correlation with position of a rising or falling head",
    )
    alpha: float | None = Field(
        title=_LOOK, default=None, gt=0, le=1, description="opacity of a line (default: automatic)"
    )
    line_width: float = Field(title=_LOOK, default=0.6, gt=0, description="line width in points")
    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")

    @model_validator(mode="after")
    def _one_colour(self) -> Self:
        if self.color_by_layer and self.color_trend:
            raise ValueError("color_by_layer: cannot be used together with color_trend; choose one")
        return self


class ProfilePlot(_OverContext, _CellSettings):
    """Plasticity over the context: the mean over heads, and the spread over heads."""


class HeatmapPlot(_CellSettings):
    """Plasticity by query position and key position."""

    agg: Agg = Field(title=_LOOK, default="mean", description="aggregation over heads")
    cmap: str = Field(title=_LOOK, default="viridis", description="colormap")
    color_range: ColorRange = Field(
        title=_LOOK,
        default="data",
        description="range of the colours: that of the drawn values (data), or 0 to 1 (unit)",
    )
    vmin: float | None = Field(
        title=_LOOK, default=None, description="value of the first colour; overrides color_range"
    )
    vmax: float | None = Field(
        title=_LOOK, default=None, description="value of the last colour; overrides color_range"
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        unit = self.color_range == "unit"
        low = 0.0 if unit and self.vmin is None else self.vmin
        require_order(low, 1.0 if unit and self.vmax is None else self.vmax)
        return self


class ComponentsPlot(_Settings):
    """Share of the linear position R² in each query dimension."""

    component_csv: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="head_component_weights.csv, instead of a run",
    )
    limit: int | None = Field(
        title=_LOOK, default=None, ge=1, description="number of largest dimensions (default: all)"
    )
    agg: Agg = Field(title=_LOOK, default="mean", description="aggregation over heads")
    ylabel: str | None = Field(title=_LOOK, default=None, description="label of the vertical axis")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "component_csv")
        return self


class _HeadSettings(_Settings):
    metrics_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_metrics.csv, instead of a run"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "metrics_csv")
        return self


class MapPlot(_HeadSettings):
    """One metric of every head, layer × head."""

    metric: str | None = Field(
        title=_LOOK,
        default=None,
        description="a column of head_metrics.csv (default: ap_aligned, or ap_overall if no head "
        "has it); drop: ap_aligned_drop",
    )
    cmap: str | None = Field(
        title=_LOOK, default=None, description="colormap (default: depends on the metric)"
    )
    vmin: float | None = Field(title=_LOOK, default=None, description="value of the first colour")
    vmax: float | None = Field(title=_LOOK, default=None, description="value of the last colour")
    fade: bool = Field(
        title=_LOOK,
        default=True,
        description="fade heads whose 95 % interval contains 0, in a map of drops",
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        require_order(self.vmin, self.vmax)
        return self


class PhasePlot(_HeadSettings):
    """Plasticity at one position against plasticity over a bin, one point per head."""

    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")


class PredictabilityPlot(_OfPlasticity, _HeadSettings):
    """Variance from position against plasticity, one point per head."""

    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")


class _OneHead(BaseModel):
    layer: int | None = Field(
        title=_DATA, default=None, ge=0, description="layer of one head (default: all heads)"
    )
    head: int | None = Field(title=_DATA, default=None, ge=0, description="query head in its layer")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.layer is None) != (self.head is None):
            raise ValueError("layer: give layer and head together, or neither")
        return self


class AttentionPlot(_OneHead, _Settings):
    """Attention by distance, of one head or as a mean over heads."""

    attention_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_attention.csv, instead of a run"
    )
    by_position: bool = Field(
        title=_LOOK,
        default=False,
        description="one line each for early, middle and late query buckets",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "attention_csv")
        return self


class _BandSettings(_Settings):
    band_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_bands.csv, instead of a run"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "band_csv")
        return self


class BandsPlot(_OneHead, _BandSettings):
    """Rotary bands of one head, or one metric of the bands of all heads."""

    metric: BandMetric = Field(
        title=_LOOK,
        default="variance_share",
        description="a column of head_bands.csv, for all heads",
    )
    cmap: str | None = Field(
        title=_LOOK, default=None, description="colormap (default: depends on the metric)"
    )


class FrequenciesPlot(_BandSettings):
    """Rotary phase against the share of fast rotary bands, one point per head."""

    limit: float | None = Field(
        title=_DATA,
        default=None,
        gt=0,
        description="wavelength in tokens below which a band is fast (default: size of a bin)",
    )
    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")


class KernelPlot(_Settings):
    """Mean logit by distance and the rotary kernel, of one head."""

    kernel_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_kernel.csv, instead of a run"
    )
    layer: int | None = Field(
        title=_DATA,
        default=None,
        ge=0,
        description="layer of the head (default: the head whose kernel varies most)",
    )
    head: int | None = Field(title=_DATA, default=None, ge=0, description="query head in its layer")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "kernel_csv")
        if (self.layer is None) != (self.head is None):
            raise ValueError("layer: give layer and head together, or neither")
        return self


class AttendedPlot(_HeadSettings):
    """Plasticity against attended plasticity at one position, one point per head."""

    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")


class RolesPlot(_Settings):
    """The role of every head, layer × head."""

    roles_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_roles.csv, instead of a run"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "roles_csv")
        return self


class ByRolePlot(_HeadSettings):
    """Plasticity at one position and rotary phase by role, one point per head."""


class KeyHeadsPlot(_Settings):
    """One value of every key head, layer × key head."""

    key_head_csv: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="key_head_metrics.csv, instead of a run",
    )
    metric: str = Field(
        title=_LOOK, default="static_error", description="a column of key_head_metrics.csv"
    )
    cmap: str | None = Field(title=_LOOK, default=None, description="colormap")
    vmin: float | None = Field(title=_LOOK, default=None, description="value of the first colour")
    vmax: float | None = Field(title=_LOOK, default=None, description="value of the last colour")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "key_head_csv")
        require_order(self.vmin, self.vmax)
        return self


class FidelityPlot(_Settings):
    """How well scores without a query rank keys, one point per key head."""

    fidelity_csv: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="head_fidelity.csv, instead of a run",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "fidelity_csv")
        return self


class DriftPlot(_Settings):
    """Drift of queries against drift of keys, before and after RoPE, one point per head."""

    drift_csv: str | None = Field(
        title=_DATA, default=None, min_length=1, description="head_drift.csv, instead of a run"
    )
    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "drift_csv")
        return self


class _AllSource(BaseModel):
    run: str = Field(title=_DATA, min_length=1, description="folder of an analysis")
    output_dir: str | None = Field(
        title="output",
        default=None,
        min_length=1,
        description="folder of the figures (default: RUN/figures)",
    )
    format: Literal["png", "svg", "pdf"] = Field(
        title="output", default="png", description="file format"
    )


class AllPlots(_Common, _AllSource):
    """All figures of a run."""


KINDS: dict[str, type[BaseModel]] = {
    "plasticity": PlasticityPlot,
    "heatmap": HeatmapPlot,
    "components": ComponentsPlot,
    "map": MapPlot,
    "profile": ProfilePlot,
    "phase": PhasePlot,
    "predictability": PredictabilityPlot,
    "attention": AttentionPlot,
    "attended": AttendedPlot,
    "bands": BandsPlot,
    "kernel": KernelPlot,
    "frequencies": FrequenciesPlot,
    "roles": RolesPlot,
    "by_role": ByRolePlot,
    "key_heads": KeyHeadsPlot,
    "fidelity": FidelityPlot,
    "drift": DriftPlot,
}


def _require_one(settings: _Settings, table: str) -> None:
    given = [name for name in ("run", table) if getattr(settings, name) is not None]
    if len(given) != 1:
        expected = f"{table}: give the folder of a run or {table}"
        raise ValueError(f"{expected}, not both" if given else expected)


def require_order(vmin: float | None, vmax: float | None) -> None:
    """Raise a `ValueError` unless the first colour is below the last, where both are given."""
    if vmin is not None and vmax is not None and vmin >= vmax:
        raise ValueError(f"vmin: must be below vmax, got {vmin} and {vmax}")
