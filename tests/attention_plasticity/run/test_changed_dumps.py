"""A run whose dump changes, and dumps whose texts are not those of `examples.parquet`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attention_plasticity.config import make_config
from attention_plasticity.run.merging import merge_shards, run_shard
from commands_here import analyze_here
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.examples import Example, write_examples
from qk_toolkit.errors import ConfigError

TEXTS = 12
TABLES = ("head_metrics.csv", "head_bucket_plasticity.csv", "head_influences.csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of 2 heads and 12 texts, and `out`, a run of it."""
    folder = tmp_path_factory.mktemp("whole")
    dump = make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, n=240, d=4, examples=TEXTS)
    write_manifest(dump, "full_attention")
    name_texts(dump, range(TEXTS))
    assert analyze(folder).returncode == 0
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """A copy of the dump and the run. The files keep their modification times."""
    shutil.copytree(whole / "dump", tmp_path / "dump")
    shutil.copytree(whole / "out", tmp_path / "out")
    return tmp_path


def write_manifest(dump: Path, layer_type: str, layers: int = 1) -> None:
    first = {"layer": 0, "type": layer_type, "rope": True, "window": None}
    counts = {"num_layers": layers, "num_q_heads": 2, "num_k_heads": 1}
    (dump / "dump.json").write_text(json.dumps({"model": "tiny", **counts, "layers": [first]}))


def name_texts(dump: Path, ids: range) -> None:
    write_examples(dump, [Example(number, f"text {number}", 1024, "") for number in ids])


def analyze(folder: Path, *flags: str) -> CompletedProcess[str]:
    words = ("--dataset_local_root", folder / "dump", "--output_dir", folder / "out")
    return analyze_here(*words, *flags)


def tables(folder: Path) -> dict[str, str]:
    return {name: (folder / "out" / name).read_text() for name in TABLES}


def _without_logit_drift(table: str) -> list[str]:
    """The rows, without those in units of the longest text, whose length examples.parquet has."""
    return [row for row in table.splitlines() if "_logit_drift" not in row]


def change_column(file: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    table = pq.read_table(file)
    values = pa.array(change(table[name].to_numpy()))
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), file)


def forget_a_head(folder: Path) -> None:
    """The run as it is when it was killed before its last head."""
    (folder / "out" / ".heads" / "l00h01.json").unlink()
    (folder / "out" / "run.json").unlink()


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("examples.parquet", lambda dump: name_texts(dump, range(TEXTS // 2))),
        ("examples.parquet", lambda dump: (dump / "examples.parquet").unlink()),
        ("dump.json", lambda dump: write_manifest(dump, "global_attention")),
    ],
    ids=["cut examples.parquet", "no examples.parquet", "other dump.json"],
)
def test_a_run_is_not_continued_with_another_state_of_the_dump(
    place: Path, name: str, change: Callable[[Path], object], killed: bool
) -> None:
    before = tables(place)
    if killed:
        forget_a_head(place)
    change(place / "dump")
    refused = analyze(place)
    assert refused.returncode == 2
    assert "holds results of another dump" in refused.stderr
    assert f"{name} of the dump differs" in refused.stderr
    assert "set overwrite" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert tables(place) == before
    assert analyze(place, "--overwrite").returncode == 0
    anew = tables(place)
    shutil.rmtree(place / "out")
    assert analyze(place).returncode == 0
    assert tables(place) == anew


def test_a_copy_of_the_same_content_is_continued(place: Path, whole: Path) -> None:
    forget_a_head(place)
    for name in ("dump.json", "examples.parquet"):
        (place / "dump" / name).write_bytes((whole / "dump" / name).read_bytes())  # another time
    continued = analyze(place)
    assert continued.returncode == 0
    assert "1 of 2 heads were finished earlier" in continued.stderr
    assert tables(place) == tables(whole)


def add_to_ids(dump: Path, number: int) -> None:
    for file in dump.glob("l*/data.parquet"):
        change_column(file, "example_id", lambda ids: ids.astype(np.int64) + number)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda dump: name_texts(dump, range(3)), "does not name 9 texts (3-11) of the dump"),
        (lambda dump: name_texts(dump, range(1, TEXTS)), "does not name text 0 of the dump"),
        (lambda dump: add_to_ids(dump, 2**40), "does not name 12 texts (1099511627776-"),
        (lambda dump: (dump / "examples.parquet").write_bytes(b"junk"), "cannot be read ("),
        (
            lambda dump: change_column(dump / "examples.parquet", "example_id", lambda ids: -ids),
            "has a negative example_id",
        ),
    ],
    ids=["3 of 12 named", "first not named", "ids + 2^40", "unreadable", "negative names"],
)
def test_texts_that_are_not_named_are_ranked_by_the_ids_found(
    place: Path, whole: Path, change: Callable[[Path], object], problem: str
) -> None:
    """The groups are those of the whole list: the same ids have the same ranks."""
    change(place / "dump")
    shutil.rmtree(place / "out")
    done = analyze(place)
    assert done.returncode == 0
    anew = tables(place)
    found, expected = (
        {name: _without_logit_drift(text) for name, text in written.items()}
        for written in (anew, tables(whole))
    )
    assert found == expected
    info = json.loads((place / "out" / "run.json").read_text())
    texts = info["input"]["texts"]
    assert (texts["count"], texts["digest"]) == (TEXTS, None)
    [warning] = [one for one in info["warnings"] if one["kind"] == "texts_not_named"]
    assert f"examples.parquet: {problem}" in warning["text"]
    assert "from the 12 texts found in the heads" in warning["text"]
    assert "found in the heads" in done.stdout
    forget_a_head(place)
    assert analyze(place).returncode == 0
    assert tables(place) == anew


