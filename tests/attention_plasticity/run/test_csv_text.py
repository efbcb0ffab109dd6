"""Text of tables: numbers and tokens are read back exactly."""

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from attention_plasticity.metrics import COMPONENT_WEIGHTS, INFLUENCES, WORDS
from attention_plasticity.run.csv_text import csv_columns, csv_rows
from attention_plasticity.tables.csv_tables import read_table

TOKENS = ["nan", "NA", "", "12", "\r", "a\r\nb", "\n", '"', ",", "\t", "x\0y", "</script>", "😀"]


@given(st.lists(st.floats(), min_size=1, max_size=40))
@example(
    [
        1e10 + 0.5,
        1e9 + 0.25,
        0.0,
        -0.0,
        1.0,
        0.1,
        1e-4,
        9.99e-5,
        1e-5,
        1e15,
        1e16,
        1e22,
        5e-324,
        1.7e308,
        123456.5,
    ]
)
def test_floats_have_the_text_of_python(values):
    names = COMPONENT_WEIGHTS.names
    columns = {name: [3] * len(values) for name in names} | {names[-1]: np.array(values)}
    lines = csv_columns("component_weights", columns).decode().splitlines()
    assert [line.rpartition(",")[2] for line in lines] == list(map(repr, values))
    assert {line.partition(",")[0] for line in lines} == {"3"}


def test_integers_beside_nan_stay_integers():
    columns = {name: [0.5, 0.5] for name in INFLUENCES.names}
    columns |= {"quantity": ["ap_bin", "ap_aligned"], "bin": [7, math.nan]}
    text = csv_columns("influences", columns).decode()
    assert text.startswith("0.5,0.5,0.5,ap_bin,7,0.5,")
    assert "\n0.5,0.5,0.5,ap_aligned,nan,0.5," in text


def test_tokens_are_read_back_exactly(tmp_path):
    numbers = dict.fromkeys(WORDS.names, 1)
    rows = [
        numbers | {"kind": "typical", "query_token": token, "key_token": other}
        for token, other in zip(TOKENS, TOKENS[::-1], strict=True)
    ]
    text = csv_rows("words", ([row[name] for name in WORDS.names] for row in rows))
    path = tmp_path / WORDS.file
    path.write_bytes(f"{','.join(WORDS.names)}\n".encode() + text)
    table = read_table(path, "words")
    assert table["query_token"].tolist() == TOKENS
    assert table["key_token"].tolist() == TOKENS[::-1]
    assert table["distance"].tolist() == [1] * len(TOKENS)
