"""Which keys are drawn by attention, and with which probability."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qk_sniffer.sampling.attended_keys import (
    AttendedSampler,
    default_number,
    inclusion,
    random_numerators,
    stream,
)

ENOUGH = 1e-6  # p-values below it do not happen by chance


def test_default_number_of_keys():
    assert default_number(None) == default_number(10_000) == default_number(128) == 16
    assert default_number(1) == 2048
    assert default_number(12) == 171
    assert default_number(0) == 16


@pytest.mark.parametrize(
    ("length", "window", "expected"),
    [
        (3, None, [0, 1, 2]),
        (1, None, [0]),
        (8, None, [1, 3, 5, 7]),
        (10, None, [1, 4, 6, 9]),
        (10, 3, [0, 1, 3, 4, 6, 7, 9]),  # two queries per window
        (10, 100, [1, 4, 6, 9]),
        (0, None, []),
    ],
)
def test_queries_are_evenly_spaced(length, window, expected):
    found = AttendedSampler(number=1, queries=4).query_positions(length, window)
    assert found.tolist() == expected


weights_of_a_text = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-12, 1.0)), min_size=0, max_size=60
)


@settings(max_examples=200, deadline=None)
@given(values=weights_of_a_text, number=st.integers(1, 40))
def test_probabilities_have_the_wanted_sum(values, number):
    weights = torch.tensor([values, values[::-1]], dtype=torch.float64)
    for row, chance in zip(weights, inclusion(weights, number), strict=True):
        assert (chance[:4] == 1).all()
        later, found = row[4:], chance[4:]
        positive = int((later > 0).sum())
        assert float(found.sum()) == pytest.approx(min(number, positive), rel=1e-9)
        assert (found[later == 0] == 0).all()
        assert ((found >= 0) & (found <= 1)).all()
        free = (found < 1 - 1e-9) & (later > 0)
        factors = found[free] / later[free]
        assert torch.allclose(factors, factors[:1].expand_as(factors), rtol=1e-9)
        if free.any():  # keys with probability 1 have at least this weight
            assert (later[found == 1] * factors[0] >= 1 - 1e-9).all()


def test_random_numbers_are_those_of_splitmix64():
    """The first outputs of the published generator with seed 0."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    found = random_numerators(np.zeros(1, np.int64), np.arange(3))
    assert found.tolist() == [number >> 11 for number in published]


def test_numpy_and_torch_give_the_same_random_numbers():
    streams = np.array([stream(7, example, 3, 1) for example in range(5)], np.int64)
    position = np.arange(1000)
    with_numpy = random_numerators(streams[:, None], position[None])
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        tensors = [torch.from_numpy(values).to(device) for values in (streams, position)]
        found = random_numerators(tensors[0][:, None], tensors[1][None])
        assert (found.cpu().numpy() == with_numpy).all()


def test_random_numbers_are_uniform_and_unrelated():
    """Over positions, over neighbouring streams, and between them."""
    streams = [stream(0, example, layer, 2) for example in range(40) for layer in range(25)]
    found = random_numerators(np.array(streams)[:, None], np.arange(200)[None]) / 2.0**53
    for values in (found.reshape(-1), found[:, 0], found[0], (found[1:] - found[:-1])[:, 7] % 1):
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        assert stats.chisquare(counts).pvalue > ENOUGH
    correlations = [np.corrcoef(found[:-1, 3], found[1:, 3])[0, 1]]
    correlations.append(np.corrcoef(found[:, 3], found[:, 4])[0, 1])
    assert max(map(abs, correlations)) < 5 / np.sqrt(len(found))
    different = {stream(*parts) for parts in np.ndindex(4, 4, 4, 4)}
    assert len(different) == 256


def test_draws_over_many_seeds_fit_their_probabilities():
    rng = np.random.default_rng(0)
    received = torch.from_numpy(rng.dirichlet(np.full(60, 0.3), (1, 2)).astype(np.float32))
    seeds = 1000
    counts = np.zeros(60)
    sizes = []
    for seed in range(seeds):
        sampler = AttendedSampler(number=12, seed=seed)
        chance, drawn, position = sampler.draw(
            received, torch.from_numpy(sampler.streams(3, 1, [0]))
        )
        kept = position[0, : int(drawn)].numpy()
        assert (np.diff(kept) > 0).all()
        counts[kept] += 1
        sizes.append(len(kept) - 4)
    expected = chance[0].numpy() * seeds
    assert expected.sum() == pytest.approx(16 * seeds)
    assert (counts[expected == 0] == 0).all()
    certain = chance[0].numpy() == 1
    assert certain[:4].all()
    assert certain.sum() > 4
    assert (counts[certain] == seeds).all()
    free = ~certain & (expected > 5) & (seeds - expected > 5)
    spread = expected[free] * (1 - expected[free] / seeds)
    chi2 = ((counts[free] - expected[free]) ** 2 / spread).sum()
    assert free.sum() > 20
    assert stats.chi2.sf(chi2, free.sum()) > ENOUGH
    variance = (chance[0] * (1 - chance[0])).sum().item()  # draws are independent
    assert np.var(sizes) == pytest.approx(variance, rel=0.3)


def test_a_draw_depends_on_text_layer_and_head_and_not_on_other_heads():
    received = torch.full((3, 2, 400), 1 / 400)
    sampler = AttendedSampler(number=100, seed=5)

    def kept(example, layer, heads):
        streams = torch.from_numpy(sampler.streams(example, layer, heads))
        _, drawn, position = sampler.draw(received[: len(heads)], streams)
        return [p[:n].tolist() for p, n in zip(position, drawn.tolist(), strict=True)]

    together = kept(0, 0, [0, 1, 2])
    assert [kept(0, 0, [head])[0] for head in range(3)] == together
    others = [kept(1, 0, [0])[0], kept(0, 1, [0])[0]]
    assert len({tuple(keys) for keys in (*together, *others)}) == 5
    assert all(60 < len(keys) < 150 for keys in together)
    assert all(keys[:4] == [0, 1, 2, 3] for keys in together)


@pytest.mark.parametrize("number", [1, 16, 171, 2048])
def test_there_is_room_for_all_drawn_keys(number):
    sampler = AttendedSampler(number)
    assert sampler.capacity(3) == 3
    room = sampler.capacity(1 << 20) - 4
    assert stats.poisson.sf(room, number) < 1e-30
