"""Random streams: no two purposes, heads, layers or seeds share one."""

from itertools import product

import numpy as np

from attention_plasticity import make_config, open_dump
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.measure.streams import Purpose, Streams, pair_seed
from helpers.attention_dumps import make_attention_dump


def test_streams_differ_in_seed_layer_head_and_purpose():
    """Seed 379 of head 0 is not seed 0 of head 1, unlike the older rule of the seeds' columns."""
    seeds = (0, 1, 2, 5, 379, 758, 10007, 10386, 2**32, 2**32 + 1)
    draws = {}
    for key in product(seeds, range(3), range(3), Purpose):
        rng = Streams(*key[:3]).rng(key[3])
        draws.setdefault(rng.random(2).tobytes(), []).append(key)
        assert rng.random() != np.random.default_rng(key[0]).random()
    shared = [keys for keys in draws.values() if len(keys) > 1]
    assert shared == []
    assert pair_seed(379, 0, 0) == pair_seed(0, 0, 1) == 379
    assert pair_seed(0, 1, 2) == 10007 + 2 * 379


def test_purposes_have_numbers_of_their_own_that_stay():
    """A purpose that is added has a new number. Another number would change published values."""
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "BIN_PAIRS": 1,
        "ATTENDED_PAIRS": 2,
        "DISTANCE_PAIRS": 3,
        "SEEN_PAIRS": 6,
    }


def test_a_purpose_is_of_key_heads_or_of_query_heads(tmp_path, monkeypatch):
    """Key head 0 and query head 0 have the same numbers, so they must not share a purpose."""
    entry = {"layer": 0, "scale": 0.4, "rope": True, "rotary": {"frequencies": [1.0, 0.1]}}
    how = {"q_heads": 3, "received": True, "manifest": {"layers": [entry]}}
    used = []
    plain = Streams.rng

    def recorded(self, purpose):
        used.append((self.head, purpose))
        return plain(self, purpose)

    monkeypatch.setattr(Streams, "rng", recorded)
    dump = open_dump(make_attention_dump(tmp_path, **how))
    assert not analyze_group(dump, 0, 0, [1, 2], make_config(bin_size=8)).failures
    of_key_head = {purpose for head, purpose in used if head == 0}
    of_query_heads = {purpose for head, purpose in used if head in (1, 2)}
    assert of_query_heads == {Purpose.ATTENDED_PAIRS}
    assert of_key_head == set(Purpose) - of_query_heads
