"""Where errors come from: predictions against real subsamples of the embedded sample."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysed import analyse_together
from attention_plasticity import make_config, open_dump, open_run, open_sample
from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.plasticity import enough_pairs
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head_analysis import analyze_rows, head_variance_parts
from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.numeric.key_pairs import KeyIndex
from attention_plasticity.power.prediction import (
    Change,
    Limits,
    RowCounts,
    cheapest_change,
    error_range,
    typical_error,
)
from attention_plasticity.power.text import advice
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.examples import Example, write_examples
from qk_dump.layout import HeadId
from qk_dump.reader import HeadRows
from simulated_heads import part_of

CONFIG = RunnerConfig(counting=False, normality_max_dims=1)  # more dims change no error
HEADS = [(layer, head) for layer in (0, 14, 29) for head in (0, 3, 5, 7)]
PARTS = VarianceParts(
    by_group=(1e-6,),
    queries=1e-5,
    keys=5e-5,
    pairs=3e-5,
    n_texts=12,
    n_queries=2000,
    n_keys=2000,
    queries_per_bucket=(160, 160),
    available=(600, 200),
    pairs_per_bucket=256,
)
ENOUGH = RowCounts.of([PARTS], texts=12, tokens=8192)

Choice = Callable[[HeadRows, np.random.Generator], np.ndarray]


@pytest.fixture(scope="module")
def parts() -> list[VarianceParts]:
    dump = open_sample()
    found = [head_variance_parts(dump, layer, head, head // 3, CONFIG) for layer, head in HEADS]
    assert None not in found
    return [one for one in found if one is not None]


@pytest.fixture(scope="module")
def aligned_parts() -> list[VarianceParts]:
    """The parts of the error of plasticity at one position."""
    dump, found = open_sample(), []
    for layer, head in HEADS:
        parts = head_variance_parts(dump, layer, head, head // 3, CONFIG, at_one_position=True)
        assert parts is not None
        found.append(parts)
    return found


@pytest.fixture(scope="module")
def heads() -> dict[tuple[int, int], tuple[KeyHead, HeadRows]]:
    """Keys and queries of the heads; their attention, which has errors of its own, is left out."""
    dump, found = open_sample(), {}
    for layer, head in HEADS:
        keys = KeyHead.read(dump, layer, head // 3, CONFIG)
        rows, _ = read_queries(dump, HeadId(layer, head, "q"), keys, CONFIG)
        found[layer, head] = keys, replace(rows, attention=None)
    return found


def observed(
    heads: dict[tuple[int, int], tuple[KeyHead, HeadRows]],
    queries: Choice,
    keys: Choice,
    config: RunnerConfig,
) -> dict[str, float]:
    """Root mean square over heads of the standard errors of subsamples of the rows."""
    squares: dict[str, list[float]] = {"ap_overall": [], "ap_aligned": []}
    for (layer, head), (key_head, rows) in heads.items():
        for seed in range(1 if (queries, keys) == (every, every) else 2):  # all rows: one is enough
            rng = np.random.default_rng([seed, layer, head])
            some = part_of(key_head.rows, keys(key_head.rows, rng))
            assert some.example_id is not None
            index = KeyIndex(some.position, some.bucket, some.example_id)
            small = replace(key_head, rows=some, index=index, known_weights=None)
            result = analyze_rows(
                layer, head, head // 3, part_of(rows, queries(rows, rng)), small, config
            )
            for column, values in squares.items():
                values.append(result.metrics[f"{column}_se"] ** 2)
    return {column: math.sqrt(np.mean(values)) for column, values in squares.items()}


def every(rows: HeadRows, rng: np.random.Generator) -> np.ndarray:
    return np.ones(len(rows), bool)


def share(part: float) -> Choice:
    return lambda rows, rng: rng.random(len(rows)) < part


def half_of_the_texts(rows: HeadRows, rng: np.random.Generator) -> np.ndarray:
    """The same texts for queries and keys: the first number of the generator decides."""
    assert rows.example_id is not None
    first = int(np.random.default_rng(rng.bit_generator.seed_seq.entropy).integers(0, 2))  # type: ignore[attr-defined]
    return rows.example_id % 2 == first


CASES: dict[str, tuple[Change, Choice, Choice, dict[str, Any]]] = {
    "half of the texts": (Change(texts=0.5), half_of_the_texts, half_of_the_texts, {}),
    "half of the queries": (Change(queries=0.5), share(0.5), every, {}),
    "half of the keys": (Change(keys=0.5), every, share(0.5), {}),
    "a quarter of both": (Change(queries=0.25, keys=0.25), share(0.25), share(0.25), {}),
    "64 pairs": (Change(pairs=0.25), every, every, {"num_pairs_per_bucket": 64}),
    "1,024 pairs": (Change(pairs=4), every, every, {"num_pairs_per_bucket": 1024}),
}


@pytest.mark.parametrize("name", CASES)
def test_predicted_errors_are_those_of_real_subsamples(
    name: str,
    parts: list[VarianceParts],
    aligned_parts: list[VarianceParts],
    heads: dict[tuple[int, int], tuple[KeyHead, HeadRows]],
) -> None:
    """Fifteen percent: the errors of 12 heads and two subsamples are that uncertain themselves."""
    change, queries, keys, settings = CASES[name]
    real = observed(heads, queries, keys, CONFIG.model_copy(update=settings))
    assert typical_error(parts, change) == pytest.approx(real["ap_overall"], rel=0.15)
    assert typical_error(aligned_parts, change) == pytest.approx(real["ap_aligned"], rel=0.15)


def test_the_parts_sum_to_the_squared_error_up_to_small_sample_factors(
    parts: list[VarianceParts], heads: dict[tuple[int, int], tuple[KeyHead, HeadRows]]
) -> None:
    for (layer, head), one in zip(HEADS[:2], parts, strict=False):
        keys, rows = heads[layer, head]
        metrics = analyze_rows(layer, head, head // 3, rows, keys, CONFIG).metrics
        total = one.texts + one.queries + one.keys + one.pairs
        assert total == pytest.approx(metrics["ap_overall_se"] ** 2, rel=0.02)
        assert RotatedQueries.of(rows, keys.signs).example_id is not None


def test_more_of_everything_never_makes_the_error_larger() -> None:
    now = typical_error([PARTS], Change())
    for change in (Change(texts=2), Change(queries=2), Change(keys=2), Change(pairs=2)):
        assert typical_error([PARTS], change) < now
    assert typical_error([PARTS], Change(pairs=8)) == typical_error([PARTS], Change(pairs=4))


def test_the_cheapest_change_needs_no_new_capture_if_pairs_are_enough() -> None:
    now = typical_error([PARTS], Change())
    change = cheapest_change([PARTS], 0.99 * now)
    assert change == Change(pairs=2)
    assert cheapest_change([PARTS], 0.8 * now) == Change(keys=2, pairs=2)
    assert cheapest_change([PARTS], now) == Change()
    assert cheapest_change([PARTS], now / 100) is None
    assert "No change up to 16 times" in advice([PARTS], ENOUGH, now / 100)
    assert "needs no change" in advice([PARTS], ENOUGH, 1.0)
    assert "twice the key pairs" in advice([PARTS], ENOUGH, 0.99 * now)
    assert "The settings are num_pairs_per_bucket" in advice([PARTS], ENOUGH, 0.99 * now)


def test_rows_grow_by_more_than_16_times_but_not_beyond_the_tokens_of_the_texts() -> None:
    starved = replace(PARTS, queries=1e-2, n_queries=96, n_keys=96)
    change = cheapest_change([starved], 0.03)
    assert change == Change(queries=16)
    assert cheapest_change([starved], 0.016) == Change(queries=64)
    all_rows = RowCounts.of([starved], texts=12, tokens=8.0)
    assert all_rows.limits == Limits(queries=1.0, keys=1.0)
    limited = cheapest_change([starved], 0.03, all_rows.limits)
    assert limited is not None
    assert (limited.texts, limited.queries, limited.keys) == (16, 1, 1)


def test_few_rows_are_named_with_the_settings_of_the_capture() -> None:
    few = RowCounts(texts=12, queries=7, keys=7, tokens=8192, bucket_queries=5, bucket_pairs=2)
    assert few.few
    assert advice([PARTS], few, 0.001) == (
        "There are too few rows to predict other errors: 5 queries per query bucket and 2 key "
        "pairs per key bucket, where 8 and 4 are needed. First capture more rows of the same "
        "texts: capture.sampler.type auto keeps about 171 queries and 683 keys of every text (now "
        "7 and 7). With another type, set capture.sampler.base_rate to 10.7 and key_base_rate to "
        "42.7. Then use power again: from so few rows it cannot tell whether more texts would help "
        "more."
    )
    assert "All tokens of the texts are captured" in replace(few, tokens=7).advice()
    assert "buckets are too small" in replace(few, queries=200, keys=700).advice()
    assert "about 100 queries and 100 keys" in replace(few, tokens=100).advice()


def test_the_range_comes_from_the_differences_between_texts() -> None:
    parts = replace(PARTS, by_group=(4e-5, -3e-5, 2e-5, 1e-5))
    low, high = error_range([parts], Change(queries=4, keys=4))
    assert low < typical_error([parts], Change(queries=4, keys=4)) < high
    assert len({*error_range([PARTS], Change())}) == 1  # one group: no range is known


def test_auto_brings_pairs_below_a_tenth() -> None:
    many = replace(PARTS, available=(10_000, 10_000))
    chosen = enough_pairs(many)
    assert chosen in (512, 1024, 2048, 4096)
    pairs = many.pairs * 256 / chosen
    assert pairs <= 0.1 * (many.texts + many.queries + many.keys + pairs)
    assert enough_pairs(replace(many, pairs=1e-9)) == 256
    assert enough_pairs(None) == 256
    assert enough_pairs(replace(many, pairs=1.0)) == 4096


def test_only_more_texts_help_if_the_texts_dominate() -> None:
    text = advice([replace(PARTS, by_group=(1.0,))], ENOUGH, None)
    assert text.startswith("Only more texts help")
    assert "four times the texts" in text


def test_no_possible_pair_is_no_division_by_zero() -> None:
    none = replace(PARTS, available=(0, 0), pairs=0.0)
    assert typical_error([none], Change(pairs=4)) == typical_error([none], Change())


@pytest.mark.parametrize("pair_sampling", ["local", "context"])
def test_other_pairs_than_those_of_a_bucket_have_their_own_limit(
    pair_sampling: str, tmp_path: Path
) -> None:
    """One key per text and bucket: no pair in a bucket, but many pairs in the context."""
    dump = make_dump(
        tmp_path, layers=1, q_heads=1, k_heads=1, examples=8, n=120, bucket_size=16, context=256
    )
    config = make_config(pair_sampling=pair_sampling, num_pairs_per_bucket=8)
    parts = head_variance_parts(open_dump(dump), 0, 0, 0, config)
    assert parts is not None
    assert min(parts.available) >= 0
    assert max(parts.available) > 8
    more = typical_error([parts], Change(pairs=4))
    assert more < typical_error([parts], Change())


def test_parts_are_those_of_the_pairs_that_auto_chooses(tmp_path: Path) -> None:
    dump = make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, examples=8, n=2000)
    parts = head_variance_parts(open_dump(dump), 0, 0, 0, make_config(num_pairs_per_bucket="auto"))
    assert parts is not None
    assert parts.pairs_per_bucket > 256
    others = max(parts.texts, 0.0) + parts.queries + parts.keys
    assert parts.pairs <= 0.13 * (others + parts.pairs)  # a tenth, up to chance


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of 256 pairs, of auto, on 8 texts and without errors."""
    root = tmp_path_factory.mktemp("runs")
    large = make_dump(root / "large", layers=1, q_heads=1, k_heads=1, examples=8, n=2000)
    eight = make_dump(root / "eight", layers=1, q_heads=2, k_heads=1, examples=8)
    two = make_dump(root / "two", layers=1, q_heads=1, k_heads=1, examples=2)
    starved = make_dump(root / "starved", layers=1, q_heads=1, k_heads=1, examples=8, n=56)
    nothing = make_dump(root / "nothing", layers=1, q_heads=1, k_heads=1, examples=8, n=7)
    rotary = make_dump(root / "turned", layers=1, q_heads=2, k_heads=1, examples=8, n=2000)
    add_rotary(rotary)
    for dump in (starved, nothing):
        write_examples(dump, [Example(number, number, 1024, "") for number in range(8)])
    analyse_together(
        {
            root / "few": (large, {}),
            root / "auto": (large, {"num_pairs_per_bucket": "auto"}),
            root / "run": (eight, {}),
            root / "without errors": (two, {}),
            root / "few rows": (starved, {}),
            root / "rotary": (rotary, {"bin_size": 256}),
            root / "hardly a row": (nothing, {}),
        }
    )
    return root


