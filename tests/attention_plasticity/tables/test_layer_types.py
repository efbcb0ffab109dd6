"""Types of layers, and the choice of some layers of a run."""

import numpy as np
import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.tables.labels import labels_of
from attention_plasticity.tables.layer_types import layer_types, selected_layers
from dumps import head_rows, make_dump, write_columns
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.heads import HeadId
from qk_toolkit.errors import ConfigError

TYPES = {0: "sliding_attention", 1: "full_attention", 2: "sliding_attention", 7: "linear_thing"}


def test_types_come_from_their_column_or_from_the_window():
    table = pd.DataFrame({"layer": [0, 0, 1, 2], "q_head": [0, 1, 0, 0]})
    assert set(layer_types(table).values()) == {"full_attention"}
    table["sliding_window"] = [float("nan"), 64.0, float("nan"), 64.0]
    by_window = ["sliding_attention", "full_attention", "sliding_attention"]
    assert list(layer_types(table).values()) == by_window
    table["layer_type"] = ["chunked_attention", "chunked_attention", None, "full_attention"]
    expected = {0: "chunked_attention", 1: "full_attention", 2: "full_attention"}
    assert layer_types(table) == expected


def test_layers_are_chosen_by_number_and_type():
    assert selected_layers(TYPES) == {0, 1, 2, 7}
    for layers in ("0-2", [0, 1, 2], range(3), {2, 1, 0}, np.arange(3)):
        assert selected_layers(TYPES, layers) == {0, 1, 2}
    assert selected_layers(TYPES, 7) == {7}
    assert selected_layers(TYPES, layer_type="sliding") == {0, 2}
    assert selected_layers(TYPES, "2,7", "sliding_attention") == {2}


@pytest.mark.parametrize(
    ("layers", "layer_type", "message"),
    [
        ("3-4", None, "layers: 3-4 given; the table has layers 0-2,7"),
        ("a", None, "layers: cannot read 'a'; expected numbers of layers such as 0-3,8"),
        ("1", "sliding", "layers: none of these layers has the type sliding"),
        (None, "chunked", r"layer_type: 'chunked': no layer has this type; there are "
         r"sliding_attention \(layers 0,2\), full_attention \(layers 1\), linear_thing"),
    ],
)  # fmt: skip
def test_a_choice_without_layers_is_refused(layers, layer_type, message):
    with pytest.raises(ConfigError, match=message):
        selected_layers(TYPES, layers, layer_type)


def test_a_run_of_some_layers_has_their_rows_in_every_table(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=300)
    for kind, heads in (("q", 2), ("k", 1)):
        for head in range(heads):
            content = head_rows(300, seed=[9, head])
            write_columns(dump, HeadId(2, head, kind), sliding_window=256, **content)
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"), max_workers=1)
    assert list(run.layer_types.values()) == ["full_attention"] * 2 + ["sliding_attention"]
    assert run.info["means_by_layer_type"]["sliding_attention"]["ap_overall"]["heads"] == 2
    part = run.select(layer_type="sliding")
    assert isinstance(part, ap.Run)
    assert part.influences is not None
    for table in (
        part.head_metrics,
        part.bucket_plasticity,
        part.component_weights,
        part.influences,
    ):
        assert set(table["layer"]) == {2}
        assert table.index[0] == 0
    assert repr(part) == f"<Run '{tmp_path / 'out'}': out, layer 2>"
    assert run.select() is run
    assert labels_of([run, part]) == ["out", "out (layer 2)"]
    assert repr(run) == f"<Run '{tmp_path / 'out'}': out, 6 heads>"
