"""Hand out the batches of a capture: to one process in order, to several by what is left.

Several processes take the longest batches first, so that they end at the same time. A batch has
the same texts in any case, so the vectors do not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from qk_sniffer.pipeline.batches import Batch, make_batch
from qk_sniffer.pipeline.claims import Claims
from qk_sniffer.pipeline.segments import CaptureFolder
from qk_sniffer.pipeline.setup import Setup
from qk_sniffer.pipeline.texts import Text, batches
from qk_sniffer.pipeline.threads import one_ahead, prepared_ahead
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.formatting import index_ranges
from qk_toolkit.watcher import Watcher


@dataclass
class BatchScheduler:
    """The batches of a capture that one process runs."""

    setup: Setup
    capture: CaptureFolder
    watcher: Watcher
    knows_folder_is_shared: bool = False
    num_batches: int = 0  # of all processes; known when the batches have ended

    def in_order(self) -> Generator[Batch]:
        """All unfinished batches, for a single process."""
        return prepared_ahead(self._unfinished())

    def _unfinished(self) -> Iterator[Batch]:
        for number, group in self._numbered():
            if not self._was_finished(number, group):
                yield make_batch(self.setup, number, group)

    def shared(self, claims: Claims, save: Callable[[], None]) -> Generator[Batch]:
        """Batches that no other process runs, until all batches are finished.

        `save` writes the finished batches of this process to disk. It is called when there is no
        other batch to run, before this process waits for the others.
        """
        is_first_round = True
        while True:
            candidates = self._candidates(claims, is_first_round)
            with closing(one_ahead(candidates)) as prepared:
                for batch in prepared:
                    if claims.begin(batch.number):
                        yield batch
                    self._show_others(claims)
            save()
            if not claims.wait_for_work(self.num_batches):
                break
            is_first_round = False
        self._show_others(claims)
        if not claims.saw_others and not self.knows_folder_is_shared:
            self.watcher.note(
                f"no other process was seen in {self.capture.folder}; is the folder shared?"
            )
        _require_all_run(claims, self.setup.batch_size)

    def _candidates(self, claims: Claims, is_first_round: bool) -> Iterator[Batch]:
        if not self.setup.texts.has_index:
            yield from self._from_stream(claims, is_first_round)
            return
        if is_first_round:
            self._check_finished()
        idle = True
        while (number := claims.reserve(idle)) is not None:
            yield make_batch(self.setup, number, self._group(number))
            idle = False

    def _from_stream(self, claims: Claims, is_first_round: bool) -> Iterator[Batch]:
        for number, group in self._numbered():
            if is_first_round and self._was_finished(number, group):
                continue
            if claims.reserve_this(number):
                yield make_batch(self.setup, number, group)

    def _check_finished(self) -> None:
        self.num_batches = -(-(self.setup.texts.total or 0) // self.setup.batch_size)
        for number in sorted(self.capture.finished):
            if number < self.num_batches:
                self._was_finished(number, self._group(number))

    def _numbered(self) -> Iterator[tuple[int, list[Text]]]:
        for number, group in batches(self.setup.texts, self.setup.batch_size):
            self.num_batches = max(self.num_batches, number + 1)
            yield number, group

    def _group(self, number: int) -> list[Text]:
        size = self.setup.batch_size
        end = min((number + 1) * size, self.setup.texts.total or 0)
        return self.setup.texts.between(number * size, end)

    def _was_finished(self, number: int, group: Sequence[Text]) -> bool:
        """Whether the batch was finished when this process started; its texts are then checked."""
        if number not in self.capture.finished:
            return False
        _check_unchanged(group, self.capture)
        return True

    def _show_others(self, claims: Claims) -> None:
        size, total = self.setup.batch_size, self.setup.texts.total
        for number, tokens, rows in claims.stored_elsewhere():
            if number not in self.capture.finished:  # else it was shown at the start
                texts = size if total is None else min(size, total - number * size)
                self.watcher.advance(texts, tokens=tokens, rows=rows)


def longest_first(sizes: Sequence[int], batch_size: int) -> list[int]:
    """The numbers of all batches, ordered by the size of their longest text."""
    longest = [max(sizes[start : start + batch_size]) for start in range(0, len(sizes), batch_size)]
    return sorted(range(len(longest)), key=lambda number: (-longest[number], number))


def _require_all_run(claims: Claims, batch_size: int) -> None:
    """Refuse batches during which processes died."""
    if not claims.given_up:
        return
    texts = [
        number * batch_size + place for number in claims.given_up for place in range(batch_size)
    ]
    raise ToolkitError(
        f"texts {index_ranges(texts)}: two processes died while they ran them; all other texts are "
        "finished. Read the messages of these processes, and run the same command again, with "
        "fewer processes per machine if memory was short."
    )


def _check_unchanged(group: Sequence[Text], capture: CaptureFolder) -> None:
    for text in group:
        if capture.digests.get(text.example_id) != text.digest:
            raise ConfigError(
                f"dataset.path: text {text.example_id} (id {text.original_id!r}) has changed since "
                "this capture began; use another output.data_root, or overwrite to start again"
            )