def test_a_continued_run_has_the_groups_of_its_finished_heads(place: Path, whole: Path) -> None:
    """Text 0 has rows in layer 1 only. Without its heads, the ranks of the others would change."""
    dump = place / "dump"
    shutil.copytree(dump / "l00h00q", dump / "l01h00q")
    shutil.copytree(dump / "l00h00k", dump / "l01h00k")
    for file in dump.glob("l00*/data.parquet"):
        pq.write_table(pq.read_table(file, filters=[("example_id", "!=", 0)]), file)
    write_manifest(dump, "full_attention", layers=2)
    name_texts(dump, range(3))
    shutil.rmtree(place / "out")
    assert analyze(place, "--layers", "0").returncode == 0
    saved = json.loads((place / "out" / ".heads" / "texts.json").read_text())
    assert saved["ids"] == [[0, TEXTS - 1]]
    before = tables(place)
    forget_a_head(place)
    shutil.rmtree(dump / "l01h00q")
    shutil.rmtree(dump / "l01h00k")
    assert analyze(place, "--layers", "0").returncode == 0
    assert tables(place) == before
    assert analyze(place, "--layers", "0", "--overwrite").returncode == 0
    assert tables(place) != before


def test_negative_ids_are_refused(place: Path) -> None:
    file = place / "dump" / "l00h01q" / "data.parquet"
    change_column(file, "example_id", lambda ids: np.where(ids == 5, -5, ids))
    shutil.rmtree(place / "out")
    done = analyze(place)
    assert done.returncode == 1
    assert f"{file}: row" in done.stdout.replace("\n", "")
    assert "negative example_id" in done.stdout
    assert len(pd.read_csv(place / "out" / "head_metrics.csv")) == 1


def test_a_single_head_with_texts_of_its_own_fails(place: Path, whole: Path) -> None:
    """The other heads agree with `examples.parquet`, so this file is the wrong one."""
    file = place / "dump" / "l00h01q" / "data.parquet"
    change_column(file, "example_id", lambda ids: ids + 1)
    shutil.rmtree(place / "out")
    done = analyze(place)
    assert done.returncode == 1
    told = " ".join(done.stdout.split())
    assert "has rows of text 12, which is not one of the 12 texts in examples.parquet" in told
    single = analyze(place, "--single_example", "--overwrite")
    assert single.returncode == 0  # the column is not used


def test_heads_of_two_lists_of_texts_are_not_mixed(place: Path) -> None:
    """The saved list is lost, and the heads that it came from."""
    dump = place / "dump"
    name_texts(dump, range(3))
    shutil.rmtree(place / "out")
    assert analyze(place).returncode == 0
    forget_a_head(place)
    saved = place / "out" / ".heads" / "texts.json"
    saved.write_text(saved.read_text().replace("11]", "10]"))
    assert analyze(place).returncode == 0  # the same texts are found again
    forget_a_head(place)
    saved.unlink()
    rows = pq.read_table(dump / "l00h01q" / "data.parquet")
    more = rows["example_id"].to_numpy() + 100 * (np.arange(len(rows)) % 2)
    index = rows.schema.get_field_index("example_id")
    rows = rows.set_column(index, "example_id", pa.array(more, pa.int32()))
    pq.write_table(rows, dump / "l00h01q" / "data.parquet")
    refused = analyze(place)
    assert refused.returncode == 2
    assert "differs in the texts of the dump" in refused.stderr


