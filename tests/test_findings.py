"""The scripts behind the pages of findings: counts at one position, and tables in pages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("findings_"):
            del sys.modules[name]


def _rows(seed: int, share: float) -> Any:
    """Rows of six texts of 48 tokens, of which some positions are kept."""
    from findings_counts import Rows

    rng = np.random.default_rng(seed)
    text, position = np.nonzero(rng.random((6, 48)) < share)
    vectors = rng.normal(size=(len(text), 3)) + np.stack(
        [np.cos(position), np.sin(position), np.ones(len(text))], axis=1
    )
    return Rows(vectors, position, text)


def test_the_count_is_that_of_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of keys are used, so nothing is drawn for the count at one position."""
    import findings_counts

    monkeypatch.setattr(findings_counts, "KEY_PAIRS", 10**6)
    queries, keys = _rows(0, 0.5), _rows(1, 0.4)
    exact, _ = findings_counts.count_head(queries, keys, np.random.default_rng(0), size=16)
    assert exact.value == pytest.approx(_counted(queries, keys, leave_out=-1))
    without = [_counted(queries, keys, leave_out=text) for text in range(6)]
    error = np.sqrt(5 / 6 * sum((value - np.mean(without)) ** 2 for value in without))
    assert exact.error == pytest.approx(error)


def _counted(queries: Any, keys: Any, leave_out: int) -> float:
    pairs = [
        (i, j)
        for i, j in combinations(range(len(queries.text)), 2)
        if queries.position[i] == queries.position[j]
        and leave_out not in (queries.text[i], queries.text[j])
    ]
    bins = []
    for query_bin in (1, 2):
        cells = []
        for key_bin in range(query_bin):
            differ = []
            for a, b in combinations(range(len(keys.text)), 2):
                if keys.text[a] != keys.text[b] or keys.text[a] == leave_out:
                    continue
                if not keys.position[a] // 16 == keys.position[b] // 16 == key_bin:
                    continue
                w = keys.vectors[a] - keys.vectors[b]
                for i, j in pairs:
                    if queries.position[i] // 16 == query_bin:
                        wins = [float(w @ queries.vectors[row]) > 0 for row in (i, j)]
                        differ.append(wins[0] != wins[1])
            cells.append(2 * np.mean(differ))
        bins.append(np.mean(cells))
    return float(np.mean(bins))


def test_a_head_that_only_turns_has_plasticity_over_a_bin_alone() -> None:
    """All queries at a position are equal; the winner changes with the position."""
    import findings_counts

    keys = _rows(1, 0.4)
    turning = _rows(0, 0.5)
    vectors = np.stack([np.cos(turning.position), np.sin(turning.position)], axis=1)
    queries = findings_counts.Rows(vectors, turning.position, turning.text)
    flat = findings_counts.Rows(keys.vectors[:, :2], keys.position, keys.text)
    exact, over = findings_counts.count_head(queries, flat, np.random.default_rng(0), size=16)
    assert exact.value == 0
    assert over.value == pytest.approx(1, abs=0.1)


def test_a_head_that_turns_with_content_alone_has_the_same_value_twice() -> None:
    """Queries without a direction: each key wins for half of them, at one position and over all."""
    import findings_counts

    rng = np.random.default_rng(0)
    text, position = (grid.ravel() for grid in np.mgrid[:12, :64])
    queries = findings_counts.Rows(rng.normal(size=(len(text), 4)), position, text)
    keys = findings_counts.Rows(rng.normal(size=(len(text), 4)), position, text)
    exact, over = findings_counts.count_head(queries, keys, rng, size=16)
    assert exact.value == pytest.approx(1, abs=0.03)
    assert over.value == pytest.approx(1, abs=0.05)


def test_tables_are_written_between_their_markers(tmp_path: Path) -> None:
    from findings.pages import markdown, write_tables

    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- one -->\n\nold\n\n<!-- end of one -->\n\nafter\n")
    write_tables(page, {"one": markdown(["name", "value"], [["a", "1"]])})
    expected = "before\n\n<!-- one -->\n\n| name | value |\n| --- | ---: |\n| a | 1 |\n\n"
    assert page.read_text() == expected + "<!-- end of one -->\n\nafter\n"
