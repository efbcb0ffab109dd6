"""Hand out the batches of a capture: to one process in order, to several by what is left.

Several processes take the longest batches first, so that they end at the same time. A batch has
the same texts in any case, so the vectors do not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from qk_sniffer.pipeline.batches import Batch, make_batch
from qk_sniffer.pipeline.capture_folder import CaptureFolder
from qk_sniffer.pipeline.claims import Claims, StoredBatch
from qk_sniffer.pipeline.ranks import Ranks
from qk_sniffer.pipeline.setup import Setup
from qk_sniffer.pipeline.taken_rows import TakenRows
from qk_sniffer.pipeline.texts import Text, batches
from qk_sniffer.pipeline.threads import one_ahead, prepared_ahead
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.formatting import index_ranges


class BatchScheduler:
    """The batches of a capture that one process runs.

    The process runs what `unfinished` gives and saves it. It then calls `wait_for_others`, which
    tells whether there is more to run.
    """

    def __init__(self, setup: Setup, capture: CaptureFolder, ranks: Ranks) -> None:
        self._setup = setup
        self._capture = capture
        shares_texts = ranks.world > 1 and not setup.config.model.tensor_parallel
        self._claims = _claims(setup, capture) if shares_texts else None
        self._knows_folder_is_shared = ranks.knows_folder_is_shared
        self._is_first_round = True
        self.num_batches = 0  # of all processes; known when the batches have ended

    def unfinished(self) -> Generator[Batch]:
        """Batches for this process to run, prepared in a background thread."""
        if self._claims is None:
            return prepared_ahead(self._in_order())
        return self._claimed(self._claims)

    def computed(self, batch: Batch, taken: TakenRows) -> None:
        """The forward of a batch has ended."""
        if self._claims is not None:
            taken.wait()  # a batch that waits for the GPU could be run by another process
            self._claims.computed(batch.number)

    def stored(self, batch: StoredBatch) -> None:
        """The rows of a batch are in the folder's memory; the next save writes them."""
        if self._claims is not None:
            self._claims.stored(*batch)

    def stored_by_others(self) -> list[StoredBatch]:
        """Batches that other processes have run since the last call.

        Those that were finished before this process started are left out.
        """
        found = self._claims.stored_elsewhere() if self._claims is not None else []
        return [batch for batch in found if batch.number not in self._capture.finished]

    def wait_for_others(self) -> bool:
        """Wait for the batches of other processes; all batches of this one must be saved.

        Returns True if there is a batch left that no process runs, as when a process has died.
        """
        self._is_first_round = False
        if self._claims is None:
            return False
        if self._claims.wait_for_work(self.num_batches):
            return True
        _require_all_run(self._claims, self._setup.batch_size)
        return False

    @property
    def is_unexpectedly_alone(self) -> bool:
        """Whether there should be other processes, and none was seen in the folder."""
        return (
            self._claims is not None
            and not self._claims.saw_others
            and not self._knows_folder_is_shared
        )

    def num_texts(self, batch: int) -> int:
        """The number of texts of a batch; an upper limit if the data set does not tell it."""
        size, total = self._setup.batch_size, self._setup.texts.total
        return size if total is None else min(size, total - batch * size)

    def close(self) -> None:
        """Free the batches of this process that are not saved."""
        if self._claims is not None:
            self._claims.close()

    def _in_order(self) -> Iterator[Batch]:
        for number, group in self._numbered():
            if not self._was_finished(number, group):
                yield make_batch(self._setup, number, group)

    def _claimed(self, claims: Claims) -> Generator[Batch]:
        with closing(one_ahead(self._candidates(claims))) as prepared:
            for batch in prepared:
                if claims.begin(batch.number):
                    yield batch

    def _candidates(self, claims: Claims) -> Iterator[Batch]:
        if not self._setup.texts.has_index:
            yield from self._from_stream(claims)
            return
        if self._is_first_round:
            self._check_finished()
        idle = True
        while (number := claims.reserve(idle)) is not None:
            yield make_batch(self._setup, number, self._group(number))
            idle = False

    def _from_stream(self, claims: Claims) -> Iterator[Batch]:
        for number, group in self._numbered():
            if self._is_first_round and self._was_finished(number, group):
                continue
            if claims.reserve_this(number):
                yield make_batch(self._setup, number, group)

    def _check_finished(self) -> None:
        self.num_batches = -(-(self._setup.texts.total or 0) // self._setup.batch_size)
        for number in sorted(self._capture.finished):
            if number < self.num_batches:
                self._was_finished(number, self._group(number))

    def _numbered(self) -> Iterator[tuple[int, list[Text]]]:
        for number, group in batches(self._setup.texts, self._setup.batch_size):
            self.num_batches = max(self.num_batches, number + 1)
            yield number, group

    def _group(self, number: int) -> list[Text]:
        size = self._setup.batch_size
        end = min((number + 1) * size, self._setup.texts.total or 0)
        return self._setup.texts.between(number * size, end)

    def _was_finished(self, number: int, group: Sequence[Text]) -> bool:
        """Whether the batch was finished when this process started; its texts are then checked."""
        if number not in self._capture.finished:
            return False
        _check_unchanged(group, self._capture)
        return True


def longest_first(sizes: Sequence[int], batch_size: int) -> list[int]:
    """The numbers of all batches, ordered by the size of their longest text."""
    longest = [max(sizes[start : start + batch_size]) for start in range(0, len(sizes), batch_size)]
    return sorted(range(len(longest)), key=lambda number: (-longest[number], number))


def _claims(setup: Setup, capture: CaptureFolder) -> Claims:
    order = None
    if setup.texts.has_index:
        order = longest_first(setup.texts.sizes(), setup.batch_size)
    return Claims(capture.folder, capture.saved_batches, order)


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
