"""The texts of a dump: groups, lengths, and the bins of positions that follow from them.

They come from `examples.parquet` and the sampler. They are read once per run, so that all heads of
the run, and all of its shards, have the same groups and the same bins.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.read.bins import Bins, ExpectedQueries, bin_size, grid, texts_at
from qk_dump.decoding import plain_numbers
from qk_dump.head_counts import texts_of_heads, texts_of_layers
from qk_dump.heads import EXAMPLES_FILE, MOST_POSITIONS, HeadId
from qk_dump.layout import Dump
from qk_dump.positions import keep_probabilities
from qk_dump.reader import HeadRows, read_head
from qk_dump.remote import DumpPath
from qk_dump.side_files import read_examples
from qk_toolkit.arrays import Array, Ints
from qk_toolkit.errors import DumpError, ToolkitError
from qk_toolkit.formatting import count, index_ranges

_MOST_RANGES = 10  # of ids in a message


def text_groups(example_id: Ints, ids: Ints | None) -> Ints:
    """(n,) group of the text of every row: the rank of its id among `ids`, modulo 16.

    It is the same for all heads of a dump. Without `ids`, the id is used as rank.
    """
    rank = example_id if ids is None else np.searchsorted(ids, example_id)
    return np.asarray(rank % GROUPS, np.int64)


@dataclass(frozen=True)
class DumpTexts:
    """The texts of a dump, as all heads of a run use them."""

    ids: Ints | None = None  # (texts,) ascending; None: not known, the id is used as rank
    listed: dict[str, Any] | None = None  # number of the texts of the run, and a hash of them
    problem: str | None = None  # why `examples.parquet` is not used
    bins: Bins | None = None  # of positions, as all heads of the run use them
    lengths: Ints | None = None  # (texts,) tokens; None: not known

    @property
    def count(self) -> int:
        """Number of texts; 0 if it is not known."""
        return 0 if self.ids is None else len(self.ids)

    @cached_property
    def digest(self) -> str:
        """A hash of ids and bins. Heads with the same hash have the same groups and bins."""
        ids = [self.as_message()[name] for name in ("ids", "bins")]
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()

    @property
    def as_input(self) -> dict[str, Any] | None:
        """The texts as run.json describes them; None if they are not known."""
        if self.listed is None or self.problem is None:
            return self.listed
        return {**self.listed, "problem": self.problem}

    def group_of(self, example_id: Ints) -> Ints:
        """(n,) group of the text of every row."""
        return text_groups(example_id, self.ids)

    def require(self, example_id: Ints, position: Array, folder: DumpPath) -> None:
        """Raise a `DumpError` for a row of a head that is of no text, or beyond the end of one."""
        if self.ids is None:
            return
        unknown = example_id[~np.isin(example_id, self.ids)]
        if len(unknown):
            source, remedy = f"in {EXAMPLES_FILE}", "Capture or download the head again."
            if self.problem is not None:
                source = "found when the run began"
                remedy = "If the head was repaired since then, analyse all heads again."
            raise DumpError(
                f"{folder}: has rows of text {unknown.min()}, which is not one of the "
                f"{count(len(self.ids), 'text')} {source}. {remedy}"
            )
        if self.lengths is None:
            return
        place = np.searchsorted(self.ids, example_id)  # (n,)
        wrong = position >= self.lengths[place]
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DumpError(
                f"{folder}: has a row at position {position[row]:.0f} of text {example_id[row]}, "
                f"which has {count(int(self.lengths[place[row]]), 'token')} in {EXAMPLES_FILE}. "
                "Copy the files of one capture, or capture or download the head again."
            )

    def as_message(self) -> dict[str, Any]:
        """The texts as values for JSON."""
        arrays = {"ids": self.ids, "lengths": self.lengths}
        bins = None if self.bins is None else [self.bins.size, self.bins.context]
        lists = {name: None if one is None else one.tolist() for name, one in arrays.items()}
        return {**lists, "listed": self.listed, "problem": self.problem, "bins": bins}

    @classmethod
    def of_message(cls, content: dict[str, Any]) -> Self:
        """The texts from values for JSON."""
        ids, lengths = (
            None if content[name] is None else np.array(content[name], np.int64)
            for name in ("ids", "lengths")
        )
        bins = None if content["bins"] is None else Bins(*content["bins"])
        return cls(ids, content["listed"], content["problem"], bins, lengths)


UNKNOWN_TEXTS = DumpTexts()
"""The texts of a dump without `examples.parquet`."""


@dataclass(frozen=True)
class TextList:
    """The rows of `examples.parquet`, by id."""

    ids: Ints  # (texts,) ascending
    originals: list[Any] | None  # ids in the dataset; None: not known
    lengths: Ints | None  # (texts,) tokens; None: not known

    @classmethod
    def of(cls, dump: Dump) -> tuple[Self | None, str | None]:
        """The list of a dump, or the reason why it cannot be used; neither without the file."""
        path = dump.path / EXAMPLES_FILE
        try:
            table = read_examples(dump.path, dump.capture_id)
        except DumpError as error:
            return None, str(error).partition(". Capture")[0]
        if table is None:
            return None, None
        ids = _integers(table, "example_id")
        if ids is None:
            return None, f"{path}: has no column 'example_id' of integers without a null"
        if ids.min(initial=0) < 0:
            return None, f"{path}: has a negative example_id"
        ids, first = np.unique(ids, return_index=True)
        lengths, originals = _integers(table, "num_tokens"), None
        if table.schema.names.count("original_id") == 1:
            originals = table.column("original_id").take(pa.array(first)).to_pylist()
        return cls(ids, originals, None if lengths is None else lengths[first]), None

    def summary(self) -> dict[str, Any] | None:
        """Number of the texts, and a hash of their original ids and groups.

        Two runs with the same hash use the same texts, so that the differences between their heads
        can be computed text by text. The hash is None if an original id is missing. None without
        the column.
        """
        originals = self.originals
        if originals is None:
            return None
        if not originals or None in originals:
            return {"count": len(originals), "digest": None}
        groups = text_groups(self.ids, self.ids)
        pairs = sorted(
            [str(one), group] for one, group in zip(originals, groups.tolist(), strict=True)
        )
        digest = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
        return {"count": len(pairs), "digest": digest}

    @property
    def usable_lengths(self) -> Ints | None:
        """(texts,) tokens of the texts; None if they are not known, or are none of a text."""
        if self.lengths is None or not len(self.ids):
            return None
        return self.lengths if 1 <= self.lengths.max() <= MOST_POSITIONS else None


def run_texts(
    dump: Dump,
    layers: Iterable[int],
    config: RunnerConfig,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> DumpTexts:
    """The texts and bins of a dump for a run."""
    listed, problem = TextList.of(dump)
    if config.single_example:
        texts = DumpTexts(listed=None if listed is None else listed.summary())
    else:
        texts = texts_of_dump(dump, layers, found=(listed, problem), show=show)
    lengths = None if listed is None else listed.usable_lengths
    return replace(texts, bins=bins_of_dump(dump, config, lengths))


def bins_of_dump(dump: Dump, config: RunnerConfig, lengths: Ints | None) -> Bins | None:
    """The bins of all heads of a run. They do not depend on the heads that are analysed.

    The lengths of texts are in `examples.parquet`, and the sampler is in `dump.json`. If one of
    them is missing, the rows of the first query head are used; None if no query head can be read.
    """
    rows = None
    if lengths is None or not _sampler_is_known(dump):
        rows = _first_queries(dump, config)
        if rows is None:
            return None
    if lengths is None:
        assert rows is not None
        context = math.floor(rows.position_max) + 1
    else:
        context = int(lengths.max())
    if config.bin_size != "auto":
        return Bins(config.bin_size, context)
    if rows is None:
        assert lengths is not None
        expected = _expected(dump, lengths, context, config)
    else:
        expected = ExpectedQueries(rows.position, np.ones(len(rows)))
    return Bins(bin_size(context, expected), context)


def _sampler_is_known(dump: Dump) -> bool:
    return keep_probabilities(dump.manifest, "q", np.zeros(0)).values is not None


def _expected(dump: Dump, lengths: Ints, context: int, config: RunnerConfig) -> ExpectedQueries:
    """Expected numbers of queries of a head, from the lengths of texts and the sampler."""
    positions, step = grid(context)
    rate = keep_probabilities(dump.manifest, "q", positions).values  # (n,)
    assert rate is not None
    number = rate * texts_at(lengths, positions) * step
    number *= min(1.0, config.max_tokens_per_head / max(1.0, float(number.sum())))
    return ExpectedQueries(positions.astype(np.float64), number)


def _first_queries(dump: Dump, config: RunnerConfig) -> HeadRows | None:
    """The queries of the first head that can be read."""
    for layer, head in dump.query_heads:
        try:
            rows = read_head(
                dump.require_files(HeadId(layer, head, "q")),
                max_rows=config.max_tokens_per_head,
                seed=config.seed,
                examples=False,
                vectors=False,
            )
        except ToolkitError:
            continue  # the analysis of this head gives the reason
        return rows
    return None


def texts_of_dump(
    dump: Dump,
    layers: Iterable[int],
    *,
    found: tuple[TextList | None, str | None] | None = None,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> DumpTexts:
    """The texts of a dump, for the heads of some layers. `found` is `TextList.of` the dump.

    One query head and one key head of each layer are compared with `examples.parquet`. If the file
    cannot be used, or does not name one of their texts, the texts are those that are found in the
    heads of the whole dump; `show` gets the number of heads that are read and of all heads. Without
    the file, the id of a text is used as its rank.
    """
    listed, problem = TextList.of(dump) if found is None else found
    if listed is None and problem is None:
        return UNKNOWN_TEXTS
    if listed is not None:
        unknown = np.setdiff1d(texts_of_layers(dump, layers), listed.ids)
        if not len(unknown):
            return DumpTexts(listed.ids, listed.summary(), lengths=listed.lengths)
        problem = f"{dump.path / EXAMPLES_FILE}: does not name {_ids_as_text(unknown)} of the dump"
    ids = texts_of_heads(dump, show)
    return DumpTexts(ids, {"count": len(ids), "digest": None}, problem)


def text_lengths(dump: Dump) -> Ints | None:
    """(texts,) tokens of the texts; None if `examples.parquet` does not have them."""
    listed, _ = TextList.of(dump)
    return None if listed is None else listed.usable_lengths


def _integers(table: pa.Table, name: str) -> Ints | None:
    """A column of integers without a null; None if there is none, or two."""
    if table.schema.names.count(name) != 1:
        return None
    column = table.column(name)
    if column.null_count or not pa.types.is_integer(column.type):
        return None
    return plain_numbers(column.combine_chunks()).astype(np.int64)


def _ids_as_text(ids: Ints) -> str:
    """`text 7`, or `9 texts (3-11)`."""
    if len(ids) == 1:
        return f"text {ids[0]}"
    ranges = index_ranges(ids.tolist()).split(",")
    more = ["…"] if len(ranges) > _MOST_RANGES else []
    shown = ", ".join([*ranges[:_MOST_RANGES], *more])
    return f"{len(ids):,} texts ({shown})"
