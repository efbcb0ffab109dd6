"""`compare_runs`: tables, files, notes and refusals."""

import re

import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.compare.writers import csv_text
from attention_plasticity.figures import caption_of
from attention_plasticity.tables.labels import labels_of
from helpers.plain_runs import edit_info, small_models
from helpers.report_runs import write_baselines, write_run
from helpers.run_tables import write_run as write_old_run
from qk_toolkit.errors import ConfigError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs on the same texts with two types of layers; the first has baselines."""
    runs = small_models(tmp_path_factory.mktemp("runs"), 2, "aa")
    write_baselines(runs[0].run.folder)
    return [one.run.folder for one in runs]


@pytest.fixture(scope="module")
def comparison(folders):
    return ap.compare_runs(folders, labels=["a", "b"])


def test_the_object_has_tables_and_short_texts(comparison):
    assert repr(comparison) == f"Comparison(a, b; {len(comparison.notes)} notes)"
    assert comparison._repr_markdown_() == comparison.to_markdown()
    assert list(comparison.notes) == ["concerns", "runs", "text"]
    assert comparison.to_csv().startswith("run,minus,")
    assert "\\begin{table}" in comparison.to_latex()
    caption = caption_of(comparison.plot()) or ""
    assert "29 heads in 5 layers (4 full attention, 1 sliding window), context 896" in caption


def test_other_methods_are_refused_unless_forced(tmp_path):
    one = write_old_run(tmp_path / "one", model="one")
    other = write_old_run(tmp_path / "other", model="other", query_model="full")
    with pytest.raises(ConfigError, match=r"query_model differs.*force=True shows them anyway"):
        ap.compare_runs([one, other])


@pytest.mark.parametrize(
    ("places", "labels", "told"),
    [
        (["{0}"], None, "expected two runs or more, got 1"),
        (["{0}", "nowhere"], None, "nowhere: does not exist"),
        (["{0}", "{1}"], ["a", "a"], "labels: must be different and not empty, got a, a"),
    ],
)
def test_misuse_is_one_line(places, labels, told, folders):
    with pytest.raises(ConfigError) as caught:
        ap.compare_runs([place.format(*folders) for place in places], labels)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_runs_of_one_model_are_named_by_their_folders(tmp_path):
    """As few folders as tell them apart; a run that is given twice has a number."""
    places = ["x/mine", "y/mine", "y/other", "y/mine"]
    runs = [ap.open_run(write_run(tmp_path / place, model="owner/m")) for place in places]
    assert labels_of(runs[1:3]) == ["m (mine)", "m (other)"]
    assert labels_of(runs[:3]) == ["m (x/mine)", "m (y/mine)", "m (y/other)"]
    assert labels_of([runs[1], runs[3]]) == ["m (mine, 1)", "m (mine, 2)"]


def test_key_heads_have_the_means_of_their_file(tmp_path):
    folders = [write_run(tmp_path / name, position=True) for name in "ab"]
    for folder in folders:
        rows = [
            {"layer": 0, "k_head": head, "aligned_plasticity": 0.1 * head, "static_error": 0.5}
            for head in range(3)
        ]
        pd.DataFrame(rows).to_csv(folder / "key_head_metrics.csv", index=False)
        edit_info(folder, tables__key_heads="key_head_metrics.csv")
        found = {"value": 0.1, "standard_error": 0.02, "heads": 3, "groups": 12}
        edit_info(folder, key_head_means={"aligned_plasticity": found})
    comparison = ap.compare_runs(folders, labels=["a", "b"])
    row = comparison.key_heads.set_index(["run", "metric"]).loc[("a", "aligned_plasticity")]
    assert (row["mean"], row["se"], row["df"], row["heads"]) == (pytest.approx(0.1), 0.02, 11, 3)
    assert row["high"] - row["mean"] == pytest.approx(2.20098516 * 0.02)
    assert re.search(r"\| a \| 0\.100 ± 0\.044 \| 0\.500 \|", comparison.to_markdown())
    assert "key_head" in csv_text(comparison.key_heads)
