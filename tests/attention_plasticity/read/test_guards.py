"""Files that were mixed up: each mistake fails the heads that it concerns, or gives a warning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attention_plasticity as ap
from helpers.attention_dumps import Layer, make_attention_dump
from helpers.simulated_dumps import make_simulated_dump
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.side_files import read_tokens, write_tokens
from runs_here import analyse, run_info

Mistake = Callable[[Path], object]
LAYERS = [Layer(), Layer(window=14), Layer(window=16, chunked=True), Layer(softcap=2.0)]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two key heads with two query heads each, and keys drawn by attention."""
    return make_simulated_dump(tmp_path_factory.mktemp("right") / "dump")


@pytest.fixture
def dump(right: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(right, tmp_path / "dump"))


def file(dump: Path, head: str) -> Path:
    return dump / head / "data.parquet"


def change(dump: Path, head: str, name: str, how: Callable[[np.ndarray], Any]) -> None:
    """Write a column of a head with other values. The checksums are right."""
    table = pq.read_table(file(dump, head))
    place = table.schema.get_field_index(name)
    values = how(np.array(table[name].to_pylist()))
    column = pa.array(values.tolist(), table.schema.field(name).type)
    pq.write_table(table.set_column(place, name, column), file(dump, head))


def facts(dump: Path, **changes: Any) -> None:
    """Change fields of dump.json; `layer` has those of all layers."""
    content = json.loads((dump / MANIFEST_NAME).read_text())
    for entry in content["layers"]:
        entry |= changes.get("layer", {})
    content |= {name: value for name, value in changes.items() if name != "layer"}
    (dump / MANIFEST_NAME).write_text(json.dumps(content))


def lengths(dump: Path, tokens: int) -> None:
    path = dump / "examples.parquet"
    table = pq.read_table(path)
    shorter = pa.array([tokens] * len(table), pa.int32())
    pq.write_table(table.set_column(2, "num_tokens", shorter), path)


MISTAKES: dict[str, tuple[Mistake, str]] = {
    "the file of another query head": (
        lambda dump: shutil.copy(file(dump, "l00h01q"), file(dump, "l00h00q")),
        "is the file of l00h01q, but the folder is l00h00q",
    ),
    "more key heads than the model has": (
        lambda dump: facts(dump, num_k_heads=4),
        "`received` has 2 values per key.* 4 query heads and 4 key heads are 1",
    ),
    "the attended file is gone": (
        lambda dump: file(dump, "attended/l00h00k").unlink(),
        r"attended/l00h00k: holds no Parquet file\. Copy",
    ),
    "the attended folder is gone": (
        lambda dump: shutil.rmtree(dump / "attended/l00h00k"),
        "attended/l00h00k: is missing, but attended/l00h01k is there",
    ),
    "the base file in the attended folder": (
        lambda dump: shutil.copy(file(dump, "l00h00k"), file(dump, "attended/l00h00k")),
        "is the file of l00h00k, but the folder is attended/l00h00k",
    ),
    "shorter texts": (
        lambda dump: lengths(dump, 40),
        "l00h00k: has a row at position 4. of text 0, which has 40 tokens in examples.parquet",
    ),
}


@pytest.mark.parametrize(("mistake", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told(dump: Path, mistake: Mistake, told: str) -> None:
    mistake(dump)
    with pytest.raises(ap.DumpError, match=told) as caught:
        ap.analyze_head(0, 0, dump=dump)
    assert "\n" not in str(caught.value)


def test_unknown_tokens_are_a_warning(tmp_path: Path) -> None:
    dump = make_attention_dump(tmp_path / "dump", q_heads=3, without=(0, 1, 2), share=1.0)
    write_tokens(dump, dict.fromkeys(range(12), "a"))
    analyse(dump, tmp_path / "right")
    assert "unknown_tokens" not in {one["kind"] for one in run_info(tmp_path / "right")["warnings"]}
    texts = read_tokens(dump)
    assert texts is not None
    write_tokens(dump, {number: texts[number] for number in range(9)})
    analyse(dump, tmp_path / "wrong")
    found = {one["kind"]: one for one in run_info(tmp_path / "wrong")["warnings"]}
    assert found["unknown_tokens"]["text"].startswith("tokens.parquet does not have 3 token ids")
