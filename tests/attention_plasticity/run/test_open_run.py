"""Before the first head of a run is computed, few folders are listed and few files are opened."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.run import fingerprints, local_engine
from attention_plasticity.run.engines import make_engine
from attention_plasticity.run.open_run import open_run
from attention_plasticity.run.tasks import TaskQueue
from dumps import make_dump
from qk_toolkit.watcher import Watcher


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder was listed."""
    counts: Counter[str] = Counter()
    for name in ("listdir", "scandir"):
        original = getattr(os, name)

        def counting(path: Any = ".", original: Any = original) -> Any:
            counts[os.fspath(path)] += 1
            return original(path)

        monkeypatch.setattr(os, name, counting)
    return counts


@pytest.mark.parametrize("below", ["", "model"], ids=["heads in the root", "heads below the root"])
def test_heads_start_before_all_files_were_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Counter[str], below: str
) -> None:
    root = tmp_path / "dump"
    make_dump(root / below, layers=6, q_heads=2, k_heads=1, n=1000)
    opened: list[Path] = []
    original = fingerprints._file_state
    monkeypatch.setattr(
        fingerprints,
        "_file_state",
        lambda path, **how: opened.append(path) or original(path, **how),
    )
    listed.clear()
    config = make_config(
        dataset_local_root=str(root), output_dir=str(tmp_path / "out"), max_workers=1
    )
    with open_run(config, Watcher()) as run:
        assert set(run.heads.plan.heads) == {(layer, head) for layer in range(6) for head in (0, 1)}
        folders = {name: number for name, number in listed.items() if name.startswith(str(root))}
        first = [root / below / name for name in ("l00h00q", "l00h00k")]  # for unknown columns
        expected = Counter(map(str, {root, root / below, *first}))
        expected[str(first[0])] += 1  # for bins, as there is no dump.json
        assert folders == expected
        assert {path.parent for path in opened} == {root / below}  # dump.json and examples
        at_start: list[set[str]] = []
        assign = local_engine._Worker.assign

        def recording(worker: Any, task: Any) -> None:
            heads = [path for path in opened if path.parent != root / below]
            at_start.append({path.parent.name[:3] for path in heads})
            assign(worker, task)

        monkeypatch.setattr(local_engine._Worker, "assign", recording)
        with closing(make_engine(TaskQueue(run.heads.tasks()), config)) as computed:
            for _ in range(2):  # the heads of the first task
                next(computed)
        assert at_start[0] == {"l00"}
        assert at_start[1] == {f"l{layer:02d}" for layer in range(6)}  # while the first is computed
