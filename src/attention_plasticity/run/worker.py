"""The work of one task, and the main function of a worker process on this machine."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qk_toolkit.debugging import traceback_text
from qk_toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.measure.result import GroupResult
    from attention_plasticity.read.texts import DumpTexts
    from qk_dump.layout import Dump

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "ARROW_NUM_THREADS",
)
"""Set to 1 in a worker: one thread per process, and the same order of sums on every machine."""

MEMORY_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""A worker reuses the memory of the previous head (glibc). Other C libraries ignore this."""

_NO_MEMORY = (
    "out of memory; lower max_workers, max_tokens_per_head, num_pairs_per_bucket or "
    "num_pairs_per_bin"
)
_CHANGED = "its files changed during the run; run the same command again"


class Computed(NamedTuple):
    """The record of a key head."""

    content: bytes
    failed: int  # query heads without a result


def analyze_key_head(
    job: str, layer: int, k_head: int, q_heads: Sequence[int], files: str
) -> Computed:
    """Analyse query heads of one key head. `job` has the dump, its texts and the settings.

    `files` is the hash of the files of the key head and all its query heads. If they have another
    one after they were read, they changed, and all heads fail.
    """
    from attention_plasticity.head_analysis import analyze_group
    from attention_plasticity.run.fingerprints import group_digest
    from attention_plasticity.run.record import packed

    text = ""
    try:
        opened = _opened(job)
        found = analyze_group(opened.dump, layer, k_head, q_heads, opened.config, opened.texts)
        captured = opened.captured(layer, k_head)
        if opened.is_changed or group_digest(opened.dump, layer, k_head, captured) != files:
            found = failed_group(layer, k_head, q_heads, _CHANGED)
        return Computed(packed(found), len(found.failures))
    except ToolkitError as error:
        reason = str(error)
    except MemoryError:
        reason = _NO_MEMORY
    except Exception as error:  # an error of this program: report it and continue
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"internal error: {error!r} ({Path(where.filename).name}, line {where.lineno})"
        reason, text = " ".join(reason.split()), traceback_text(error)
    return Computed(packed(failed_group(layer, k_head, q_heads, reason, text)), len(q_heads))


def failed_group(
    layer: int, k_head: int, q_heads: Sequence[int], reason: str, text: str = ""
) -> GroupResult:
    """The result of a key head all of whose query heads failed; `text` is a traceback."""
    from attention_plasticity.measure.result import Failure, GroupResult

    failures = [Failure(layer, q_head, k_head, reason, text) for q_head in q_heads]
    return GroupResult(layer, k_head, [], None, failures)


class _Job(NamedTuple):
    """The dump of a job, its texts and the settings."""

    dump: Dump
    texts: DumpTexts
    config: RunnerConfig
    heads_per_key: int
    is_changed: bool  # a file that all heads use

    def captured(self, layer: int, k_head: int) -> list[int]:
        """The captured query heads of a key head."""
        heads = [head for other, head in self.dump.query_heads if other == layer]
        return [head for head in heads if head // self.heads_per_key == k_head]


@lru_cache(maxsize=4)
def _opened(job: str) -> _Job:
    """The job, whose dump is opened once per process."""
    import pyarrow as pa

    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.read.repeated import with_repeated
    from attention_plasticity.read.texts import DumpTexts
    from attention_plasticity.run.fingerprints import shared_files
    from qk_dump.rotary_file import with_rotary
    from qk_dump.source import open_dump

    pa.set_cpu_count(1)
    content = json.loads(job)
    config = RunnerConfig(**content["config"])
    dump = with_rotary(with_repeated(open_dump(content["dump"]), config.repeated), config.rotary)
    texts = DumpTexts.of_message(content["texts"])
    is_changed = shared_files(dump) != content["files"]
    return _Job(dump, texts, config, content["heads_per_key"], is_changed)


def main() -> None:
    """Run the calls that arrive on a connection, until it is closed."""
    import attention_plasticity.head_analysis  # noqa: F401 (imported while the main process plans)

    connection, first = Connection(int(sys.argv[1])), None
    while True:
        function, arguments, is_known = connection.recv()
        if is_known:
            arguments = (first, *arguments)
        connection.send(function(*arguments))
        first = arguments[0] if arguments else None


if __name__ == "__main__":
    try:
        main()
    except (EOFError, ConnectionError, KeyboardInterrupt):
        os._exit(1)  # the main process ended; exit without output
