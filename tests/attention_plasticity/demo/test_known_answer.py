"""The demo's dump: the same bytes every time, and the structure it claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_plasticity.demo.known_answer import DemoShape, make_demo_dump
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
from qk_dump.source import open_dump


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_dump(tmp_path_factory.mktemp("demo"))


def test_the_same_seed_gives_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    small = DemoShape(examples=2, drifts=(1.0, 2.0))
    one, two = (make_demo_dump(tmp_path / name, small) for name in "ab")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 2 * 6 + 1
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)


def test_it_has_grouped_heads_and_one_windowed_layer(demo: Path) -> None:
    dump = open_dump(demo)
    assert len(dump.query_heads) == 16
    assert len(dump.key_heads) == 8
    windows = [
        read_head(dump.files(HeadId(layer, 0, "k")), max_rows=100).window for layer in range(4)
    ]
    assert windows == [None, 1024, None, None]
