"""Settings of the figures: every field declared once, as flag and as line of a YAML file."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Agg = Literal["mean", "median"]

_DATA = "which data"
_LOOK = "how it looks"


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    run: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="folder of an analysis (its output_dir); may also stand without --run",
    )
    output: str | None = Field(
        title="where it goes",
        default=None,
        min_length=1,
        description="a .png, .svg or .pdf file (default: shown in a window)",
    )
    model_name: str | None = Field(
        title=_LOOK, default=None, description="name in the title (default: as the run tells)"
    )
    title: str | None = Field(title=_LOOK, default=None, description="another title")


class _CellSettings(_Settings):
    bucket_csv: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="head_bucket_plasticity.csv, instead of a run",
    )
    bucket_type: Literal["uniform", "log"] | None = Field(
        title=_DATA,
        default=None,
        description="how positions fall into buckets (default: as the run tells)",
    )
    bucket_min_size: int | None = Field(
        title=_DATA,
        default=None,
        ge=1,
        description="tokens of a uniform bucket, or the capture's min_bucket_size of log ones",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _require_one(self, "bucket_csv")
        return self


class PlasticityPlot(_CellSettings):
    """Plasticity over the context, one trace per head."""

    color_by_layer: bool = Field(title=_LOOK, default=False, description="colour traces by layer")
    color_trend: bool = Field(
        title=_LOOK, default=False, description="colour traces by rising, falling or neither"
    )
    trend_threshold: float = Field(
        title=_LOOK,
        default=0.5,
        ge=0,
        le=1,
        description="rank correlation with position from which a head rises or falls",
    )
    alpha: float | None = Field(
        title=_LOOK, default=None, gt=0, le=1, description="opacity of a trace (default: by number)"
    )
    line_width: float = Field(title=_LOOK, default=0.6, gt=0, description="points of a trace")
    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")

    @model_validator(mode="after")
    def _one_colour(self) -> Self:
        if self.color_by_layer and self.color_trend:
            raise ValueError("color_by_layer: cannot be used together with color_trend; choose one")
        return self


class HeatmapPlot(_CellSettings):
    """Plasticity by query position and key position."""

    agg: Agg = Field(title=_LOOK, default="mean", description="over heads")
    cmap: str = Field(title=_LOOK, default="viridis", description="colormap")
    vmin: float | None = Field(title=_LOOK, default=0.0, description="value of the first colour")
    vmax: float | None = Field(title=_LOOK, default=1.0, description="value of the last colour")

    @model_validator(mode="after")
    def _range(self) -> Self:
        _require_order(self.vmin, self.vmax)
        return self


class ComponentsPlot(_Settings):
    """Share of positional information per dimension."""

    component_csv: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="head_component_weights.csv, instead of a run",
    )
    limit: int | None = Field(
        title=_LOOK, default=None, ge=1, description="only the largest ones (default: all)"
    )
    agg: Agg = Field(title=_LOOK, default="mean", description="over heads")
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
    """One metric of every head, layer by head."""

    metric: str = Field(
        title=_LOOK, default="ap_overall", description="a column of head_metrics.csv"
    )
    cmap: str | None = Field(
        title=_LOOK, default=None, description="colormap (default: by the metric)"
    )
    vmin: float | None = Field(title=_LOOK, default=None, description="value of the first colour")
    vmax: float | None = Field(title=_LOOK, default=None, description="value of the last colour")

    @model_validator(mode="after")
    def _range(self) -> Self:
        _require_order(self.vmin, self.vmax)
        return self


class ProfilePlot(_HeadSettings):
    """Plasticity by fifths of the context, with the spread over heads."""


class PredictabilityPlot(_HeadSettings):
    """Variance from position against plasticity, a point per head."""

    cmap: str = Field(title=_LOOK, default="viridis", description="colormap of the layers")


class AllPlots(BaseModel):
    """Every figure of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field(title=_DATA, min_length=1, description="folder of an analysis")
    output_dir: str | None = Field(
        title="where they go",
        default=None,
        min_length=1,
        description="folder of the figures (default: figures, in the run's)",
    )
    format: Literal["png", "svg", "pdf"] = Field(
        title="where they go", default="png", description="kind of file"
    )


KINDS: dict[str, type[BaseModel]] = {
    "plasticity": PlasticityPlot,
    "heatmap": HeatmapPlot,
    "components": ComponentsPlot,
    "map": MapPlot,
    "profile": ProfilePlot,
    "predictability": PredictabilityPlot,
}


def _require_one(settings: _Settings, table: str) -> None:
    given = [name for name in ("run", table) if getattr(settings, name) is not None]
    if len(given) != 1:
        wanted = f"give a run's folder or {table}"
        raise ValueError(f"{table}: {wanted}, not both" if given else f"{table}: {wanted}")


def _require_order(vmin: float | None, vmax: float | None) -> None:
    if vmin is not None and vmax is not None and vmin >= vmax:
        raise ValueError(f"vmin: must be below vmax, got {vmin} and {vmax}")
