"""Before a run: the dump is found or fetched, its heads are paired, the output paths are chosen."""

from __future__ import annotations

from functools import partial

from attention_plasticity.config import RunnerConfig
from attention_plasticity.read.repeated import with_repeated
from attention_plasticity.run.outputs import (
    OutputPaths,
    output_paths,
    refuse_foreign_tables,
    refuse_reserved,
)
from attention_plasticity.run.plan import Plan, make_plan
from qk_dump.hub.pull import HeadChoice
from qk_dump.layout import Dump
from qk_dump.rotary_file import with_rotary
from qk_dump.source import DumpSource, open_dump
from qk_toolkit.watcher import Watcher


def prepare(
    config: RunnerConfig, watcher: Watcher | None = None, dump: Dump | None = None
) -> tuple[Dump, Plan, OutputPaths]:
    """Find or fetch the dump, pair its heads and choose the output paths. Nothing is written."""
    dump = with_repeated(dump or _find(config, watcher or Watcher()), config.repeated)
    dump = with_rotary(dump, config.rotary)
    paths = output_paths(config, dump.name)
    refuse_reserved(paths)
    refuse_foreign_tables(paths)
    return dump, make_plan(dump, config), paths


def _find(config: RunnerConfig, watcher: Watcher) -> Dump:
    source = DumpSource(
        config.dataset_local_root,
        config.model_dir,
        config.dataset_name,
        config.dataset_revision,
        config.dataset_cache_dir,
        config.download_max_workers,
    )
    choice = _heads_to_fetch(config)
    on_bytes = partial(watcher.show, "fetching", in_bytes=True)
    try:
        return open_dump(source, choice=choice, note=watcher.note, on_bytes=on_bytes)
    except BaseException:  # raised again
        watcher.stop()  # removes the bar
        raise


def _heads_to_fetch(config: RunnerConfig) -> HeadChoice:
    layers = config.layers
    if layers is None and config.num_layers is not None:
        layers = list(range(config.num_layers))
    group = None
    if config.num_q_heads and config.num_k_heads:
        group = config.num_q_heads // config.num_k_heads
    return HeadChoice(layers, config.heads, group)
