"""`--dry_run`: what would be done for each model, with rows, bytes and hours. Writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.filesize import decimal
from rich.table import Table

from attention_plasticity.config import RunnerConfig
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.hub.place import is_hub_path
from qk_dump.remote import size_of
from qk_sniffer.config import CaptureConfig
from qk_study.study.cost import analysis_seconds, capture_seconds, hours
from qk_study.study.plan import ModelPlan, Part
from qk_study.study.settings import StudySettings
from qk_study.study.steps import (
    failure_text,
    has_finished_tables,
    has_run_alone,
    is_analysed,
    is_captured,
)
from qk_toolkit.cpus import available_cpus
from qk_toolkit.debugging import show_traceback
from qk_toolkit.formatting import count
from qk_toolkit.terminal import command_console

_HEADINGS = ("model", "what", "heads", "texts", "rows", "size", "on a GPU", "on this machine")


@dataclass
class Work:
    """A part of a model: how large it is, and how long it takes."""

    what: str
    heads: int | None = None
    texts: int | None = None
    rows: float | None = None
    size: float | None = None  # bytes
    gpu_seconds: float | None = None
    seconds: float | None = None  # on this machine
    notes: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        """The cells of its row."""
        numbers = (self.heads, self.texts, self.rows)
        return [
            self.what,
            *("" if number is None else f"{number:,.0f}" for number in numbers),
            "" if self.size is None else decimal(round(self.size)),
            *("" if one is None else hours(one) for one in (self.gpu_seconds, self.seconds)),
        ]


def dry_run(settings: StudySettings, plans: Sequence[ModelPlan]) -> int:
    """Print the work on every model. Returns 1 if a model would fail."""
    table = Table(box=box.SIMPLE)
    for name in _HEADINGS:
        left = name in _HEADINGS[:2]
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    works: list[Work] = []
    failures, notes = [], []
    for plan in plans:
        try:
            found = list(_work(plan))
        except Exception as error:  # code of a model: the others are shown
            show_traceback(error)
            failures.append(f"{plan.label}: {failure_text(error)}")
            found = [Work("fails")]
        works += found
        notes += [f"{plan.label}: {note}" for work in found for note in work.notes]
        for number, work in enumerate(found):
            table.add_row("" if number else plan.label, *work.cells)
    command_console(wrap=False).print(table)
    for line in (*_totals(works), *notes):
        print(line)
    for text in failures:
        print(f"will fail: {text}", file=sys.stderr)
    print(f"Tables, figures and page would be in {settings.folder}. Nothing was written.")
    return 1 if failures else 0


def _totals(works: Sequence[Work]) -> Iterator[str]:
    rows = sum(work.rows or 0 for work in works if work.what == "capture")
    size = sum(work.size or 0 for work in works if work.what == "capture")
    gpu = sum(work.gpu_seconds or 0 for work in works)
    own = sum(work.seconds or 0 for work in works)
    analysis = sum(work.seconds or 0 for work in works if work.what == "analysis")
    if rows:
        yield f"Captures: {rows:,.0f} rows, at most {decimal(round(size))}."
    if own:
        yield (
            f"Time: {hours(gpu + analysis)} with captures on one H200, {hours(own)} on "
            f"{count(available_cpus(), 'CPU core')} of this machine, without loading models and "
            "drawing figures. This is a rough estimate from speeds that were measured on other "
            "machines."
        )


def _work(plan: ModelPlan) -> Iterator[Work]:
    if plan.analysis is None or has_run_alone(plan):
        run = FinishedRun.open(plan.run)
        yield Work("read", len(run.head_metrics), run.texts.get("count"))
        return
    estimated = None
    if plan.capture is not None:
        if is_captured(plan.capture):
            yield Work("captured already")
        else:
            estimated = _capture(plan.capture)
            yield estimated
    if estimated is not None:
        yield _later_analysis(plan.analysis, estimated)
    else:
        yield _analysis(plan.analysis)


def _capture(part: Part) -> Work:
    """The capture, from the shape of the model and the first texts."""
    from qk_sniffer.extras import capture_extra

    assert isinstance(part.config, CaptureConfig)
    with capture_extra():
        from qk_sniffer.pipeline.estimate import estimate

        found = estimate(part.config)
    work = Work("capture", sum(len(layer.q) for layer in found.wanted), found.texts)
    if found.few_rows is not None:
        work.notes.append(f"warning: {found.few_rows}")
    if found.conversion is not None:
        work.notes.append(f"the GGUF file is converted first, which may take {found.conversion}")
    if found.texts is None:
        work.notes.append("the number of texts is not known (streaming), so rows are not known")
        return work
    work.rows = (found.rows_of_all_heads + found.attended_of_all_heads) * found.texts
    work.size = found.bytes_per_text * found.texts
    operations = found.operations_per_text * found.texts
    work.gpu_seconds, work.seconds = capture_seconds(operations, available_cpus())
    return work


def _later_analysis(part: Part, capture: Work) -> Work:
    """The analysis of a dump that is not captured yet."""
    assert isinstance(part.config, RunnerConfig)
    work = Work("analysis", capture.heads, capture.texts, capture.rows)
    if capture.heads is not None and capture.rows is not None:
        work.seconds = analysis_seconds(capture.heads, capture.rows, part.config.workers)
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
    manifest = dump.manifest
    work.texts = None if manifest is None else manifest.num_examples
    layers = {layer for layer, _ in plan.heads}
    heads = [head for head in dump.all_folders if head.layer in layers]
    work.size = sum(size_of(file) for head in heads for file in dump.files(head))
    work.seconds = analysis_seconds(len(plan.heads), found.rows_used, config.workers)
    work.notes += [f"will fail: {problem}" for problem in found.problems]
    return work
