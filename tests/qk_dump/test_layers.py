"""The record of a layer: one validator for dump.json of this version and of earlier ones."""

import pytest

from qk_dump.layers import LayerError, LayerRecord, RotaryRecord, layer_records
from qk_dump.manifest import DumpManifest

RECORD = RotaryRecord((1.0, 0.1))
WHOLE = {
    "layer": 2,
    "type": "chunked_attention",
    "rope": False,
    "head_dim": 8,
    "window": 64,
    "selective": True,
    "biased": True,
    "scale": 0.125,
    "softcap": 30,
    "learned_sinks": False,
    "rotary": RECORD.to_json(),
}


def test_an_entry_is_written_as_it_was_read():
    for entry in (
        WHOLE,
        {"layer": 0, "type": "full_attention", "rotary": None, "rotary_problem": "it changes"},
        {"layer": 1, "rotary": None, "of a later version": [1, None]},
    ):
        (record,) = layer_records([entry])
        assert record.to_json() == entry
        assert list(record.to_json()) == list(entry)
        assert DumpManifest(layers=[entry]).model_dump()["layers"] == [entry]


def test_facts_that_an_earlier_dump_lacks_are_not_known():
    assert LayerRecord.from_json({"layer": 7}) == LayerRecord(7)
    nulls = dict.fromkeys((*WHOLE, "rotary_problem"))
    assert LayerRecord.from_json({**nulls, "layer": 7}) == LayerRecord(7)
    found = LayerRecord.from_json(WHOLE)
    assert (found.chunked, found.rotary, found.window) == (True, RECORD, 64)
    assert not LayerRecord(7).chunked


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ([], "expected an object per layer, got"),
        ({}, "layer: expected a number from 0 to 999, got None"),
        ({"layer": True}, "layer: expected a number"),
        ({"layer": 1000}, "layer: expected a number from 0 to 999, got 1000"),
        *(
            ({"layer": 3, "window": window}, "window of layer 3: expected a positive number")
            for window in ("64", 0, True, 6.5)
        ),
        ({"layer": 3, "type": "two words"}, "type of layer 3: expected one word"),
        ({"layer": 3, "rope": 1}, "rope of layer 3: expected true or false, got 1"),
        ({"layer": 3, "head_dim": 5000}, "head_dim of layer 3: expected an integer from 1 to 4096"),
        ({"layer": 3, "selective": "no"}, "selective of layer 3: expected true or false"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_layer(entry, said):
    with pytest.raises(LayerError, match=said):
        layer_records([entry])


def test_a_layer_is_listed_once():
    with pytest.raises(LayerError, match="layer 3 is listed twice"):
        layer_records([{"layer": 3}, {"layer": 4}, {"layer": 3, "window": 8}])
