"""The settings of an analysis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig, load_config, make_config
from qk_toolkit.errors import ConfigError


def refusal(**fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_config(**fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_config_is_made_of_a_dict_keywords_or_another_config() -> None:
    config = make_config({"seed": 1, "p_alpha": 0.05}, seed=2, layers="0-3,8", max_rel_dist=1)
    assert (config.seed, config.p_alpha, config.layers) == (2, 0.05, [0, 1, 2, 3, 8])
    assert make_config(config.model_dump()) == config
    with pytest.raises(ValidationError):
        config.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("indent", ["", "analysis:\n"])
def test_a_file_is_read_flat_or_under_analysis_and_flags_win(tmp_path: Path, indent: str) -> None:
    path = tmp_path / "run.yaml"
    lines = ["num_q_heads: 32", "num_k_heads: 8", "seed: 5"]
    path.write_text(indent + "\n".join(("  " if indent else "") + line for line in lines))

    config = load_config(path, {"seed": "6"})

    assert config == make_config(num_q_heads=32, num_k_heads=8, seed=6)
    assert load_config(str(path)).seed == 5


@pytest.mark.parametrize(("q_heads", "k_heads"), [(9, 2), (4, 8), (7, 3)])
def test_heads_that_cannot_be_shared_out_are_refused(q_heads: int, k_heads: int) -> None:
    message = refusal(num_q_heads=q_heads, num_k_heads=k_heads)
    assert f"num_q_heads: {q_heads} is not a multiple of num_k_heads {k_heads}" in message
    assert make_config(num_q_heads=q_heads).num_k_heads is None  # dump.json may have it


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_pairs_per_bucket", "auto"),
        ("max_workers", 0),
        ("seed", -1),
        ("p_alpha", 1.0),
        ("query_model", "gaussian"),
        ("pair_sampling", "global"),
        ("layers", [-1]),
        ("single_example", "yes"),
    ],
)
def test_an_impossible_value_is_refused_by_name(field: str, value: object) -> None:
    assert refusal(**{field: value}).startswith(f"{field}: expected ")


def test_an_unknown_field_names_the_nearest() -> None:
    assert refusal(num_qheads=4) == "num_qheads: unknown field; did you mean num_q_heads?"


def test_the_beginning_of_a_field_names_it() -> None:
    """`num_layers` shares a larger part of its letters with `num_pair`."""
    hint = "did you mean num_pairs_per_bucket or num_pairs_per_bin?"
    assert refusal(num_pair=4) == f"num_pair: unknown field; {hint}"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be given here")
def test_workers_follow_the_cores_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert make_config().workers == len(allowed)
    assert make_config(max_workers=3).workers == 3
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert make_config().workers == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_every_other_field_changes_no_number_of_a_head() -> None:
    """Recorded heads are used again if `ANALYSIS_FIELDS` are equal, whatever the others are."""
    assert set(RunnerConfig.model_fields) - set(ANALYSIS_FIELDS) == {
        *("num_layers", "num_q_heads", "num_k_heads", "rotary", "repeated"),  # hashed as found
        *("dataset_local_root", "model_dir", "dataset_name", "dataset_revision"),
        *("dataset_cache_dir", "download_max_workers", "output_dir", "layers", "heads"),
        *("output_csv", "bucket_csv", "component_csv"),
        *("max_workers", "engine", "ray_address", "dry_run"),
        "role_thresholds",  # of other tables
    }


def test_defaults_that_decide_numbers_stay() -> None:
    """Others would change the values of a command that names none of them."""
    config = make_config()
    assert {name: getattr(config, name) for name in ANALYSIS_FIELDS} == {
        **{"single_example": False, "max_tokens_per_head": 50_000, "seed": 0},
        **{"query_model": "positional", "pair_sampling": "bucket", "max_rel_dist": 0.05},
        **{"num_pairs_per_bucket": 256, "num_pairs_per_bin": 256, "bin_size": "auto"},
        **{"normality_max_dims": 64, "p_alpha": 0.01, "distant_from": 256},
        "original_columns": True,
    }
