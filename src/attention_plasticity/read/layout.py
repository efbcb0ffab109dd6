"""Number of layers and heads of a dump, and the pairing of query heads and key heads.

Limits on the size of a head, for the analysis and for the dry run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from attention_plasticity.config import RunnerConfig
from qk_dump.heads import HeadId, Kind, require_head_count, require_multiple
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME, DumpManifest
from qk_dump.remote import DumpPath
from qk_toolkit.errors import ConfigError, HeadError

MOST_BUCKETS = 1024
MOST_COVARIANCES = 1 << 28  # numbers in the covariances of all query buckets: 2 GiB, stored twice
MOST_PAIRS = 1 << 25  # key pairs of a head: about 3 GiB of indices

_WIDER_BUCKETS = "Capture with a larger min_bucket_size."


@dataclass(frozen=True)
class HeadLayout:
    """Number of layers and heads, and the source of these numbers."""

    num_layers: int
    num_q_heads: int
    num_k_heads: int
    source: str
    guessed: bool = False  # counted from the folders; wrong if heads are missing

    def __str__(self) -> str:
        return (
            f"{self.num_layers} layers, {self.num_q_heads} query and {self.num_k_heads} key heads "
            f"per layer ({self.source})"
        )

    def key_head_of(self, q_head: int) -> int:
        """The key head of a query head (grouped-query attention)."""
        return q_head // (self.num_q_heads // self.num_k_heads)


def head_layout(dump: Dump, config: RunnerConfig) -> HeadLayout:
    """Number of layers and heads, from the config, else `dump.json`, else the folders."""
    manifest = dump.manifest or DumpManifest()
    num_q_heads = _agreed("num_q_heads", config.num_q_heads, manifest.num_q_heads, dump)
    num_k_heads = _agreed("num_k_heads", config.num_k_heads, manifest.num_k_heads, dump)
    guessed = num_q_heads is None or num_k_heads is None
    if num_q_heads is None or num_k_heads is None:
        counted = _count_heads(dump)
        num_q_heads, num_k_heads = num_q_heads or counted[0], num_k_heads or counted[1]
        source = "counted from the folders; set num_q_heads and num_k_heads if that is wrong"
    elif config.num_q_heads and config.num_k_heads:
        source = "from the config"
    else:
        source = "from dump.json"
    try:
        require_multiple(num_q_heads, num_k_heads)
    except ValueError as error:
        raise ConfigError(f"{error} ({source})") from error
    _refuse_higher_heads(dump.query_heads, num_q_heads, dump, "q", "num_q_heads")
    _refuse_higher_heads(dump.key_heads, num_k_heads, dump, "k", "num_k_heads")
    layers_found = max(head.layer for head in dump.folders) + 1
    num_layers = _agreed("num_layers", config.num_layers, manifest.num_layers, dump)
    num_layers = config.num_layers or max(num_layers or 0, layers_found)
    try:
        require_head_count(num_layers, num_q_heads)
    except ValueError as error:
        raise ConfigError(f"{dump.path}: {error}. Set num_layers of the model.") from error
    return HeadLayout(num_layers, num_q_heads, num_k_heads, source, guessed)


def _agreed(field: str, configured: int | None, recorded: int | None, dump: Dump) -> int | None:
    if configured and recorded and configured != recorded:
        raise ConfigError(
            f"{field}: is {configured} in the config, but {recorded} in "
            f"{dump.path / MANIFEST_NAME}. Remove {field} from the config."
        )
    return configured or recorded


def _refuse_higher_heads(
    heads: list[tuple[int, int]], size: int, dump: Dump, kind: Kind, field: str
) -> None:
    for layer, head in heads:
        if head >= size:
            raise ConfigError(
                f"{field}: {size}, but the dump holds {HeadId(layer, head, kind).folder} "
                f"({dump.path}); queries would be paired with the wrong keys. "
                "Set the number of heads of the model."
            )


def _count_heads(dump: Dump) -> tuple[int, int]:
    """Heads per layer, counted from the folders. Every head must be in the dump."""
    counts = []
    for heads, kind in ((dump.query_heads, "query"), (dump.key_heads, "key")):
        by_layer = [
            [head for _, head in members] for _, members in groupby(heads, key=lambda item: item[0])
        ]
        if not by_layer:
            raise ConfigError(f"{dump.path}: holds no {kind} heads")
        if any(layer != list(range(len(by_layer[0]))) for layer in by_layer):
            raise ConfigError(
                f"{dump.path}: holds only some {kind} heads and no dump.json, so queries cannot be "
                "paired with keys safely. Set num_q_heads and num_k_heads of the model."
            )
        counts.append(len(by_layer[0]))
    return counts[0], counts[1]


def require_size(
    head: HeadId, width: int, buckets: int, config: RunnerConfig, folder: DumpPath
) -> None:
    """Raise a `HeadError` if cells, covariances or key pairs of a head need too much memory."""
    pairs = config.num_pairs_per_bucket * buckets
    if buckets > MOST_BUCKETS:
        raise HeadError(
            f"{folder}: holds {buckets:,} buckets; a head may have at most {MOST_BUCKETS:,}. "
            f"{_WIDER_BUCKETS}"
        )
    if head.kind == "q" and buckets * width**2 > MOST_COVARIANCES:
        raise HeadError(
            f"{folder}: {buckets:,} query buckets of {width:,} dimensions need "
            f"{16 * buckets * width**2 / 2**30:.0f} GiB for their covariances; the limit is "
            f"{MOST_COVARIANCES >> 26} GiB. {_WIDER_BUCKETS}"
        )
    if head.kind == "k" and pairs > MOST_PAIRS:
        raise HeadError(
            f"{folder}: num_pairs_per_bucket {config.num_pairs_per_bucket:,} gives {pairs:,} pairs "
            f"in {buckets:,} key buckets; a head may have at most {MOST_PAIRS:,}. Lower "
            "num_pairs_per_bucket."
        )
