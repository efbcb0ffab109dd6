"""The verb `baseline`: small captures with random weights and with shuffled tokens, analysed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from qk_toolkit.command_line import allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import settings_from

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.run.write import Outcome
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_sniffer.config import CaptureConfig

_PROGRAM = "attention-plasticity baseline"
_STORY = """\
Repeat the capture of a run with few texts, once with random weights and once with the tokens of
every text in random order, and analyse both as the run was analysed. The model, the texts and all
settings are those that the run records. The results are in RUN/baseline. The summary, the figures
and the page of the run then show both as reference lines.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity baseline results/qwen3-0.6b
  attention-plasticity baseline results/qwen3-0.6b --texts 16 --dry_run
  attention-plasticity baseline results/mine --model.name new/place --dataset.path new/texts

A command that was interrupted continues when it is repeated (without --overwrite).
Exit codes: 0 success, 1 some heads failed, 2 wrong usage or config, 130 interrupted.
"""
_INTERRUPTED = (
    "finished texts and heads are kept; run the same command again to continue (without "
    "--overwrite)"
)


class BaselineModel(BaseModel):
    """The model, if it is not where the capture found it, and how it is loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = Field(
        default=None, min_length=1, description="model (default: that of the capture)"
    )
    revision: str | None = Field(
        default=None, description="branch, tag or commit of the model (default: as captured)"
    )
    device_map: str | None = Field(
        default=None, description="cpu, cuda, cuda:1, or auto to use all GPUs"
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")


class BaselineTexts(BaseModel):
    """The texts, if they are not where the capture found them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(
        default=None, min_length=1, description="texts (default: those of the capture)"
    )
    streaming: bool = Field(
        default=False, description="read texts during the capture instead of downloading them first"
    )


class BaselineSettings(BaseModel):
    """What is repeated, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    texts: int = Field(
        title="how to run",
        default=8,
        ge=4,
        description="number of texts, from the start; 4 are needed for errors",
    )
    max_workers: int | None = Field(
        title="how to run",
        default=None,
        ge=1,
        description="worker processes of the analysis (default: one per available CPU)",
    )
    overwrite: bool = Field(
        title="how to run", default=False, description="discard earlier baselines of the run"
    )
    dry_run: bool = Field(
        title="how to run", default=False, description="print what would be captured, and stop"
    )
    model: BaselineModel = Field(default=BaselineModel())
    dataset: BaselineTexts = Field(default=BaselineTexts())

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are not those of the recorded capture."""
        return self.model_dump(
            include={"model", "dataset", "overwrite"}, exclude_unset=True, exclude_none=True
        )


def baseline(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity baseline RUN …` and return the exit code."""
    return guarded(lambda: _baseline(arguments), _INTERRUPTED)


def _baseline(arguments: Sequence[str]) -> int:
    place, settings = _parse(arguments)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    from attention_plasticity.tables.baselines import (
        BASELINES,
        lines_of_baseline,
        record_capture,
        run_lines,
    )
    from qk_study.baseline.captures import baseline_capture

    run = _opened(place)
    captures = {
        name: baseline_capture(name, run.folder, run.info, settings.texts, settings.changes)
        for name in BASELINES
    }
    if settings.dry_run:
        return _dry_run(captures)
    record_capture(run.folder, run.info, settings.overwrite)
    _print(run_lines(run.info))
    failed = 0
    for number, (name, config) in enumerate(captures.items(), start=1):
        title = f"baseline {number} of {len(captures)}, {BASELINES[name]}"
        print(f"{title}: capture in {config.data_root}", file=sys.stderr)
        _capture(config)
        print(f"{title}: analysis", file=sys.stderr)
        failed += len(_analyse(run, name, config, settings).failures)
        _print(lines_of_baseline(run.folder, run.info, name))
    _print(_last_lines(run, failed))
    return 1 if failed else 0


def _parse(arguments: Sequence[str]) -> tuple[str, BaselineSettings]:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} RUN [--texts N] [--FIELD VALUE …]"
    parser.add_argument("run", metavar="RUN", help="folder of an analysis (its output_dir)")
    add_flags(parser, BaselineSettings)
    flags = parse_flags(parser, arguments)
    place = flags.pop("run")
    return place, settings_from(BaselineSettings, flags=flags)


