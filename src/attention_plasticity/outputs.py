"""The three tables and run.json: their columns, their places, and writing them in one step each."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_plasticity.config import RunnerConfig
from attention_plasticity.results import HeadResult
from qk_dump.errors import ConfigError
from qk_dump.files import staged, user_path, write_through

IDS = ("layer", "q_head", "k_head")
METRIC_COLUMNS = (
    *IDS,
    *("n_q_tokens", "n_k_tokens", "d_model", "q_R2_pos", "q_R2_scalar"),
    *("q_mae_baseline", "q_mae_proj", "q_mae_ratio"),
    *("q_resid0_skew", "q_resid0_kurt", "q_resid0_ks_p"),
    *("q_noise_med_abs_skew", "q_noise_med_abs_kurt"),
    *("q_noise_med_ks_p", "q_noise_frac_ks_p_lt_alpha"),
    *("ap_overall", "q_beta_norm", "q_R2_total", "ap_first20", "ap_last20", "ap_drop"),
    *("ap_20to40", "ap_40to60", "ap_60to80", "q_position_max", "sliding_window"),
)
BUCKET_COLUMNS = (
    *IDS,
    *("q_bucket", "k_bucket", "plasticity", "n_pairs"),
    *("q_position", "k_position", "n_queries"),
)
COMPONENT_COLUMNS = (*IDS, "component", "weight", "r2")

RUN_FILE = "run.json"
_KEEP = "previous"


@dataclass(frozen=True)
class OutputPaths:
    """Where a run's files go."""

    folder: Path
    metrics: Path
    buckets: Path
    components: Path

    @property
    def run(self) -> Path:
        """Provenance of the tables."""
        return self.folder / RUN_FILE

    def names(self) -> dict[str, str]:
        """Tables by kind, relative to the run's folder where they lie in it."""
        tables = {
            "head_metrics": self.metrics,
            "bucket_plasticity": self.buckets,
            "component_weights": self.components,
        }
        return {
            kind: path.name if path.parent == self.folder else str(path.absolute())
            for kind, path in tables.items()
        }

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file a run writes for its users."""
        return (self.metrics, self.buckets, self.components, self.run)


def output_paths(config: RunnerConfig, dump_name: str) -> OutputPaths:
    """A bare file name lies in the run's folder; a name with a folder is taken as it is.

    Without `output_dir` the run's folder is that of `output_csv`, or `results/<dump>`.
    """
    named = user_path(config.output_csv)
    if config.output_dir is not None:
        folder = user_path(config.output_dir)
    elif named.name != config.output_csv:
        folder = named.parent
    else:
        folder = Path("results") / dump_name

    def place(name: str) -> Path:
        path = user_path(name)
        return folder / name if path.name == name else path

    paths = OutputPaths(
        folder, place(config.output_csv), place(config.bucket_csv), place(config.component_csv)
    )
    if len({path.resolve() for path in paths.all}) < len(paths.all):
        raise ConfigError(
            f"output_csv, bucket_csv, component_csv and {RUN_FILE} must be four files, got "
            + ", ".join(str(path) for path in paths.all)
        )
    return paths


def check_writable(paths: OutputPaths) -> None:
    """Fail before any work when a result could not be written."""
    for folder in {paths.folder, *(path.parent for path in paths.all)}:
        probe = folder / f".probe-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"{folder}: results cannot be written here: {error.strerror or error}. "
                "Choose another output_dir."
            ) from error
    for path in paths.all:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder, a table cannot be written in its place")


def set_aside(paths: OutputPaths) -> Path | None:
    """Move tables of another run out of the way, so that they cannot pass for this run's."""
    present = [path for path in paths.all if path.exists()]
    if not present:
        return None
    number = 1
    while (keep := paths.folder / f"{_KEEP}-{number}").exists():
        number += 1
    keep.mkdir()
    for path in present:
        path.replace(keep / path.name)
    return keep


def write_outputs(paths: OutputPaths, results: Sequence[HeadResult], run: dict[str, Any]) -> None:
    """Write the tables and run.json beside their targets, then rename them together.

    A run without a single finished head has no tables; its run.json says why.
    """
    ordered = sorted(results, key=lambda result: (result.layer, result.q_head))
    texts = {paths.run: json.dumps(run, indent=2) + "\n"}
    if ordered:
        texts |= _tables(paths, ordered)
    with ExitStack() as stack:
        for path, text in texts.items():
            write_through(stack.enter_context(staged(path)), text)


def _tables(paths: OutputPaths, ordered: Sequence[HeadResult]) -> dict[Path, str]:
    metrics = ([result.metrics[name] for name in METRIC_COLUMNS] for result in ordered)
    return {
        paths.metrics: _csv(METRIC_COLUMNS, metrics),
        paths.buckets: _csv(BUCKET_COLUMNS, _rows(ordered, "buckets", BUCKET_COLUMNS)),
        paths.components: _csv(COMPONENT_COLUMNS, _rows(ordered, "components", COMPONENT_COLUMNS)),
    }


def _rows(
    results: Iterable[HeadResult], table: str, columns: tuple[str, ...]
) -> Iterator[list[Any]]:
    for result in results:
        content = getattr(result, table)
        ids = [result.layer, result.q_head, result.k_head]
        for row in zip(*(content[name] for name in columns[len(IDS) :]), strict=True):
            yield [*ids, *row]


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Floats in their shortest form that reads back exactly; missing ones as `nan`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
