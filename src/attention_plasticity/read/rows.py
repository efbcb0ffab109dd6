"""The queries and keys of a head as arrays: read, checked, bounded in size, scaled once.

Vectors are divided by a power of two, so that no value is larger than 1. This is exact. The weight
of a row is the inverse of the probability that its token was kept. So a weighted mean over rows
estimates the mean over all tokens, for every sampler.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.blocks import scale_exponent
from attention_plasticity.estimate.quantity import Unknown
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.read.layer import (
    NO_TEXTS,
    SINGLE_EXAMPLE,
    Layer,
    before_rope,
    in_attention,
    layer_facts,
)
from attention_plasticity.read.layout import require_size
from attention_plasticity.read.texts import DumpTexts, run_texts, text_groups
from qk_dump.checks import rules_of
from qk_dump.columns import (
    ATTENTION_COLUMNS,
    EXAMPLE,
    RECEIVED_COLUMNS,
    TOKEN_ID,
    VECTOR,
)
from qk_dump.heads import HeadId, Kind
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.positions import keep_probabilities
from qk_dump.reader import HeadRows, read_head, subsample
from qk_dump.remote import DumpPath
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import DumpError, HeadError

MIN_QUERIES = 3
_MOST_ROWS = 1 << 14
LARGEST = 1e15  # of a value; a vector with a larger one is damaged


@dataclass(frozen=True)
class WeightedRows:
    """The rows of a head. Texts are None if they are not known or not used."""

    rows: HeadRows  # vectors are divided by two to the power `exponent`
    exponent: int
    weight: Array  # (n,) tokens that each row stands for
    layer: Layer
    text: Ints | None  # (n,)
    group: Ints | None  # (n,) group of the text, for errors

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def position(self) -> Array:
        """(n,) positions."""
        return self.rows.position

    @cached_property
    def after(self) -> Vectors:
        """(n, d) float32: the vectors as they enter the attention."""
        turned = in_attention(self.rows.vectors, self.position, self.layer.rotation)
        return turned.astype(np.float32, copy=False)

    @cached_property
    def before(self) -> Vectors | None:
        """(n, d) float32: the same before RoPE; None if it cannot be undone."""
        turned = before_rope(self.rows.vectors, self.position, self.layer.rotation)
        return None if turned is None else turned.astype(np.float32, copy=False)

    @cached_property
    def evenly(self) -> Self:
        """At most 16,384 of the rows, at even steps of the file.

        They are enough for sums over rows: the error of such a sum comes from the texts.
        """
        kept = np.arange(0, len(self), -(-len(self) // _MOST_ROWS) or 1)
        if len(kept) == len(self):
            return self
        return replace(
            self,
            rows=self.rows[kept],
            weight=self.weight[kept],
            text=None if self.text is None else self.text[kept],
            group=None if self.group is None else self.group[kept],
        )

    @property
    def in_attention_problem(self) -> str | None:
        """Why it is not known how the vectors enter the attention; None if it is."""
        rotation = self.layer.rotation
        return rotation.problem if rotation.pre_rope else None


@dataclass(frozen=True)
class Keys(WeightedRows):
    """The keys of a head, read once for all query heads of its group."""

    text: Ints  # (n,)
    texts: DumpTexts  # of the whole run


@dataclass(frozen=True)
class Queries(WeightedRows):
    """The queries of a head."""

    window: int | None  # tokens
    visible: Visible | Unknown  # which keys they see
    no_errors: str  # why there are no standard errors, if the groups are None


def read_keys(
    dump: Dump,
    layer: int,
    k_head: int,
    config: RunnerConfig,
    texts: DumpTexts | None = None,
) -> Keys:
    """Read the keys of one head. In a run, `texts` are the texts of the run."""
    head = HeadId(layer, k_head, "k")
    texts = run_texts(dump, [layer], config) if texts is None else texts
    columns = [] if config.single_example else list(RECEIVED_COLUMNS)
    rows = _read(dump, head, config, texts, columns)
    if config.single_example:
        rows = rows.with_columns({EXAMPLE: np.zeros(len(rows), np.int64)})
    rows, exponent = scaled(rows)
    assert rows.example_id is not None
    return Keys(
        rows=rows,
        exponent=exponent,
        weight=token_weights(dump, "k", rows),
        layer=layer_facts(dump, layer, rows.width),
        text=rows.example_id,
        group=None if config.single_example else texts.group_of(rows.example_id),
        texts=texts,
    )


def read_queries(dump: Dump, layer: int, q_head: int, keys: Keys, config: RunnerConfig) -> Queries:
    """Read the queries of one head of the group of `keys`."""
    head = HeadId(layer, q_head, "q")
    rows = _read(dump, head, config, keys.texts, [*ATTENTION_COLUMNS, TOKEN_ID])
    folder = dump.folders[head]
    if len(rows) < MIN_QUERIES:
        raise HeadError(
            f"{folder}: has {len(rows)} queries; a regression on position needs {MIN_QUERIES} or "
            "more. Capture more tokens."
        )
    rows.require_same_capture(keys.rows, folder)
    if rows.width != keys.rows.width:
        raise DumpError(
            f"{folder}: queries have {rows.width} dimensions, their keys have {keys.rows.width}. "
            "Use files of one model."
        )
    rows, exponent = scaled(rows)
    window = common_window(rows, keys.rows, head.folder)
    text = rows.example_id
    known = text is not None and not config.single_example
    return Queries(
        rows=rows,
        exponent=exponent,
        weight=token_weights(dump, "q", rows),
        layer=keys.layer,
        text=np.zeros(len(rows), np.int64) + _only_text(keys) if config.single_example else text,
        group=keys.texts.group_of(text) if known and text is not None else None,
        window=window,
        visible=keys.layer.visible(window),
        no_errors=SINGLE_EXAMPLE if config.single_example else NO_TEXTS,
    )


def read_repeated(dump: Dump, layer: int, q_head: int) -> Queries | None:
    """The queries of a head in the dump of repeated tokens; None without one.

    Their vectors are not scaled: only the attention columns are used.
    """
    repeated, head = dump.repeated, HeadId(layer, q_head, "q")
    if repeated is None or head not in repeated.folders:
        return None
    rows = read_head(
        repeated.require_files(head),
        max_rows=RunnerConfig().max_tokens_per_head,
        examples=True,
        columns=ATTENTION_COLUMNS,
        rules=rules_of(repeated, head),
    )
    text = rows.example_id
    assert text is not None
    facts = layer_facts(repeated, layer, rows.width)
    return Queries(
        rows=rows,
        exponent=0,
        weight=token_weights(repeated, "q", rows),
        layer=facts,
        text=text,
        group=text_groups(text, np.unique(text)),
        window=rows.window,
        visible=facts.visible(rows.window),
        no_errors="",
    )


def _only_text(keys: Keys) -> int:
    """The text of all keys of a head with `single_example`."""
    return int(keys.text[0])


def common_window(queries: HeadRows, keys: HeadRows, name: str) -> int | None:
    """The sliding window of a head. Raises a `DumpError` if queries and keys contradict."""
    if not (queries.window_recorded and keys.window_recorded):
        return queries.window if queries.window_recorded else keys.window
    if queries.window != keys.window:
        raise DumpError(
            f"{name}: mixes sliding_window values: queries have "
            f"{queries.window or 'null'}, keys have {keys.window or 'null'}"
        )
    return queries.window


def scaled(rows: HeadRows) -> tuple[HeadRows, int]:
    """The rows with vectors divided by a power of two, in place, and its exponent."""
    X = rows.vectors
    exponent = scale_exponent(X)
    if exponent < -100 and X.dtype != np.float64:
        X = X.astype(np.float64)  # small numbers have few digits in float32
    return rows.with_columns({VECTOR: np.ldexp(X, -exponent, out=X)}), exponent


def require_values(rows: HeadRows, folder: DumpPath, config: RunnerConfig) -> None:
    """Raise a `DumpError` for a value that no model has. All rows that were read must be there."""
    X = rows.vectors
    if max(float(X.max(initial=0.0)), -float(X.min(initial=0.0))) <= LARGEST:
        return
    row = int(np.argmax(np.abs(X).max(axis=1)))
    total = round(len(rows) / rows.subsampled)
    kept = subsample(total, config.max_tokens_per_head, config.seed)
    raise DumpError(
        f"{folder}: row {row if kept is None else kept[row]} has a value of "
        f"{np.abs(X[row]).max():.3g}; values above {LARGEST:g} are damaged. Capture the head again."
    )


def _read(
    dump: Dump, head: HeadId, config: RunnerConfig, texts: DumpTexts, columns: Collection[str]
) -> HeadRows:
    rows = read_head(
        dump.require_files(head),
        max_rows=config.max_tokens_per_head,
        seed=config.seed,
        examples=not config.single_example and (head.kind == "k" or "if present"),
        columns=columns,
        rules=rules_of(dump, head),
    )
    require_values(rows, dump.folders[head], config)
    if rows.example_id is not None and not config.single_example:
        texts.require(rows.example_id, rows.position, dump.folders[head])
    require_size(head, rows.width, len(np.unique(rows.bucket)), config, dump.folders[head])
    return rows


def token_weights(dump: Dump, kind: Kind, rows: HeadRows) -> Array:
    """(n,) tokens that each query (`q`) or key (`k`) of a head stands for: 1/π.

    `dump.json` has the sampler of the capture. `max_tokens_per_head` keeps a further share of the
    rows, the same for every row. The weights are 1 if the sampler is not known.
    """
    found = keep_probabilities(dump.manifest, kind, rows.position)
    if found.values is None:
        return np.ones(len(rows))
    return np.asarray(1.0 / (found.values * rows.subsampled))


def why_no_weights(manifest: DumpManifest | None) -> str | None:
    """Why the rows of a dump have no weights; None if they have."""
    reasons = (keep_probabilities(manifest, kind, np.zeros(0)).reason for kind in ("q", "k"))
    return next((reason for reason in reasons if reason is not None), None)
