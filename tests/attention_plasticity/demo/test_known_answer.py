"""The demo's dump: the same bytes every time, and the structure it claims."""

from __future__ import annotations

from pathlib import Path

from attention_plasticity.demo.known_answer import DemoShape, make_demo_dump


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    small = DemoShape(examples=2, drifts=(1.0, 2.0))
    one, two = (make_demo_dump(tmp_path / name, small) for name in "ab")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 2 * 6 + 1
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)
