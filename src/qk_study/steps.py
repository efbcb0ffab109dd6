"""The work on each model: its capture and its analysis, if they are not finished."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from attention_plasticity.run import differences as of_run
from attention_plasticity.tables.baselines import record_capture
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.hub.place import is_hub_path
from qk_sniffer.capture.differences import differences
from qk_sniffer.capture.folder import plan_in
from qk_study.baselines import baseline_plans, recorded_places
from qk_study.plan import LENGTH, ModelPlan, Part, dotted
from qk_study.settings import StudySettings
from qk_study.texts import chosen, record_texts, texts_changed
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import (
    ConfigError,
    HubError,
    StoreError,
    ToolkitError,
    in_short,
    without_tokens,
)
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count
from qk_toolkit.settings import load_yaml
from qk_toolkit.terminal import TerminalWatcher
from qk_toolkit.urls import is_remote

Result = TypeVar("Result")


@dataclass(frozen=True)
class StudiedModel:
    """A model whose work has ended: its run, or the reason why it or its baselines failed."""

    plan: ModelPlan
    run: FinishedRun | None
    failure: str = ""

    @property
    def failed_heads(self) -> int:
        """Heads of the run that could not be analysed."""
        return 0 if self.run is None else len(self.run.failures)


def study_models(settings: StudySettings, plans: Sequence[ModelPlan]) -> Iterator[StudiedModel]:
    """Do the missing work of each model. A model that fails does not stop the others."""
    for number, plan in enumerate(plans, start=1):
        title = f"model {number} of {len(plans)}, {plan.label}"
        begin = lambda plan=plan, title=title: _run_of(settings, plan, title)  # noqa: E731
        run, failure = _tried(begin, plan.label)
        if run is not None and settings.content.baselines:
            work = lambda run=run, title=title: make_baselines(settings, run, title)  # noqa: E731
            _, failure = _tried(work, f"{plan.label}: baselines")
            run = FinishedRun.open(plan.run)
        yield StudiedModel(plan, run, failure)
        gc.collect()  # the weights of a model may be part of a circle of references


def _tried(work: Callable[[], Result], label: str) -> tuple[Result | None, str]:
    """The result of some work, or the reason why there is none."""
    try:
        return work(), ""
    except BrokenPipeError:  # nobody reads the output
        raise
    except Exception as error:  # code of a model, or a lack of memory: the others go on
        show_traceback(error)
        reason = failure_text(error)
        print(f"error: {label}: {reason}", file=sys.stderr)
        return None, reason


def make_baselines(settings: StudySettings, run: FinishedRun, title: str) -> None:
    """Capture and analyse the baselines of a run, in its folder."""
    plans = baseline_plans(settings, run)
    record_capture(run.folder, run.info)
    for baseline in plans:
        own = f"{title}, {baseline.words}"
        with recorded_places():
            capture(baseline.capture, own, again=settings.content.capture_again)
        analyse(baseline.analysis, own)


def failure_text(error: Exception) -> str:
    """The reason of a failure in one line, without tokens and without folders of this machine."""
    text = " ".join(str(error).split())
    if not isinstance(error, ToolkitError):
        text = f"{type(error).__name__}: {text}"[:500]
    text = text.replace(f"{Path.cwd()}/", "").replace(f"{Path.home()}/", "~/")
    return without_tokens(text)


def _run_of(settings: StudySettings, plan: ModelPlan, title: str) -> FinishedRun:
    if has_run_alone(plan):
        print(f"{title}: {plan.run} is analysed already; its dump was removed", file=sys.stderr)
    else:
        for part in plan.captures:
            capture(part, title, plan, again=settings.content.capture_again)
        if plan.analysis is not None:
            analyse(plan.analysis, title)
    run = FinishedRun.open(plan.run)
    run.head_metrics  # noqa: B018 – a table that is missing or was changed is reported here
    return run


@dataclass(frozen=True)
class CaptureState:
    """What the folder of a capture has, and what is other now."""

    complete: bool
    choice: int | None  # the value of the field that the study chooses, as the capture has it
    setting: str | None  # the first setting that differs, with both values
    inputs: str  # the texts, the files of the model, both; empty if they are the same

    @property
    def is_captured(self) -> bool:
        """Whether the dump is finished, and of these texts and this model."""
        return self.complete and not self.inputs


def state_of(part: Part, plan: ModelPlan | None = None) -> CaptureState:
    """Compare a capture with its folder. The model is not loaded for this.

    The run of the plan says what its dump was, if the dump was removed.
    """
    folder = user_path(part.folder)
    recorded = _recorded_plan(plan) if plan is not None and part is plan.captures[0] else None
    begun = plan_in(folder) or recorded
    choice = None if part.chosen is None else dotted(begun, part.chosen)
    found = differences(part.with_choice(choice).capture, folder, recorded)
    inputs = {"the texts": texts_changed(part), "the files of the model": found.model}
    setting = found.setting or (_cut_then(part) if begun is not None else None)
    changed = " and ".join(name for name, one in inputs.items() if one)
    return CaptureState(found.complete, choice, setting, changed)


def _recorded_plan(plan: ModelPlan) -> Mapping[str, Any] | None:
    """The plan of the dump of a run, as its run.json has it."""
    try:
        found = FinishedRun.open(plan.run).dump.get("capture")
    except ConfigError:
        return None
    return found if isinstance(found, Mapping) else None


def _cut_then(part: Part) -> str | None:
    """That texts were cut when they were captured and are not cut now.

    A plan does not tell this: without a length it has the context of the model.
    """
    if part.chosen is not None or part.capture.tokenizer.max_length is not None:
        return None
    try:
        then = dotted(load_yaml(user_path(part.file)), LENGTH)
    except ConfigError:
        return None
    return None if then is None else f"{LENGTH} ({then} then, null now)"


def refuse_other_settings(plan: ModelPlan) -> None:
    """Raise a `ConfigError` if a part that was begun had other settings.

    A run keeps the settings of its captures also after its dumps were removed.
    """
    found = [(part.folder, "captured", state_of(part, plan).setting) for part in plan.captures]
    if plan.analysis is not None:
        changed = of_run.differences(plan.analysis.analysis, user_path(plan.run))
        words = (
            f"{name} ({in_short(then)} then, {in_short(now)} now)"
            for name, (then, now) in changed.items()
        )
        found.append((plan.run, "analysed", ", ".join(words)))
    for folder, done, changes in found:
        if changes:
            raise ConfigError(
                f"{plan.label}: {folder} was {done} with other settings: {changes}. Repeat the "
                "command with the settings of then, or give the study another output_dir"
            )


def has_run_alone(plan: ModelPlan) -> bool:
    """Whether the dump was removed after its analysis, which had the same settings as now."""
    if plan.analysis is None:
        return False
    dump = str(plan.analysis.analysis.dataset_local_root)
    if is_hub_path(dump) or is_remote(dump) or user_path(dump).exists():
        return False
    if not of_run.is_finished(plan.analysis.analysis, user_path(plan.run)):
        return False
    states = [state_of(part, plan) for part in plan.captures]
    return not any(state.setting or state.inputs for state in states)


def to_begin(part: Part, state: CaptureState, *, again: bool) -> tuple[Part, str | None]:
    """The part as it begins or continues, and a sentence about what the study has chosen.

    Raises a `ConfigError` if texts or model have changed, unless the dump is made `again`: it may
    have taken hours.
    """
    if state.inputs and not again:
        raise ConfigError(
            f"{part.folder}: {state.inputs} have changed since it was captured. Give "
            "--capture_again to replace it, or give the study another output_dir"
        )
    if state.choice is not None and not state.inputs:
        return part.with_choice(state.choice), None
    found, told = chosen(part)
    config = found.capture.model_copy(update={"overwrite": bool(state.inputs)})
    return replace(found, config=config), told


def capture(part: Part, title: str, plan: ModelPlan | None = None, *, again: bool = False) -> None:
    """Make the dump of a part, or complete it.

    With `again`, the dump of other texts or of another model is replaced.
    """
    state = state_of(part, plan)
    if state.is_captured:
        print(f"{title}: {part.folder} is captured already", file=sys.stderr)
        if not user_path(part.file).exists():
            part.with_choice(state.choice).write_settings()
        record_texts(part)
        return
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.capture.run import run_capture

        print(f"{title}: {part.kind} in {part.folder}", file=sys.stderr)
        begun, told = to_begin(part, state, again=again)
        if state.inputs:
            print(f"{title}: texts or model have changed: captured again", file=sys.stderr)
        if told is not None:
            print(f"{title}: {told}", file=sys.stderr)
        begun.write_settings()
        record_texts(part)
        with TerminalWatcher() as watcher:
            run_capture(begun.capture, watcher)


def analyse(part: Part, title: str) -> None:
    """Analyse the dump, or complete the analysis. Heads that failed are tried again.

    A finished run is not written again. It is also used if its dump is at a place that cannot be
    reached.
    """
    from attention_plasticity.run.compute import tasks_of
    from attention_plasticity.run.preparation import prepare
    from attention_plasticity.run.runner import run_analysis

    part.write_settings()
    if of_run.is_finished(part.analysis, user_path(part.folder)):
        try:
            is_left = bool(tasks_of(prepare(part.analysis, TerminalWatcher())))
        except (HubError, StoreError) as error:
            used = "the dump was not compared with the finished analysis, which is used"
            print(f"{part.folder}: {used}: {failure_text(error)}", file=sys.stderr)
            is_left = False
        if not is_left:
            print(f"{title}: {part.folder} is analysed already", file=sys.stderr)
            return
    print(f"{title}: analysis in {part.folder}", file=sys.stderr)
    outcome = run_analysis(part.analysis, TerminalWatcher())
    for failure in outcome.failures[:1]:
        heads = count(len(outcome.failures), "head")
        print(f"{title}: {heads} failed, the first: {failure.reason}", file=sys.stderr)
