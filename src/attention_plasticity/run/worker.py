"""A worker process: reads groups of heads as JSON lines, writes finished heads as JSON lines.

Workers share no memory and write no file. Communication uses pipes and JSON, without pickle, so a
script that uses the library needs no `__main__` guard. A closed pipe shows that a worker died.

A log file for the output that workers print.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qk_toolkit.debugging import show_traceback, traceback_text
from qk_toolkit.errors import ToolkitError
from qk_toolkit.formatting import index_ranges

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.measure.result import Failure, HeadResult
    from attention_plasticity.read.texts import DumpTexts
    from attention_plasticity.run.plan import Group
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
MOST_BYTES = 1 << 20
_END = b"The rest is left out.\n"


def main() -> None:
    """Compute groups until standard input closes.

    A line has either a job, which is a dump and a config, or a group of heads of the last job.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep prints out of the results
    import pyarrow as pa

    import attention_plasticity.head_analysis  # noqa: F401 (imported while the main process plans)

    pa.set_cpu_count(1)
    job: OpenJob | None = None
    for line in sys.stdin:
        content = json.loads(line)
        if "dump" in content:
            job = open_job(content)
            continue
        assert job is not None
        for message in group_messages(job, content):
            replies.write(json.dumps(message) + "\n")
            replies.flush()


class OpenJob(NamedTuple):
    """A job of a worker: its dump, or the reason why it cannot be opened; texts and settings."""

    dump: Dump | ToolkitError
    texts: DumpTexts
    config: RunnerConfig


def open_job(content: dict[str, Any]) -> OpenJob:
    """Open the dump of a job, from the message of the main process."""
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.read.repeated import with_repeated
    from attention_plasticity.read.texts import DumpTexts
    from qk_dump.rotary_file import with_rotary
    from qk_dump.source import open_dump

    dump: Dump | ToolkitError
    config = RunnerConfig(**content["config"])
    try:
        dump = with_repeated(open_dump(content["dump"]), config.repeated)
        dump = with_rotary(dump, config.rotary)
    except ToolkitError as error:
        show_traceback(error)
        dump = error
    return OpenJob(dump, DumpTexts.of_message(content["texts"]), config)


def group_messages(job: OpenJob, group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Analyse a group of heads: a message for every head. Errors become messages too."""
    from attention_plasticity.head_analysis import analyze_group
    from attention_plasticity.measure.result import Failure

    layer, k_head, q_heads = group["layer"], group["k_head"], group["q_heads"]
    pending = list(q_heads)
    dump, texts, config = job
    if isinstance(dump, ToolkitError):
        for q_head in pending:
            yield {"kind": "failure", "content": asdict(Failure(layer, q_head, k_head, str(dump)))}
        return
    try:
        for outcome in analyze_group(dump, layer, k_head, q_heads, config, texts):
            pending.remove(outcome.q_head)
            kind = "failure" if isinstance(outcome, Failure) else "result"
            yield {"kind": kind, "content": vars(outcome)}  # asdict would copy every number
    except MemoryError:
        for q_head in pending:
            yield {"kind": "failure", "content": asdict(Failure(layer, q_head, k_head, _NO_MEMORY))}
    except Exception as error:  # a bug of this program: report it and continue
        print(traceback_text(error), end="", file=sys.stderr)
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"internal error: {error!r} ({Path(where.filename).name}, line {where.lineno})"
        for q_head in pending:
            failure = Failure(layer, q_head, k_head, " ".join(reason.split()))
            yield {"kind": "defect", "content": asdict(failure)}


def outcome_of(message: dict[str, Any], log: WorkerLog) -> HeadResult | Failure:
    """The outcome of a head, from the message of a worker."""
    from attention_plasticity.measure.result import Failure, HeadResult

    content = message["content"]
    if message["kind"] == "defect":
        content["reason"] += f"; the traceback is in {log.path}"
    return HeadResult(**content) if message["kind"] == "result" else Failure(**content)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # the main process ended; exit without output


def group_name(group: Group | None) -> str:
    """Which heads a worker was computing, for the log."""
    if group is None:
        return "between two groups of heads"
    heads = index_ranges(group.q_heads)
    return f"layer {group.layer}, key head {group.k_head}, query heads {heads}"


class WorkerLog:
    """A file of bounded size. It is created at the first entry.

    If it cannot be written, the run continues.
    """

    def __init__(self, path: Path, limit: int = MOST_BYTES) -> None:
        self.path = path
        self.written = False
        self._bytes_left = limit

    def begin(self) -> None:
        """Delete the log of an earlier run."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def add(self, where: str, text: bytes) -> None:
        """Append the output that a worker printed while it computed the heads `where`."""
        text = text.strip()
        if not text or self._bytes_left <= 0:
            return
        entry = f"{where}:\n".encode() + text + b"\n\n"
        if len(entry) > self._bytes_left:
            entry = entry[: self._bytes_left] + b"\n" + _END
        self._bytes_left -= len(entry)
        with suppress(OSError), self.path.open("ab") as file:
            file.write(entry)
            self.written = True
