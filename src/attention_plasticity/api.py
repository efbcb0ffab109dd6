"""The library: analyse a dump, or open a finished run, and get DataFrames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attention_plasticity.config import RunnerConfig, make_config
from attention_plasticity.tables.finished_run import FinishedRun, opened_runs
from qk_dump.layout import Dump
from qk_toolkit.errors import ConfigError, ToolkitError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attention_plasticity.page import Report


class Run(FinishedRun):
    """A finished run: its tables as DataFrames and, in `info`, the content of run.json.

    Examples:
        >>> from attention_plasticity import open_run
        >>> run = open_run("results/sample").select(layers=[0])
        >>> run.head_metrics[["layer", "q_head", "k_head"]]
           layer  q_head  k_head
        0      0       0       0
        1      0       1       0
        >>> run.plot("map", metric="ap_aligned_drop").axes[0].get_xlabel()
        'query head'
    """

    def plot(self, kind: str, **options: Any) -> Figure:
        """Draw a figure: `run.plot("map", metric="ap_aligned_drop", layers="0-3")`.

        Names and options are those of `attention-plasticity plot NAME`. The figure keeps its
        caption, which `save_figure` of `attention_plasticity.figures` writes beside the file.
        """
        from attention_plasticity.figures.draw import draw_figure
        from attention_plasticity.figures.registry import spec_of

        return draw_figure(spec_of(kind), self, options)

    def report(self) -> Report:
        """The interactive page: shown inline by a notebook; `.save(path)` writes a file."""
        from attention_plasticity.page import make_report

        return make_report([self])


def analyze_dump(
    dump: Dump | str | os.PathLike[str],
    config: RunnerConfig | Mapping[str, Any] | None = None,
    *,
    progress: bool = False,
    **fields: Any,
) -> Run:
    """Analyse every head of a dump and write the tables, as the command line does.

    `fields` are settings of `RunnerConfig`, on top of `config`. A run that was interrupted
    continues. The dump may be on the Hub, `hf://datasets/owner/name@branch`. Raises when no head
    could be analysed; `Run.failures` lists those that failed. With `progress`, lines on standard
    error say what is done and how long it takes, as those of the command.

    Returns:
        The run. `head_metrics` has one row per query head, `bucket_plasticity` one per query head,
            query bucket and key bucket, and `component_weights` one per query head and dimension.

    Examples:
        >>> from attention_plasticity import analyze_dump, open_sample
        >>> run = analyze_dump(open_sample(), output_dir="results/one-head", layers=[0], heads=[0])
        >>> run.head_metrics[["layer", "q_head", "ap_overall"]].round(2)
           layer  q_head  ap_overall
        0      0       0        0.73
    """
    from attention_plasticity.run.runner import run_analysis
    from qk_toolkit.terminal import TerminalWatcher

    for name in {"dataset_local_root", "dry_run"} & set(fields):
        raise ConfigError(f"{name}: cannot be given here; the dump is the first argument")
    given = _as_fields(config) | fields
    given.pop("dry_run", None)
    if isinstance(dump, Dump):
        given |= {"dataset_local_root": str(dump.path), "model_dir": None}
    else:
        given |= {"dataset_local_root": str(dump)}
    fetched = (
        dump if isinstance(dump, Dump) and dump.origin else None
    )  # run.json records its origin
    outcome = run_analysis(
        make_config(given), TerminalWatcher() if progress else None, dump=fetched
    )
    if not outcome.info["heads"]["analysed"]:
        raise ToolkitError(
            f"no head could be analysed; the first reason: {outcome.failures[0].reason}"
        )
    return open_run(outcome.place.place)


def _as_fields(config: RunnerConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(config, RunnerConfig):
        return config.model_dump(exclude_unset=True)
    return dict(config or {})


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a finished run, or its URL, such as s3://bucket/run.

    Examples:
        >>> from attention_plasticity import open_run
        >>> run = open_run("results/sample")  # three layers, two heads each
        >>> run
        <Run 'results/sample': SmolLM2-135M-Instruct-Q4_1, 6 heads>
        >>> len(run.head_metrics)  # one row per query head
        6
    """
    return Run.open(folder)


def report(
    runs: Sequence[FinishedRun | str | os.PathLike[str]],
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> Report:
    """The interactive page of one or several runs, given as `Run` objects or as folders.

    A notebook shows it inline; `.save(path)` writes a file.

    Examples:
        >>> from attention_plasticity import report
        >>> page = report(["results/sample"], title="Three layers of SmolLM2")
        >>> page.save("page.html").name
        'page.html'
    """
    from attention_plasticity.page import make_report

    return make_report(*opened_runs(runs, labels), title)