def _opened(place: str) -> FinishedRun:
    """The run, whose folder gets the baselines."""
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.urls import is_remote

    if is_remote(place):
        raise ConfigError(
            f"{place}: is not a folder of this machine; copy the run into a folder, and give it"
        )
    run = FinishedRun.open(place)
    if not run.info:
        raise ConfigError(
            f"{run.place}: has no run.json, so its settings are not known; run the analysis again"
        )
    return run


def _dry_run(captures: dict[str, CaptureConfig]) -> int:
    from attention_plasticity.tables.baselines import BASELINES
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.pipeline.estimate import estimate
        from qk_sniffer.summary import print_estimate

        for name, config in captures.items():
            with _recorded_places():
                found = estimate(config)
            print(BASELINES[name])
            print_estimate(config, found)
    return 0


def _capture(config: CaptureConfig) -> None:
    """Make the dump of a baseline, or complete it."""
    from qk_sniffer.extras import capture_extra

    with capture_extra(), _recorded_places():
        from qk_sniffer.pipeline.capture import run_capture
        from qk_toolkit.terminal import TerminalWatcher

        with TerminalWatcher() as watcher:
            run_capture(config, watcher)


@contextmanager
def _recorded_places() -> Iterator[None]:
    """Say in an error about a model or texts that cannot be found how to give them."""
    try:
        yield
    except ConfigError as error:
        message = str(error).replace("dataset.synthetic.texts: ", "dataset.path: ", 1)
        for name in ("model.name", "dataset.path"):
            if message.startswith(f"{name}: "):
                raise ConfigError(
                    f"{message} (give --{name} if it is not where the capture found it)"
                ) from error
        raise ConfigError(message) from error


def _analyse(
    run: FinishedRun, name: str, capture: CaptureConfig, settings: BaselineSettings
) -> Outcome:
    """Analyse a baseline as the run was analysed."""
    from attention_plasticity.run.runner import run_analysis
    from qk_toolkit.terminal import TerminalWatcher

    return run_analysis(_analysis(run, name, capture, settings), TerminalWatcher())


def _analysis(
    run: FinishedRun, name: str, capture: CaptureConfig, settings: BaselineSettings
) -> RunnerConfig:
    """The settings of the run, with its bins, for the dump of a baseline."""
    from attention_plasticity.config import ANALYSIS_FIELDS, make_config
    from attention_plasticity.tables.baselines import baseline_folder

    recorded = run.info.get("config") or {}
    fields = {field: recorded[field] for field in ANALYSIS_FIELDS if field in recorded}
    if run.info.get("not_analysed"):  # the same heads, if some were chosen
        fields["layers"] = sorted(set(run.head_metrics["layer"].tolist()))
        fields["heads"] = sorted(set(run.head_metrics["q_head"].tolist()))
    if run.info.get("bin_size"):
        fields["bin_size"] = run.info["bin_size"]
    return make_config(
        fields,
        dataset_local_root=capture.data_root,
        output_dir=str(baseline_folder(run.folder, name)),
        max_workers=settings.max_workers,
    )


def _print(lines: Iterable[str]) -> None:
    """Print lines of the result at once: the next ones may come minutes later."""
    with allow_closed_stdout():
        for line in lines:
            print(line)


def _last_lines(run: FinishedRun, failed: int) -> Iterator[str]:
    from qk_toolkit.formatting import count

    if failed:
        yield f"{count(failed, 'head')} of the baselines failed; see run.json in their folders"
    yield f"next: attention-plasticity report {shlex.quote(run.place)}"
