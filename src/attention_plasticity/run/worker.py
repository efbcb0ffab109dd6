"""The work of one task, and the main function of a worker process on this machine."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qk_toolkit.debugging import show_traceback, traceback_text
from qk_toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
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


class Computed(NamedTuple):
    """A head that was computed: its record, or why it failed."""

    number: int  # of the query head, or of the key head
    record: bytes | None
    reason: str = ""
    is_defect: bool = False  # an error of this program; the traceback was printed


class TaskResult(NamedTuple):
    """The heads of a task, and what was printed meanwhile."""

    heads: list[Computed]
    printed: str


def analyze_heads(job: str, layer: int, k_head: int, q_heads: Sequence[int]) -> TaskResult:
    """Analyse query heads of one key head. `job` has the dump, its texts and the settings."""
    from attention_plasticity.head_analysis import analyze_group
    from attention_plasticity.run.head_record import head_record
    from attention_plasticity.run.records import packed

    def compute(opened: _Job) -> Iterator[Computed]:
        found = analyze_group(opened.dump, layer, k_head, q_heads, opened.config, opened.texts)
        for failure in found.failures:
            yield Computed(failure.q_head, None, failure.reason)
        for head in found.heads:
            yield Computed(head.q_head, packed(head_record(head)))

    return _guarded(job, q_heads, compute)


class _Job(NamedTuple):
    """The dump of a job, its texts and the settings."""

    dump: Dump
    texts: DumpTexts
    config: RunnerConfig


def _guarded(
    job: str, numbers: Sequence[int], compute: Callable[[_Job], Iterator[Computed]]
) -> TaskResult:
    """Run a task. An error becomes the failure of the heads that are not computed."""
    printed = io.StringIO()
    found: list[Computed] = []
    reason, is_defect = "", False
    with redirect_stderr(printed):
        try:
            found.extend(compute(_opened(job)))
        except ToolkitError as error:
            show_traceback(error)
            reason = str(error)
        except MemoryError:
            reason = _NO_MEMORY
        except Exception as error:  # an error of this program: report it and continue
            print(traceback_text(error), end="", file=sys.stderr)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"internal error: {error!r} ({Path(where.filename).name}, line {where.lineno})"
            reason, is_defect = " ".join(text.split()), True
    done = {one.number for one in found}
    found += [Computed(one, None, reason, is_defect) for one in numbers if one not in done]
    return TaskResult(found, printed.getvalue())


@lru_cache(maxsize=4)
def _opened(job: str) -> _Job:
    """The job, whose dump is opened once per process."""
    import pyarrow as pa

    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.read.repeated import with_repeated
    from attention_plasticity.read.texts import DumpTexts
    from qk_dump.rotary_file import with_rotary
    from qk_dump.source import open_dump

    pa.set_cpu_count(1)
    content = json.loads(job)
    config = RunnerConfig(**content["config"])
    dump = with_rotary(with_repeated(open_dump(content["dump"]), config.repeated), config.rotary)
    return _Job(dump, DumpTexts.of_message(content["texts"]), config)


def main() -> None:
    """Run the calls that arrive on a connection, until it is closed."""
    import attention_plasticity.head_analysis  # noqa: F401 (imported while the main process plans)

    connection = Connection(int(sys.argv[1]))
    while True:
        function, arguments = connection.recv()
        connection.send(function(*arguments))


if __name__ == "__main__":
    try:
        main()
    except (EOFError, ConnectionError, KeyboardInterrupt):
        os._exit(1)  # the main process ended; exit without output
