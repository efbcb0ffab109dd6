"""RunnerConfig: every setting of the analysis, declared once with its check and its help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_dump.limits import MOST_HEADS, MOST_LAYERS
from qk_toolkit.cpus import available_cpus
from qk_toolkit.settings import Indices, settings_from, validated

QueryModel = Literal["positional", "full", "diagonal"]
PairSampling = Literal["bucket", "local"]


# headings of the help, in which a field stands by its title
_DATA = "which data"
_HUB = "from the Hub, when no folder is given"
_HEADS = "which heads"
_METHOD = "how to analyse"
_RESULTS = "where results go"
_RUN = "how to run"


class RunnerConfig(BaseModel):
    """Settings of one analysis. `model_dump()` gives them back as plain values."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    dataset_local_root: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="folder of a dump, or hf://datasets/owner/name@branch",
    )
    model_dir: str | None = Field(
        title=_DATA,
        default=None,
        description="folder of the model below the root, when the root holds several",
    )
    dataset_name: str = Field(
        title=_HUB, default="viktoroo/sniffed-qk", description="dataset on the Hugging Face Hub"
    )
    dataset_revision: str | None = Field(
        title=_HUB,
        default=None,
        description="branch, tag or commit of that dataset; one branch per model",
    )
    dataset_cache_dir: str | None = Field(
        title=_HUB,
        default=None,
        description="where downloads are kept (default: the Hub client's cache)",
    )
    download_max_workers: int | None = Field(
        title=_HUB, default=None, ge=1, description="parallel downloads"
    )
    num_layers: int | None = Field(
        title=_HEADS,
        default=None,
        ge=1,
        le=MOST_LAYERS,
        description="layers to scan (default: as the dump tells)",
    )
    num_q_heads: int | None = Field(
        title=_HEADS,
        default=None,
        ge=1,
        le=MOST_HEADS,
        description="query heads per layer (default: as the dump tells)",
    )
    num_k_heads: int | None = Field(
        title=_HEADS,
        default=None,
        ge=1,
        le=MOST_HEADS,
        description="key heads per layer (default: as the dump tells)",
    )
    layers: Indices | None = Field(
        title=_HEADS, default=None, description="layers to analyse, such as 0-3,8 (default: all)"
    )
    heads: Indices | None = Field(
        title=_HEADS,
        default=None,
        description="query heads to analyse in every layer (default: all)",
    )
    single_example: bool = Field(
        title=_METHOD,
        default=False,
        description="take the keys of a head as one sequence, whatever their example_id",
    )
    max_tokens_per_head: int = Field(
        title=_METHOD,
        default=50_000,
        ge=3,
        description="rows taken from each file, at random when there are more",
    )
    query_model: QueryModel = Field(
        title=_METHOD,
        default="positional",
        description="Gaussian of a query bucket: drift from the regression and covariance from "
        "the bucket (positional), all from the bucket (full), or its variances alone (diagonal)",
    )
    pair_sampling: PairSampling = Field(
        title=_METHOD,
        default="bucket",
        description="keys compared: pairs inside one bucket, or neighbours anywhere (local)",
    )
    num_pairs_per_bucket: int = Field(
        title=_METHOD, default=256, ge=1, le=1_000_000, description="key pairs drawn per key bucket"
    )
    max_rel_dist: float = Field(
        title=_METHOD,
        default=0.05,
        ge=0,
        le=1,
        description="reach of a local pair, as a share of the sequence",
    )
    normality_max_dims: int = Field(
        title=_METHOD, default=64, ge=1, description="dimensions given a Kolmogorov-Smirnov test"
    )
    p_alpha: float = Field(
        title=_METHOD, default=0.01, gt=0, lt=1, description="significance level of that test"
    )
    seed: int = Field(title=_METHOD, default=0, ge=0, description="seed of every random choice")
    output_dir: str | None = Field(
        title=_RESULTS,
        default=None,
        min_length=1,
        description="folder of the run (default: results/<name of the dump>)",
    )
    output_csv: str = Field(
        title=_RESULTS,
        default="head_metrics.csv",
        description="table of heads; a bare name lies in output_dir",
    )
    bucket_csv: str = Field(
        title=_RESULTS,
        default="head_bucket_plasticity.csv",
        description="table of bucket cells, likewise",
    )
    component_csv: str = Field(
        title=_RESULTS,
        default="head_component_weights.csv",
        description="table of component weights, likewise",
    )
    max_workers: int | None = Field(
        title=_RUN,
        default=None,
        ge=1,
        description="worker processes (default: one per CPU it may use)",
    )
    overwrite: bool = Field(
        title=_RESULTS,
        default=False,
        description="start anew; what an earlier run finished in this folder is discarded",
    )
    dry_run: bool = Field(
        title=_RUN, default=False, description="print what would be done, then stop"
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> RunnerConfig:
        if self.num_q_heads and self.num_k_heads and self.num_q_heads % self.num_k_heads:
            raise ValueError(
                f"num_q_heads: {self.num_q_heads} is not a multiple of num_k_heads "
                f"{self.num_k_heads}, so query heads cannot be shared out among key heads"
            )
        return self

    @property
    def workers(self) -> int:
        """Worker processes to start: as asked, or one per CPU this process may use."""
        return self.max_workers or available_cpus()


ANALYSIS_FIELDS = (
    "single_example",
    "max_tokens_per_head",
    "query_model",
    "pair_sampling",
    "num_pairs_per_bucket",
    "max_rel_dist",
    "normality_max_dims",
    "p_alpha",
    "seed",
)
"""Fields that decide a head's numbers; a recorded head is reused only when all of them agree."""


def make_config(values: dict[str, Any] | None = None, /, **fields: Any) -> RunnerConfig:
    """A checked config from keyword arguments, with the same messages as a YAML file's."""
    return validated(RunnerConfig, {**(values or {}), **fields})


def load_config(path: str | os.PathLike[str], flags: dict[str, str] | None = None) -> RunnerConfig:
    """A checked config from a YAML file, flat or under `analysis:`, overridden by flags."""
    return settings_from(RunnerConfig, yaml_path=Path(path), section="analysis", flags=flags)