def test_a_repaired_head_with_a_new_text_is_told_what_to_do(place: Path) -> None:
    name_texts(place / "dump", range(3))
    shutil.rmtree(place / "out")
    file = place / "dump" / "l00h01q" / "data.parquet"
    content = file.read_bytes()
    file.write_bytes(b"junk")
    assert analyze(place).returncode == 1
    file.write_bytes(content)
    change_column(file, "example_id", lambda ids: np.where(ids == 5, 77, ids))
    told = " ".join(analyze(place).stdout.split())
    assert "has rows of text 77, which is not one of the 12 texts found when the run began" in told
    assert "analyse all heads again" in told
    assert analyze(place, "--overwrite").returncode == 0


def test_with_a_single_example_the_texts_are_not_needed(place: Path) -> None:
    name_texts(place / "dump", range(3))
    shutil.rmtree(place / "out")
    done = analyze(place, "--single_example")
    assert done.returncode == 0
    assert "found in the heads" not in done.stdout


def test_two_columns_of_one_name_are_no_list_of_texts(place: Path) -> None:
    path = place / "dump" / "examples.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("original_id", table["original_id"]), path)
    shutil.rmtree(place / "out")
    assert analyze(place).returncode == 0
    assert json.loads((place / "out" / "run.json").read_text())["input"]["texts"] is None


def shard(dump: Path, out: Path, index: int) -> list[str]:
    """Run one of two shards. Returns the reasons of its failures."""
    fields = {"engine": "shards", "num_shards": 2, "shard_index": index, "max_workers": 1}
    config = make_config(dataset_local_root=str(dump), output_dir=str(out), **fields)
    return [failure.reason for failure in run_shard(config).failures]


@pytest.mark.parametrize("one_folder", [True, False])
def test_shards_continue_after_a_repair_of_the_dump(tmp_path: Path, one_folder: bool) -> None:
    dump = make_dump(tmp_path / "dump", layers=2, q_heads=1, k_heads=1, n=60, d=4)
    file = dump / "l01h00q" / "data.parquet"
    content = file.read_bytes()
    file.write_bytes(b"junk")
    places = [tmp_path / ("all" if one_folder else str(index)) for index in (0, 1)]
    folders = sorted(set(places))
    failed = [shard(dump, place, index) for index, place in enumerate(places)]
    assert [len(reasons) for reasons in failed] == [0, 1]
    assert len(merge_shards(folders, tmp_path / "merged").failures) == 1
    file.write_bytes(content)
    assert shard(dump, places[1], 1) == []
    if not one_folder:
        with pytest.raises(ConfigError, match="If files were repaired, run all shards again"):
            merge_shards(folders, tmp_path / "merged")
        assert shard(dump, places[0], 0) == []
    assert merge_shards(folders, tmp_path / "merged").failures == []


def test_shards_with_other_lists_of_texts_are_not_merged(tmp_path: Path) -> None:
    """Texts of layer 1 are not named, which the shard of layer 0 could not see at first."""
    dump = make_dump(tmp_path / "dump", layers=2, q_heads=1, k_heads=1, n=60, d=4)
    name_texts(dump, range(4))
    for kind in "qk":
        file = dump / f"l01h00{kind}" / "data.parquet"
        change_column(file, "example_id", lambda ids: np.where(ids == 0, 9, ids))
    good = {file: file.read_bytes() for file in dump.glob("l01*/data.parquet")}
    for file in good:
        file.write_bytes(b"junk")
    assert shard(dump, tmp_path / "0", 0) == []
    for file, content in good.items():
        file.write_bytes(content)
    assert shard(dump, tmp_path / "1", 1) == []
    assert shard(dump, tmp_path / "0", 0) == []
    with pytest.raises(ConfigError, match="or from other texts of it"):
        merge_shards([tmp_path / "0", tmp_path / "1"])


def test_shards_of_two_dumps_are_not_merged(tmp_path: Path) -> None:
    """The dumps differ in one file per shard, each of which the other shard does not read."""
    one = make_dump(tmp_path / "one", layers=2, q_heads=1, k_heads=1, n=60, d=4)
    two = Path(shutil.copytree(one, tmp_path / "two"))
    make_dump(tmp_path / "other", layers=2, q_heads=1, k_heads=1, n=60, d=4, drift=2.0)
    shutil.copy(tmp_path / "other" / "l01h00q" / "data.parquet", two / "l01h00q")
    folders = []
    for index, dump in enumerate((one, two)):
        folders.append(tmp_path / f"shard{index}")
        assert shard(dump, folders[-1], index) == []
    with pytest.raises(ConfigError, match=r"shard1: was computed from another dump than .*shard0"):
        merge_shards(folders, tmp_path / "merged")
    for file in (folders[1] / ".heads").glob("l*.json"):  # records without their own facts.json
        shutil.copy(file, folders[0] / ".heads")
    with pytest.raises(ConfigError, match="layer 1, head 0: was computed from another dump"):
        merge_shards(folders[:1], tmp_path / "merged")
    assert not (tmp_path / "merged" / "head_metrics.csv").exists()
