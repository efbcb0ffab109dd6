"""`--dry_run`: what would be done for each model, with rows, bytes and hours. Writes nothing.

Hours come from speeds that were measured on one machine (docs/scale.md). They tell minutes
from days, no more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich import box
from rich.filesize import decimal
from rich.table import Table

from attention_plasticity.config import RunnerConfig
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.run_info import RUN_FILE
from qk_dump.hub.place import is_hub_path
from qk_dump.remote import size_of
from qk_sniffer.capture.speeds import CORE_SPEED, GPU_SPEED
from qk_sniffer.config import CaptureConfig
from qk_study.baselines import baseline_plans, recorded_places
from qk_study.plan import ModelPlan, Part
from qk_study.settings import StudySettings
from qk_study.steps import (
    analysed_dump,
    failure_text,
    has_finished_tables,
    has_run_alone,
    is_analysed,
    is_captured,
    require_same_inputs,
)
from qk_study.texts import chosen, refuse_long_repeated
from qk_toolkit.cpus import available_cpus
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count, duration
from qk_toolkit.terminal import command_console

HEAD_SECONDS = 0.6
ROW_SECONDS = 8e-6
"""Core seconds of the analysis: for every query head, and for every row of queries and keys.

Heads of SmolLM2-135M with all tables took 0.45 to 0.85 s, with 2,700 to 8,200 rows per query head.
"""
_HEADINGS = ("model", "what", "heads", "texts", "rows", "size", "on a GPU", "on this machine")


@dataclass
class Work:
    """A part of a model: how large it is, and how long it takes."""

    what: str
    heads: int | None = None
    texts: int | None = None
    rows: float | None = None
    size: float | None = None  # bytes
    operations: float = 0.0  # of the forwards of a capture
    core_seconds: float = 0.0  # of an analysis
    notes: list[str] = field(default_factory=list)

    def with_analysis(self, heads: int = 1) -> Work:
        """The same with the time of an analysis of its rows, and of its heads this many times."""
        seconds = heads * (self.heads or 0) * HEAD_SECONDS + (self.rows or 0.0) * ROW_SECONDS
        return replace(self, core_seconds=seconds)

    def seconds(self, *, gpu: bool) -> float:
        """The time with captures on one H200, or on the CPU cores of this machine."""
        speed = GPU_SPEED if gpu else CORE_SPEED * available_cpus()
        return self.operations / speed + self.core_seconds / available_cpus()

    @property
    def cells(self) -> list[str]:
        """The cells of its row."""
        numbers = (self.heads, self.texts, self.rows)
        times = (self.seconds(gpu=gpu) for gpu in (True, False))
        return [
            self.what,
            *("" if number is None else f"{number:,.0f}" for number in numbers),
            "" if self.size is None else decimal(round(self.size)),
            *(hours(time) if time else "" for time in times),
        ]


def hours(seconds: float) -> str:
    """`< 1 min`, or as `duration` writes it."""
    return "< 1 min" if seconds < 60 else duration(seconds)


def tell_time(settings: StudySettings, plans: Sequence[ModelPlan]) -> None:
    """Say how long the study takes, if something must be captured.

    Wrong settings of the only model are raised, before anything is written.
    """
    captured = all(is_captured(part) for plan in plans for part in plan.captures)
    if captured and not settings.content.baselines:
        return
    from qk_sniffer.capture.ranks import Ranks
    from qk_sniffer.extras import capture_extra

    seconds = 0.0
    with capture_extra():
        on_gpu = Ranks().device != "cpu"
    for plan in plans:
        try:
            seconds += sum(work.seconds(gpu=on_gpu) for work in _work(settings, plan))
        except Exception as error:  # code of a model; it fails again when its turn comes
            begins = not all(is_captured(part) for part in plan.captures)
            if begins and len(plans) == 1 and isinstance(error, ConfigError):
                raise
            show_traceback(error)
    if not seconds:
        return
    told = f"{hours(seconds)} on this machine, roughly (--dry_run has the parts)"
    print(f"time: {told}", file=sys.stderr)


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
        notes += [f"{plan.label}: {note}" for work in found for note in work.notes]
        for number, work in enumerate(found):
            table.add_row("" if number else plan.label, *work.cells)
    command_console(wrap=False).print(table)
    on_gpu, own = (sum(work.seconds(gpu=gpu) for work in works) for gpu in (True, False))
    if own:
        print(
            f"Time: {hours(on_gpu)} with captures on one H200, {hours(own)} on "
            f"{count(available_cpus(), 'CPU core')} of this machine, without loading models and "
            "drawing figures. This is a rough estimate from speeds that were measured on other "
            "machines."
        )
    for line in notes:
        print(line)
    for text in failures:
        print(f"will fail: {text}", file=sys.stderr)
    print(f"Tables, figures and page would be in {settings.folder}. Nothing was written.")
    return 1 if failures else 0


def _work(settings: StudySettings, plan: ModelPlan) -> Iterator[Work]:
    if plan.analysis is None or has_run_alone(plan):
        run = FinishedRun.open(plan.run)
        yield Work("read", len(run.head_metrics), run.texts.get("count"))
        yield from _baselines_of_run(settings, run)
        return
    estimated: list[Work] = []
    for part in plan.captures:
        if is_captured(part):
            yield Work("captured already")
        else:
            estimated.append(
                _capture(part, analysed_dump(plan), again=settings.content.capture_again)
            )
            yield estimated[-1]
    if not estimated:
        work = _analysis(plan.analysis)
        yield work
        if (user_path(plan.run) / RUN_FILE).is_file():
            yield from _baselines_of_run(settings, FinishedRun.open(plan.run))
        elif number := settings.content.baselines:
            note = "sizes are known when the run is there"
            yield Work(count(number + 1, "baseline"), notes=[f"baselines: {note}"])
        return
    first = estimated[0]
    yield replace(first, what="analysis", size=None, operations=0.0, notes=[]).with_analysis()
    if number := settings.content.baselines:
        texts = min(settings.content.baseline_texts, first.texts or 0)
        share = (number + 1) * texts / max(1, first.texts or 0)
        most = replace(  # they have no more rows than the run
            first,
            what=count(number + 1, "baseline"),
            texts=texts,
            rows=None if first.rows is None else (number + 1) * first.rows,
            size=None if first.size is None else (number + 1) * first.size,
            operations=share * first.operations,
            notes=[],
        )
        yield most.with_analysis(heads=number + 1)


def _baselines_of_run(settings: StudySettings, run: FinishedRun) -> Iterator[Work]:
    """The captures of the baselines of a run, each with its analysis."""
    if not settings.content.baselines:
        return
    for baseline in baseline_plans(settings, run):
        if is_captured(baseline.capture):
            yield Work(f"{baseline.words}: captured already")
            continue
        with recorded_places():
            again = settings.content.capture_again
            work = _capture(baseline.capture, {}, again=again)
            yield replace(work, what=baseline.words).with_analysis()


def _capture(part: Part, analysed: Mapping[str, Any], *, again: bool) -> Work:
    """The capture, from the shape of the model and the first texts."""
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.capture.estimate import estimate

        refuse_long_repeated(part)
        changed = require_same_inputs(part, analysed, again=again)
        part, told = chosen(part, again=changed)
        assert isinstance(part.config, CaptureConfig)
        found = estimate(part.config.model_copy(update={"overwrite": changed}))
    work = Work(part.kind, sum(len(layer.q) for layer in found.setup.wanted), found.texts)
    work.notes += [*([] if told is None else [told]), *found.notes]
    if found.few_rows is not None:
        work.notes.append(f"warning: {found.few_rows}")
    if found.texts is None:
        work.notes.append("the number of texts is not known (streaming), so rows are not known")
        return work
    work.rows = (found.rows_of_all_heads + found.attended_of_all_heads) * found.texts
    work.size = found.bytes_per_text * found.texts
    work.operations = found.operations_per_text * found.texts
    return work


def _analysis(part: Part) -> Work:
    """The analysis of a dump that exists. A dump on the Hub is not fetched for this."""
    from attention_plasticity.run.plan import estimate
    from attention_plasticity.run.preparation import prepare

    config = part.config
    assert isinstance(config, RunnerConfig)
    on_hub = is_hub_path(str(config.dataset_local_root))
    if has_finished_tables(part) if on_hub else is_analysed(part):
        finished = len(FinishedRun.open(part.folder).head_metrics)
        note = "whether its dump on the Hub has changed is not checked here"
        return Work("analysed already", finished, notes=[note] if on_hub else [])
    if on_hub:
        return Work("analysis", notes=["its dump is on the Hub; sizes are known when it is here"])
    run = prepare(config)
    dump, plan = run.dump, run.plan
    found = estimate(dump, plan, config)
    work = Work("analysis", len(plan.heads), rows=found.rows_used)
    work.texts = None if dump.manifest is None else dump.manifest.num_examples
    layers = {layer for layer, _ in plan.heads}
    heads = [head for head in dump.all_folders if head.layer in layers]
    work.size = sum(size_of(file) for head in heads for file in dump.files(head))
    work.core_seconds = len(plan.heads) * HEAD_SECONDS + found.rows_used * ROW_SECONDS
    work.notes += [f"will fail: {problem}" for problem in found.problems]
    return work
