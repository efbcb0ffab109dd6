"""`--dry_run`: what would be done for each model, with rows, bytes and time. Writes nothing.

The time is that of this machine when it is idle: a forward of the first layers of the model, and
the analysis of a head of the embedded sample, are measured several times, and the best is scaled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from rich import box
from rich.filesize import decimal
from rich.table import Table

from attention_plasticity.run.differences import is_finished
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.run_info import RUN_FILE
from qk_dump.hub.place import is_hub_path
from qk_dump.remote import size_of
from qk_study.baselines import baseline_plans, recorded_places
from qk_study.plan import ModelPlan, Part
from qk_study.settings import StudySettings
from qk_study.steps import CaptureState, failure_text, has_run_alone, state_of, to_begin
from qk_toolkit.cpus import available_cpus
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import lack_of_room, user_path
from qk_toolkit.formatting import count, duration
from qk_toolkit.terminal import command_console

_HEADINGS = ("model", "what", "heads", "texts", "rows", "size", "time")
_TOLD = "without loading models and drawing figures"
_TIMES = 3  # that a head is measured


@dataclass
class Work:
    """A part of a model: how large it is, and how long it takes."""

    what: str
    heads: int | None = None
    texts: int | None = None
    rows: float | None = None
    size: float | None = None  # bytes
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        """The cells of its row."""
        numbers = (self.heads, self.texts, self.rows)
        return [
            self.what,
            *("" if number is None else f"{number:,.0f}" for number in numbers),
            "" if self.size is None else decimal(round(self.size)),
            hours(self.seconds) if self.seconds else "",
        ]


def hours(seconds: float) -> str:
    """`< 1 min`, or as `duration` writes it."""
    return "< 1 min" if seconds < 60 else duration(seconds)


def tell_time(settings: StudySettings, plans: Sequence[ModelPlan]) -> None:
    """Say how long the study takes, if something must be captured.

    Wrong settings of the only model are raised, before anything is written.
    """
    left = [_has_captures_left(plan) for plan in plans]
    if not any(left) and not settings.content.baselines:
        return
    seconds = 0.0
    for plan, begins in zip(plans, left, strict=True):
        try:
            seconds += sum(work.seconds for work in _work(settings, plan))
        except Exception as error:  # code of a model; it fails again when its turn comes
            if begins and len(plans) == 1 and isinstance(error, ConfigError):
                raise
            show_traceback(error)
    if seconds:
        told = f"{hours(seconds)} on this machine when it is idle (--dry_run has the parts)"
        print(f"time: {told}", file=sys.stderr)


def _has_captures_left(plan: ModelPlan) -> bool:
    return not all(state_of(part, plan).is_captured for part in plan.captures)


def dry_run(settings: StudySettings, plans: Sequence[ModelPlan]) -> int:
    """Print the work on every model. Returns 1 if a model would fail."""
    table = Table(box=box.SIMPLE)
    for place, name in enumerate(_HEADINGS):
        table.add_column(name, justify="left" if place < 2 else "right", overflow="fold")
    works: list[Work] = []
    failures, notes = [], []
    for plan in plans:
        try:
            found = list(_work(settings, plan))
        except Exception as error:  # code of a model: the others are shown
            show_traceback(error)
            failures.append(f"{plan.label}: {failure_text(error)}")
            found = [Work("fails")]
        works += found
        told = dict.fromkeys(note for work in found for note in work.notes)
        notes += [f"{plan.label}: {note}" for note in told]
        for number, work in enumerate(found):
            table.add_row("" if number else plan.label, *work.cells)
    command_console(wrap=False).print(table)
    if seconds := sum(work.seconds for work in works):
        cores = count(available_cpus(), "CPU core")
        print(f"Time: {hours(seconds)} on this machine with {cores} when it is idle, {_TOLD}.")
    needed = sum(work.size or 0.0 for work in works if work.what != "analysis")
    for line in (*notes, *lack_of_room(settings.folder, needed)):
        print(line)
    for text in failures:
        print(f"will fail: {text}", file=sys.stderr)
    print(f"Tables, figures and page would be in {settings.folder}. Nothing was written.")
    return 1 if failures else 0


def _work(settings: StudySettings, plan: ModelPlan) -> Iterator[Work]:
    """The parts of a model that are left, and those that are there."""
    if plan.analysis is None or has_run_alone(plan):
        run = FinishedRun.open(plan.run)
        yield Work("read", len(run.head_metrics), run.texts.get("count"))
        yield from _baselines_of_run(settings, run)
        return
    captures = [_capture(settings, part, state_of(part, plan)) for part in plan.captures]
    yield from captures
    left = [work for work in captures if work.heads is not None]
    number = settings.content.baselines
    if not left:
        yield _analysis(plan.analysis)
        if (user_path(plan.run) / RUN_FILE).is_file():
            yield from _baselines_of_run(settings, FinishedRun.open(plan.run))
        elif number:
            note = "baselines: sizes are known when the run is there"
            yield Work(count(number + 1, "baseline"), notes=[note])
        return
    first = replace(left[0], notes=[])
    yield _analysed(first, "analysis")
    if number:
        yield _baselines_of_capture(first, number, settings.content.baseline_texts)


def _capture(settings: StudySettings, part: Part, state: CaptureState) -> Work:
    """The capture, from the shape of the model and the first texts."""
    if state.is_captured:
        return Work("captured already")
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.capture.estimate import estimate

        part, told = to_begin(part, state, again=settings.content.capture_again)
        found = estimate(part.capture)
        seconds = found.seconds
    work = Work(part.kind, sum(len(layer.q) for layer in found.setup.row_plan.wanted), found.texts)
    work.notes += [*([] if told is None else [told]), *found.notes]
    if found.few_rows is not None:
        work.notes.append(f"warning: {found.few_rows}")
    if found.texts is None:
        work.notes.append("the number of texts is not known (streaming), so rows are not known")
        return work
    work.rows = (found.rows_of_all_heads + found.attended_of_all_heads) * found.texts
    work.size = found.bytes_per_text * found.texts
    work.seconds = seconds or 0.0
    if seconds is None:
        work.notes.append("its time is not known: the first layers of the model do not run alone")
    return work


def _analysed(work: Work, what: str, times: int = 1) -> Work:
    """The analysis of a capture, so many times."""
    seconds = times * (work.heads or 0) * head_seconds() / available_cpus()
    return replace(work, what=what, size=None, seconds=seconds, notes=[])


def _baselines_of_capture(first: Work, number: int, most: int) -> Work:
    """The baselines of a run that is not there yet. They have no more rows than the run."""
    times, texts = number + 1, min(most, first.texts or 0)
    seconds = times * texts / max(1, first.texts or 0) * first.seconds
    analysed = _analysed(first, count(times, "baseline"), times)
    return replace(
        analysed,
        texts=texts,
        rows=None if first.rows is None else times * first.rows,
        size=None if first.size is None else times * first.size,
        seconds=analysed.seconds + seconds,
    )


def _baselines_of_run(settings: StudySettings, run: FinishedRun) -> Iterator[Work]:
    """The captures of the baselines of a run, each with its analysis."""
    if not settings.content.baselines:
        return
    for baseline in baseline_plans(settings, run):
        state = state_of(baseline.capture)
        if state.is_captured:
            yield Work(f"{baseline.words}: captured already")
            continue
        with recorded_places():
            work = _capture(settings, baseline.capture, state)
        seconds = work.seconds + _analysed(work, "").seconds
        yield replace(work, what=baseline.words, seconds=seconds)


def _analysis(part: Part) -> Work:
    """The analysis of a dump that exists. A dump on the Hub is not fetched for this."""
    from attention_plasticity.run.compute import tasks_of
    from attention_plasticity.run.plan import estimate
    from attention_plasticity.run.preparation import prepare

    config = part.analysis
    on_hub = is_hub_path(str(config.dataset_local_root))
    finished = is_finished(config, user_path(part.folder))
    if on_hub and not finished:
        return Work("analysis", notes=["its dump is on the Hub; sizes are known when it is here"])
    run = None if on_hub else prepare(config)
    if finished and (run is None or not tasks_of(run)):
        heads = len(FinishedRun.open(part.folder).head_metrics)
        note = "whether its dump on the Hub has changed is not checked here"
        return Work("analysed already", heads, notes=[note] if on_hub else [])
    assert run is not None
    found = estimate(run.dump, run.plan, config)
    texts = None if run.dump.manifest is None else run.dump.manifest.num_examples
    work = _analysed(Work("", len(run.plan.heads), texts, found.rows_used), "analysis")
    layers = {layer for layer, _ in run.plan.heads}
    heads_of = [head for head in run.dump.all_folders if head.layer in layers]
    work.size = sum(size_of(file) for head in heads_of for file in run.dump.files(head))
    work.notes += [f"will fail: {problem}" for problem in found.problems]
    return work


@cache
def head_seconds() -> float:
    """Seconds of one core for the analysis of a head, measured with one of the sample."""
    from attention_plasticity.demo.sample import open_sample
    from attention_plasticity.head_analysis import analyze_head

    dump = open_sample()

    def measured() -> float:
        began = time.process_time()
        analyze_head(*dump.query_heads[0], dump=dump)
        return time.process_time() - began

    return min(measured() for _ in range(_TIMES))