def test_auto_is_a_setting_of_a_run(runs: Path) -> None:
    auto = open_run(runs / "auto")
    assert set(open_run(runs / "few").bucket_plasticity["n_pairs"]) == {256}
    assert auto.bucket_plasticity["n_pairs"].max() in (512, 1024, 2048, 4096)
    assert auto.info["config"]["num_pairs_per_bucket"] == "auto"
    with pytest.raises(Exception, match="auto needs error_bars"):
        make_config(num_pairs_per_bucket="auto", error_bars=False)


def test_the_verb_prints_parts_predictions_and_advice(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["power", str(runs / "run")]) == 0
    text = capsys.readouterr().out
    for part in ("texts", "queries", "keys", "key pairs", "four times the key pairs", "2 heads"):
        assert part in text
    whole = " ".join(text.split())
    assert "analyze again with --num_pairs_per_bucket " in whole
    assert "--capture.sampler.base_rate" in whole
    errors = open_run(runs / "run").head_metrics["ap_drop_se"].dropna().tolist()
    drop = (sum(error * error for error in errors) / len(errors)) ** 0.5
    told = re.search(r"error of the drop of a head \(ap_drop\) is (\S+) now", whole)
    assert told
    assert float(told[1]) == pytest.approx(drop, abs=1e-4)
    assert main(["power", str(runs / "run"), "--heads", "1"]) == 0
    assert "1 head of 2, evenly spaced to save time; --heads 2 takes all" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["power", str(runs / "run"), "--wanted", "0.00001"]) == 0
    assert "No change up to 16 times" in capsys.readouterr().out


