"""RunnerConfig: every setting of the analysis with its check and its help text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attention_plasticity.metrics import TableKind
from attention_plasticity.roles import check_thresholds
from qk_dump.heads import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, require_multiple
from qk_dump.hub.place import is_hub_path, parse_place
from qk_toolkit.cpus import available_cpus
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import Indices, settings_from, validated
from qk_toolkit.urls import is_remote, refuse_password, require_usable

QueryModel = Literal["positional", "full", "diagonal"]
Engine = Literal["local", "ray"]
PairSampling = Literal["bucket", "local", "context"]

# Headings of the help. The title of a field is its heading.
_DATA = "which data"
_HUB = "data from the Hub, if no folder is given"
_HEADS = "which heads"
_METHOD = "how to analyse"
_RESULTS = "where results go"
_RUN = "how to run"


class RunnerConfig(BaseModel):
    """Settings of one analysis.

    Examples:
        >>> from attention_plasticity import RunnerConfig
        >>> config = RunnerConfig(pair_sampling="context", layers=[0, 1])
        >>> config.pair_sampling, config.seed
        ('context', 0)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    rare_flags: ClassVar[tuple[str, ...]] = (
        *("model_dir", "rotary", "dataset_name", "dataset_revision", "dataset_cache_dir"),
        *("download_max_workers", "num_layers", "num_q_heads", "num_k_heads"),
        *("max_rel_dist", "normality_max_dims", "p_alpha", "role_thresholds"),
        *("dataset_local_root", "output_dir"),  # given as places
        *("ray_address", "output_csv", "bucket_csv", "component_csv", "single_example"),
        *("distant_from", "num_pairs_per_bucket", "query_model", "original_columns"),
    )

    dataset_local_root: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="folder of a dump, s3://bucket/dump or another URL of fsspec, or "
        "hf://datasets/owner/name@branch",
    )
    model_dir: str | None = Field(
        title=_DATA,
        default=None,
        description="subfolder of the model, if the folder contains several models",
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
        description="folder for downloads (default: the cache of the Hub client)",
    )
    download_max_workers: int | None = Field(
        title=_HUB, default=None, ge=1, description="number of parallel downloads"
    )
    rotary: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="file with the rotary records of the dump, made by add-rotary (default: those "
        "in dump.json)",
    )
    repeated: str | None = Field(
        title=_DATA,
        default=None,
        min_length=1,
        description="dump of synthetic:repeated of the same model, for the induction, duplicate "
        "and previous-token scores of the table of roles",
    )
    num_layers: int | None = Field(
        title=_HEADS,
        default=None,
        ge=1,
        le=MOST_LAYERS,
        description="number of layers (default: read from the dump)",
    )
    num_q_heads: int | None = Field(
        title=_HEADS,
        default=None,
        ge=1,
        le=MOST_HEADS,
        description="query heads per layer (default: read from the dump)",
    )
    num_k_heads: int | None = Field(
        title=_HEADS,
        default=None,
        ge=1,
        le=MOST_HEADS,
        description="key heads per layer (default: read from the dump)",
    )
    layers: Indices | None = Field(
        title=_HEADS,
        default=None,
        description="layers to analyse, such as 0-3,8 (default: all); the tables have all heads "
        "that any command has analysed in output_dir with the same settings",
    )
    heads: Indices | None = Field(
        title=_HEADS,
        default=None,
        description="query heads to analyse in every layer (default: all)",
    )
    single_example: bool = Field(
        title=_METHOD,
        default=False,
        description="treat all keys of a head as one sequence and ignore example_id",
    )
    max_tokens_per_head: int = Field(
        title=_METHOD,
        default=50_000,
        ge=3,
        description="largest number of rows per head; larger heads are sampled at random",
    )
    query_model: QueryModel = Field(
        title=_METHOD,
        default="positional",
        description="Gaussian model of a query bucket: mean along the drift from the regression, "
        "the rest from the bucket (positional); mean and covariance of the bucket (full); mean and "
        "diagonal covariance of the bucket (diagonal)",
    )
    pair_sampling: PairSampling = Field(
        title=_METHOD,
        default="bucket",
        description="key pairs to compare: keys of one bucket (bucket), nearby keys (local), any "
        "two earlier keys of a text (context)",
    )
    num_pairs_per_bucket: int = Field(
        title=_METHOD,
        default=256,
        ge=1,
        le=1_000_000,
        description="key pairs drawn per key bucket, for plasticity over a bucket",
    )
    num_pairs_per_bin: int = Field(
        title=_METHOD,
        default=256,
        ge=1,
        le=1_000_000,
        description="key pairs per bin of queries, for RoPE-aligned plasticity; twice as many "
        "in the first fifth",
    )
    bin_size: Annotated[int, Field(ge=1, le=MOST_POSITIONS)] | Literal["auto"] = Field(
        title=_METHOD,
        default="auto",
        description="tokens per bin, for RoPE-aligned plasticity; auto: about a sixteenth of "
        "the longest text, or more if bins would hold few queries",
    )
    max_rel_dist: float = Field(
        title=_METHOD,
        default=0.05,
        ge=0,
        le=1,
        description="largest distance of a local pair, as a fraction of the sequence",
    )
    normality_max_dims: int = Field(
        title=_METHOD, default=64, ge=1, description="dimensions in the Kolmogorov-Smirnov test"
    )
    p_alpha: float = Field(
        title=_METHOD, default=0.01, gt=0, lt=1, description="significance level of this test"
    )
    distant_from: int = Field(
        title=_METHOD,
        default=256,
        ge=1,
        le=1 << 22,
        description="attn_distant_mass and attn_far_mass are the attention at this distance or "
        "more, in tokens; a power of two",
    )
    role_thresholds: dict[str, float] = Field(
        title=_METHOD,
        default={},
        description="thresholds of roles in place of the defaults, such as "
        "{previous: 0.5, repeated_induction: 0.3}",
    )
    original_columns: bool = Field(
        title=_METHOD,
        default=True,
        description="the columns and tables of the original definition: plasticity over a bucket, "
        "regression on position; without them a head takes a quarter less time",
    )
    seed: int = Field(title=_METHOD, default=0, ge=0, description="seed of every random choice")
    output_dir: str | None = Field(
        title=_RESULTS,
        default=None,
        min_length=1,
        description="folder of the run, or a URL such as s3://bucket/run (default: "
        "results/<name of the dump>)",
    )
    output_csv: str | None = Field(
        title=_RESULTS,
        default=None,
        min_length=1,
        description="path of head_metrics.csv; without output_dir, its folder is that of the run",
    )
    bucket_csv: str | None = Field(
        title=_RESULTS,
        default=None,
        min_length=1,
        description="path of head_bucket_plasticity.csv; without output_dir and output_csv, its "
        "folder is that of the run",
    )
    component_csv: str | None = Field(
        title=_RESULTS,
        default=None,
        min_length=1,
        description="path of head_component_weights.csv; without the three fields before, its "
        "folder is that of the run",
    )
    engine: Engine = Field(
        title=_RUN,
        default="local",
        description="where heads are computed: processes of this machine (local), or a Ray cluster "
        "(ray)",
    )
    ray_address: str | None = Field(
        title=_RUN,
        default=None,
        min_length=1,
        description="address of a running Ray cluster, such as auto (default: a cluster of this "
        "machine for this run)",
    )
    max_workers: int | None = Field(
        title=_RUN,
        default=None,
        ge=1,
        description="worker processes (default: one per available CPU)",
    )
    dry_run: bool = Field(title=_RUN, default=False, description="print the plan and stop")

    @model_validator(mode="after")
    def _fields_fit_together(self) -> RunnerConfig:
        check_thresholds(self.role_thresholds)
        require_multiple(self.num_q_heads, self.num_k_heads)
        if self.distant_from.bit_count() != 1:
            raise ValueError(f"distant_from: expected a power of two, got {self.distant_from}")
        if self.ray_address is not None and self.engine != "ray":
            raise ValueError(
                f"ray_address: works with engine: ray only, got engine: {self.engine}; set engine "
                "to ray, or leave ray_address out"
            )
        for value in vars(self).values():
            if isinstance(value, str) and is_remote(value):
                refuse_password(value)
        for name in TABLE_PATHS:
            if is_remote(getattr(self, name) or ""):
                raise ValueError(
                    f"{name}: expected a path on this machine, got {getattr(self, name)}; "
                    "output_dir can be a URL"
                )
            if not self.original_columns and name != "output_csv" and getattr(self, name):
                raise ValueError(f"{name}: original_columns is false, so there is no such table")
        if self.output_url is not None and is_hub_path(self.output_url):
            parse_place(self.output_url)
        return self

    @property
    def output_url(self) -> str | None:
        """The URL for the results; None if they are written to a folder."""
        given = self.output_dir
        return require_usable(given) if given is not None and is_remote(given) else None

    @property
    def workers(self) -> int:
        """Number of worker processes; by default one per available CPU."""
        return self.max_workers or available_cpus()


