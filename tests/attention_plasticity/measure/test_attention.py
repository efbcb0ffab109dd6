"""Means of attention of a head, and per bucket: against sums over rows without each group."""

import math

import numpy as np
import pytest

from attention_plasticity import make_config
from attention_plasticity.measure.attention import INSIDE_LAST_BIN, NOTHING_DISTANT
from attention_plasticity.metrics import ATTENTION_BY_BUCKET, ATTENTION_MEANS, IDS
from attention_plasticity.read.layer import NO_COLUMNS
from head_pairs import analyze
from helpers.attention_dumps import Layer, make_attention_dump
from reference import read_rows
from reference_checks import assert_quantity, assert_reasons_are_complete
from reference_groups import mean_of_rows, tokens_of

LAYERS = {
    "all keys": (Layer(), {}),
    "few rows": (Layer(), {"share": 0.4, "texts": 9}),
    "few texts": (Layer(), {"texts": 3}),
    "many texts": (Layer(), {"texts": 20, "share": 0.3}),
    "soft-cap": (Layer(softcap=1.5), {"share": 0.7}),
    "window": (Layer(window=14), {"share": 0.8}),
    "chunks": (Layer(window=16, chunked=True), {}),
    "some queries without attention": (Layer(), {"unknown": 0.4}),
    "few bins": (Layer(), {"bins": 4}),
    "many bins": (Layer(), {"bins": 30}),
    "sharp": (Layer(scale=4.0), {"share": 0.8}),
    "many early rows": (Layer(), {"log_rate": 8.0, "bucket_size": 2, "length": 64}),
}
MASSES = ["mass_0", *(f"mass_{1 << power}" for power in range(23))]


class Rows:
    """The queries of a dump whose attention is known."""

    def __init__(self, root):
        q = read_rows(root, "l00h00q", make_config())
        known = [i for i, value in enumerate(q.attention["lse"]) if value is not None]
        self.columns = {name: [values[i] for i in known] for name, values in q.attention.items()}
        self.position, self.bucket = q.position[known], q.bucket[known]
        self.group = q.example_id[known] % 16
        self.weight = np.array([tokens_of(root, float(p), "q") for p in self.position])

    def mean(self, values, inside=None):
        used = np.arange(len(values)) if inside is None else np.flatnonzero(inside)
        return mean_of_rows(np.array(values)[used], self.weight[used], self.group[used])

    def far(self, distant_from):
        """Attention at a distance, and the same without the first four tokens."""
        first = distant_from.bit_length()
        distant, far = [], []
        for masses, sinks, p in zip(
            self.columns["mass_by_distance"],
            self.columns["sink_mass"],
            self.position,
            strict=True,
        ):
            distant.append(sum(masses[first:]))
            tokens = p - distant_from + 1  # at distances from distant_from on
            far.append(max(distant[-1] - sinks, 0.0) if tokens > 4 else 0.0)
        latest = self.position.max()
        if first >= len(self.columns["mass_by_distance"][0]) or latest < distant_from:
            distant = [math.nan] * len(far)  # inside the last bin, or never so late
        if math.isnan(distant[0]) or latest < distant_from + 4:
            far = [math.nan] * len(far)
        return distant, far

    def bin(self, number):
        """The mass of a bin of the tables."""
        masses = self.columns["mass_by_distance"]
        open_end = any(len(mass) < 24 and mass[-1] > 0 for mass in masses)
        if open_end and number >= len(masses[0]) - 1:
            return [math.nan] * len(masses)
        if number == 23:
            return [sum(mass[23:]) for mass in masses]
        return [mass[number] if number < len(mass) else 0.0 for mass in masses]


@pytest.mark.parametrize(("layer", "dump"), LAYERS.values(), ids=LAYERS)
def test_every_column_equals_the_reference(tmp_path, layer, dump):
    root = make_attention_dump(tmp_path, layer=layer, **dump)
    rows = Rows(root)
    for distant_from in (4, 256):
        result = analyze(root, distant_from=distant_from)
        distant, far = rows.far(distant_from)
        single = [rows.columns[name] for name in ("entropy", "sink_mass", "max_logit")]
        by_name = (single[0], single[1], distant, single[2], far)
        for name, values in zip(ATTENTION_MEANS, by_name, strict=True):
            assert_quantity(result, name, rows.mean(values), 1e-9)
        assert_reasons_are_complete(result)
    reasons = result.missing["head_metrics"]
    assert reasons["attn_far_mass"] == (
        INSIDE_LAST_BIN if dump.get("bins") == 4 else NOTHING_DISTANT
    )
    table = result.tables["attention"]
    assert (*IDS, *table) == ATTENTION_BY_BUCKET.names
    assert table["q_bucket"] == sorted(set(rows.bucket.tolist()))
    for place, bucket in enumerate(table["q_bucket"]):
        inside = rows.bucket == bucket
        assert table["n_queries"][place] == inside.sum()
        assert table["n_groups"][place] == len(set(rows.group[inside].tolist()))
        assert table["n_tokens"][place] == pytest.approx(rows.weight[inside].sum())
        assert table["q_position"][place] == pytest.approx(rows.position[inside].mean())
        columns = {name: rows.columns[name] for name in ("entropy", "sink_mass", "max_logit")}
        columns |= {name: rows.bin(number) for number, name in enumerate(MASSES[:12])}
        for name, values in columns.items():
            found = [table[column][place] for column in (name, f"{name}_se")]
            expected = rows.mean(values, inside)[:2]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=name)


def test_short_texts_have_no_far_attention(tmp_path):
    """In texts of 20 tokens nothing is 256 tokens back."""
    root = make_attention_dump(tmp_path, length=20)
    short = analyze(root)
    for name in ("attn_far_mass", "attn_distant_mass"):
        assert math.isnan(short.metrics[name]), name
        assert math.isnan(short.metrics[f"{name}_se"]), name
        assert short.missing["head_metrics"][name] == NOTHING_DISTANT
    assert math.isnan(short.tables["roles"]["far_mass"][0])
    assert math.isfinite(analyze(root, distant_from=8).metrics["attn_far_mass"])


def test_without_columns_everything_is_nan_and_nothing_else_changes(tmp_path):
    with_columns = analyze(make_attention_dump(tmp_path / "with"))
    without = analyze(make_attention_dump(tmp_path / "without", without=(0,)))
    new = [name for name in without.metrics if name.startswith("attn_")]
    assert len(new) == 10
    assert all(math.isnan(without.metrics[name]) for name in new)
    assert {without.missing["head_metrics"][name] for name in new} == {NO_COLUMNS}
    assert not {"attention", "roles", "words"} & set(without.tables)
    old = [name for name in without.metrics if name not in new]
    assert repr([without.metrics[name] for name in old]) == repr(
        [with_columns.metrics[name] for name in old]
    )
    for name in ("bucket_plasticity", "drift"):
        assert repr(without.tables[name]) == repr(with_columns.tables[name])