def test_the_error_is_that_of_plasticity_at_one_position_if_it_is_known(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = open_run(runs / "rotary").head_metrics["ap_aligned_se"]
    assert main(["power", str(runs / "rotary")]) == 0
    told = re.search(
        r"standard error of plasticity at one position of a head \(ap_aligned\): (\S+) ",
        " ".join(capsys.readouterr().out.split()),
    )
    assert told
    assert float(told[1]) == pytest.approx(np.sqrt((errors**2).mean()), rel=0.15)
    assert main(["power", str(runs / "run")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("standard error of plasticity over a bucket of a head (ap_overall): 0.")


def test_a_starved_run_is_told_to_capture_more_rows_of_its_texts(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["power", str(runs / "few rows"), "--wanted", "0.01"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Where the squared error comes from" not in text
    assert "capture more rows of the same texts: capture.sampler.type auto" in text
    assert "(now 7 and 7)" in text
    assert "base_rate to 16 and key_base_rate to 64" in text
    assert main(["power", str(runs / "hardly a row")]) == 1
    error = capsys.readouterr().err
    assert "no head has a standard error" in error
    assert "capture more rows of the same texts: capture.sampler.type auto" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{run}", "--wanted", "much"], "--wanted: expected a number above 0, got 'much'"),
        (["{run}", "--heads", "0"], "--heads: expected an integer of at least 1, got '0'"),
        (["{run}", "--dump", "{run}/nowhere"], "does not exist"),
        (["{run}/nowhere"], "does not exist"),
    ],
)
def test_misuse_of_the_verb_is_one_line(
    words: list[str], reason: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["power", *(word.format(run=runs / "run") for word in words)]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_run_without_errors_has_nothing_to_predict(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["power", str(runs / "without errors")]) != 0
    assert "no head has a standard error" in capsys.readouterr().err
