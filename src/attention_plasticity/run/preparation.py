"""Before a run: its dump, its heads, its texts and the names of its records."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from attention_plasticity.config import RunnerConfig, require_dump
from attention_plasticity.read.repeated import with_repeated
from attention_plasticity.read.texts import DumpTexts, run_texts
from attention_plasticity.run.fingerprints import InputFiles, run_settings
from attention_plasticity.run.folder import RunFolder
from attention_plasticity.run.plan import Group, Plan, make_plan, whole_plan
from attention_plasticity.run.records import Records, Unit
from qk_dump.hub.fetch import HeadChoice
from qk_dump.layout import Dump
from qk_dump.rotary_file import with_rotary
from qk_dump.source import DumpSource, open_dump
from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher


@dataclass(frozen=True)
class PlannedRun:
    """A run whose heads and settings are known. Nothing is written yet."""

    config: RunnerConfig
    dump: Dump
    plan: Plan  # heads that this command computes
    whole: Plan  # all heads of the dump
    texts: DumpTexts
    files: InputFiles
    place: RunFolder

    @cached_property
    def records(self) -> Records:
        """The records with these settings."""
        settings = run_settings(self.config, self.plan.layout, self.dump, self.texts, self.files)
        return Records(self.place.folder, settings)

    @property
    def total(self) -> int:
        """Number of query heads that this command computes."""
        return len(self.plan.heads)

    @cached_property
    def captured(self) -> set[tuple[int, int, int]]:
        """Layer, query head and key head of all heads of the dump."""
        return set(self.whole.triples)

    def unit(self, group: Group) -> Unit:
        """The record of a key head, of which some query heads may be chosen."""
        return self.units[group.layer, group.k_head]

    @cached_property
    def units(self) -> dict[tuple[int, int], Unit]:
        """The records of all key heads of the dump, by layer and number."""
        return {
            (one.layer, one.k_head): Unit(
                one.layer, one.k_head, self.files.of_group(one.layer, one.k_head, one.q_heads)
            )
            for one in self.whole.groups
        }

    @property
    def is_part(self) -> bool:
        """Whether only a part of the dump was fetched from the Hub."""
        chosen = self.config.layers is not None or self.config.heads is not None
        return chosen and self.dump.origin is not None

    @cached_property
    def job(self) -> str:
        """The run as its workers get it. Workers can have another current folder."""
        path = self.dump.path
        config = self.config.model_dump()
        for name in ("rotary", "repeated"):
            if config[name] is not None and not is_remote(config[name]):
                config[name] = str(user_path(config[name]).absolute())
        content: dict[str, Any] = {
            "dump": str(path.absolute() if isinstance(path, Path) else path),
            "texts": self.texts.as_message(),
            "config": config,
            "files": self.files.shared,
            "heads_per_key": self.plan.layout.num_q_heads // self.plan.layout.num_k_heads,
            "run": uuid.uuid4().hex,  # workers of a long session open the dump again for every run
        }
        return json.dumps(content)


def prepare(
    config: RunnerConfig,
    watcher: Watcher | None = None,
    dump: Dump | None = None,
    *,
    writes: bool = False,
) -> PlannedRun:
    """Find or fetch the dump, pair its heads and read its texts.

    With `writes`, the output folder is checked and created before the texts are read, because
    reading them can take long. Otherwise nothing is written.
    """
    watcher = watcher or Watcher()
    dump = with_repeated(dump or _find(config, watcher), config.repeated)
    dump = with_rotary(dump, config.rotary)
    plan = make_plan(dump, config)
    for note in plan.notes:
        watcher.note(note)
    place = RunFolder.of(config, dump.name)
    if writes:
        place.require_usable()
    texts = _texts(dump, config, watcher)
    whole, files = whole_plan(dump, plan.layout), InputFiles(dump)
    return PlannedRun(config, dump, plan, whole, texts, files, place)


def _texts(dump: Dump, config: RunnerConfig, watcher: Watcher) -> DumpTexts:
    """The texts of the dump. They do not depend on the layers that are chosen."""
    layers: Iterable[int] = {layer for layer, _ in dump.query_heads}
    try:
        return run_texts(dump, layers, config, partial(watcher.show, "heads whose texts are read"))
    except BaseException:  # raised again
        watcher.stop()  # removes the bar
        raise


def _find(config: RunnerConfig, watcher: Watcher) -> Dump:
    require_dump(config)
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
    return HeadChoice(layers, config.heads, group, for_analysis=True)
