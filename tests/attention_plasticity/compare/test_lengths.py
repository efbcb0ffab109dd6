"""Parts of the context, against plain sums over the rows of the CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_plasticity.compare.lengths import fifth_parts, length_parts, part_start
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.compare.summary import summary
from plain_runs import STUDENT_11, length, mean_vector, small_models


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[NamedRun]:
    return small_models(tmp_path_factory.mktemp("lengths"), 2, "aa")


def test_the_parts_of_long_and_short_contexts() -> None:
    names = {tokens: [part.name for part in length_parts(tokens)] for tokens in (16384, 131072)}
    assert names[16384] == ["0–2K", "2–4K", "4–8K", "8–16K"]
    assert names[131072] == ["0–8K", "8–16K", "16–32K", "32–64K", "64–128K"]
    assert [part.name for part in length_parts(131073)][-1] == "128–256K"
    assert [part.name for part in length_parts(16385)] == ["0–8K", "8–16K", "16–32K"]
    assert [part.name for part in length_parts(896)] == ["0–128", "128–256", "256–512", "512–1K"]
    for tokens in (1, 2, 100, 8192, 40_000):
        parts = length_parts(tokens)
        assert parts[0].start == 0
        assert parts[-1].start < tokens <= parts[-1].end
        assert [part_start(part.name) for part in parts] == [part.start for part in parts]
    assert [part_start(part.name) for part in fifth_parts(100)] == [0, 20, 40, 60, 80]


def expected(folder: Path, bins: range, first: range) -> dict[str, tuple[float, float]]:
    """Value and error of the four metrics of a part, whose drops are from another part."""
    own, pooled, start, start_pooled = (
        mean_vector(folder, quantity, part)  # (17,) value and influences
        for part in (bins, first)
        for quantity in ("ap_bin", "ap_bin_pooled")
    )
    vectors = {
        "ap_aligned": own,
        "ap_phase": pooled - own,
        "ap_aligned_drop": start - own,
        "ap_phase_drop": start_pooled - start - (pooled - own),
    }
    return {name: (vector[0], length(vector[1:])) for name, vector in vectors.items()}


@pytest.mark.parametrize(("part", "bins"), [("128–256", range(2, 4)), ("512–1K", range(8, 14))])
def test_values_and_errors_are_those_of_plain_sums(
    runs: list[NamedRun], part: str, bins: range
) -> None:
    table = summary(runs, "length")
    chosen = (table["run"] == "m1") & (table["minus"] == "") & (table["group"] == part)
    rows = table[chosen].set_index("metric")
    plain = expected(runs[1].run.folder, bins, range(1, 2))  # bin 0 has no value
    assert set(rows.index) == set(plain)
    for metric, (value, error) in plain.items():
        row = rows.loc[metric]
        assert row["mean"] == pytest.approx(value, abs=1e-12)
        assert row["se"] == pytest.approx(error, abs=1e-12)
        assert row["high"] - row["mean"] == pytest.approx(STUDENT_11 * error, rel=1e-8)
        assert row["heads"] == 29


def test_fifths_of_the_longest_text(runs: list[NamedRun]) -> None:
    """896 tokens: fifths end at 179.2, 358.4, 537.6, ...; the middle of bin b is at 64 b + 32."""
    table = summary(runs[:1], "fifth")
    rows = table[table["group"] == "20–40 %"].set_index("metric")
    for metric, (value, error) in expected(runs[0].run.folder, range(3, 6), range(1, 3)).items():
        assert rows.loc[metric, "mean"] == pytest.approx(value, abs=1e-12)
        assert rows.loc[metric, "se"] == pytest.approx(error, abs=1e-12)
    assert set(table[table["group"] == "0–20 %"]["metric"]) == {"ap_aligned", "ap_phase"}