TABLE_PATHS: dict[str, TableKind] = {
    "output_csv": "head_metrics",
    "bucket_csv": "bucket_plasticity",
    "component_csv": "component_weights",
}
"""Fields that are the path of a table, in the order in which they give the folder of the run."""


def _under(*titles: str) -> list[str]:
    """The fields under some headings of the help."""
    return [name for name, field in RunnerConfig.model_fields.items() if field.title in titles]


ANALYSIS_FIELDS = tuple(name for name in _under(_METHOD) if name != "role_thresholds")
"""Fields that change the results of a head. Recorded heads are reused only if all are equal."""
NOT_RECORDED = (
    *_under(_RESULTS, _RUN),
    *("layers", "heads", "dataset_cache_dir", "download_max_workers"),
)
"""Fields that do not describe the tables: what a command computes, and where."""
_OF_THE_HUB = ("dataset_name", "dataset_revision", "model_dir")
"""Fields of which each names a place on the Hub, with the default of `dataset_name`."""


def require_dump(config: RunnerConfig) -> None:
    """Raise a `ConfigError` if nothing says where the dump is."""
    if config.dataset_local_root is None and config.model_fields_set.isdisjoint(_OF_THE_HUB):
        raise ConfigError(
            "dataset_local_root: no dump is given. Type attention-plasticity analyze DUMP, where "
            "DUMP is a folder, s3://bucket/dump or hf://datasets/owner/name@branch; "
            "attention-plasticity demo analyses a dump that comes with the package"
        )


def make_config(values: dict[str, Any] | None = None, /, **fields: Any) -> RunnerConfig:
    """Make a checked config from keyword arguments.

    Examples:
        >>> from attention_plasticity import make_config
        >>> config = make_config(layers="0-3,8", query_model="full")
        >>> config.layers
        [0, 1, 2, 3, 8]
        >>> make_config(seed="first")
        Traceback (most recent call last):
        ...
        qk_toolkit.errors.ConfigError: seed: expected an integer of at least 0, got 'first'
    """
    return validated(RunnerConfig, {**(values or {}), **fields})


def load_config(path: str | os.PathLike[str], flags: dict[str, str] | None = None) -> RunnerConfig:
    """Read a config from a YAML file, flat or under `analysis:`. Flags override the file.

    Examples:
        >>> from pathlib import Path
        >>> from attention_plasticity import load_config
        >>> size = Path("settings.yaml").write_text("{layers: 0-3, seed: 7}")
        >>> config = load_config("settings.yaml", flags={"seed": "8"})
        >>> config.layers, config.seed
        ([0, 1, 2, 3], 8)
    """
    return settings_from(RunnerConfig, yaml_path=Path(path), section="analysis", flags=flags)
