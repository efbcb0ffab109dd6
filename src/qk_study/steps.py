"""The work on each model: its capture and its analysis, if they are not finished."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attention_plasticity.config import RunnerConfig
from attention_plasticity.tables.baselines import record_capture
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.hub.place import is_hub_path
from qk_dump.layout import UNFINISHED
from qk_dump.manifest import MANIFEST_NAME
from qk_sniffer.config import CaptureConfig
from qk_study.baselines import baseline_plans, recorded_places
from qk_study.plan import ModelPlan, Part
from qk_study.settings import StudySettings
from qk_study.texts import chosen, record_texts, refuse_long_repeated, texts_changed
from qk_study.weights import weights_changed
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, HubError, StoreError, ToolkitError, without_tokens
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count
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
            capture(part, title, analysed_dump(plan), again=settings.content.capture_again)
        if plan.analysis is not None:
            analyse(plan.analysis, title)
    run = FinishedRun.open(plan.run)
    run.head_metrics  # noqa: B018 – a table that is missing or was changed is reported here
    return run


def has_run_alone(plan: ModelPlan) -> bool:
    """Whether the dump was removed after its analysis, which had the same settings as now."""
    if plan.analysis is None:
        return False
    config = plan.analysis.config
    assert isinstance(config, RunnerConfig)
    dump = str(config.dataset_local_root)
    if is_hub_path(dump) or is_remote(dump) or user_path(dump).exists():
        return False
    if any(part.changed_settings() != {} for part in plan.parts):
        return False
    if not has_finished_tables(plan.analysis):
        return False
    return not any(changed_inputs(part, analysed_dump(plan)) for part in plan.captures)


def analysed_dump(plan: ModelPlan) -> Mapping[str, Any]:
    """What the run says about its dump, which may have been removed; empty without a run."""
    try:
        return FinishedRun.open(plan.run).dump
    except ConfigError:
        return {}


def changed_inputs(part: Part, analysed: Mapping[str, Any] | None = None) -> str:
    """What has changed since the capture began: the texts, the model, both; empty if nothing."""
    changes = {
        "the texts": texts_changed(part),
        "the files of the model": weights_changed(part, analysed),
    }
    return " and ".join(name for name, changed in changes.items() if changed)


def is_captured(part: Part) -> bool:
    """Whether the dump of a capture is complete. The model is not loaded for this."""
    folder = user_path(part.folder)
    complete = (folder / MANIFEST_NAME).is_file() and not (folder / UNFINISHED).exists()
    return complete and not changed_inputs(part)


def require_same_inputs(part: Part, analysed: Mapping[str, Any], *, again: bool) -> bool:
    """Whether the dump is made again because texts or model have changed.

    Raises a `ConfigError` unless this was asked for: the dump may have taken hours.
    """
    changed = changed_inputs(part, analysed)
    if changed and not again:
        raise ConfigError(
            f"{part.folder}: {changed} have changed since it was captured. Give --capture_again to "
            "replace it, or give the study another output_dir"
        )
    return bool(changed)


def capture(
    part: Part, title: str, analysed: Mapping[str, Any] | None = None, *, again: bool = False
) -> None:
    """Make the dump of a part, or complete it.

    With `again`, the dump of other texts or of another model is replaced. `analysed` is what its
    run says about it.
    """
    if is_captured(part):
        print(f"{title}: {part.folder} is captured already", file=sys.stderr)
        part.with_choice(part.recorded_choice).write_settings()
        record_texts(part)
        return
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.capture.run import run_capture

        print(f"{title}: {part.kind} in {part.folder}", file=sys.stderr)
        changed = require_same_inputs(part, analysed or {}, again=again)
        if changed:
            print(f"{title}: texts or model have changed: captured again", file=sys.stderr)
        refuse_long_repeated(part)
        part, told = chosen(part, again=changed)
        if told is not None:
            print(f"{title}: {told}", file=sys.stderr)
        part.write_settings()
        record_texts(part)
        assert isinstance(part.config, CaptureConfig)
        with TerminalWatcher() as watcher:
            run_capture(part.config.model_copy(update={"overwrite": changed}), watcher)


def analyse(part: Part, title: str) -> None:
    """Analyse the dump, or complete the analysis. Heads that failed are tried again."""
    assert isinstance(part.config, RunnerConfig)
    if is_analysed(part):
        print(f"{title}: {part.folder} is analysed already", file=sys.stderr)
        part.write_settings()
        return
    from attention_plasticity.run.runner import run_analysis

    print(f"{title}: analysis in {part.folder}", file=sys.stderr)
    part.write_settings()
    outcome = run_analysis(part.config, TerminalWatcher())
    for failure in outcome.failures[:1]:
        heads = count(len(outcome.failures), "head")
        print(f"{title}: {heads} failed, the first: {failure.reason}", file=sys.stderr)


def is_analysed(part: Part) -> bool:
    """Whether a run is finished, with these settings and from the present files of the dump.

    A finished run is not written again, so that its run.json stays the same. It is also used if its
    dump is at a place that cannot be reached.
    """
    from attention_plasticity.run.compute import tasks_of
    from attention_plasticity.run.preparation import prepare

    config = part.config
    assert isinstance(config, RunnerConfig)
    if not has_finished_tables(part):
        return False
    try:
        return not tasks_of(prepare(config, TerminalWatcher()), workers=1)
    except (HubError, StoreError) as error:
        used = "the dump was not compared with the finished analysis, which is used"
        print(f"{part.folder}: {used}: {failure_text(error)}", file=sys.stderr)
        return True


def has_finished_tables(part: Part) -> bool:
    """Whether a run with these settings has all its tables as they were written.

    The dump is not read for this.
    """
    from attention_plasticity.run.run_json import recorded_config
    from attention_plasticity.tables.run_info import RUN_FILE, sha256_of

    config = part.config
    assert isinstance(config, RunnerConfig)
    if not (user_path(part.folder) / RUN_FILE).is_file():
        return False
    try:
        run = FinishedRun.open(part.folder)
    except ConfigError:  # run.json is damaged
        return False
    if not run.info.get("tables") or run.info.get("failures"):
        return False
    if run.settings != json.loads(json.dumps(recorded_config(config))):
        return False
    if run.info.get("not_analysed") and config.layers is None and config.heads is None:
        return False
    return all(
        sha256_of(run.folder / name) == (run.info.get("sha256") or {}).get(kind)
        for kind, name in run.info["tables"].items()
    )
