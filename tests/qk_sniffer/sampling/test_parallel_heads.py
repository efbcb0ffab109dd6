"""True numbers of heads that processes hold, and models that a tap refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import qk_sniffer
from qk_sniffer.model.layout import ModelLayout
from qk_sniffer.model.probing import probe
from qk_sniffer.model.tensor_parallel import HeadVectors
from qk_sniffer.pipeline.setup import attended_layers
from qk_sniffer.sampling.heads import ParallelHeads, choose_heads
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES


def layout_of(q_heads: int, k_heads: int) -> ModelLayout:
    """A layout in which every layer has these numbers of heads."""
    layout = probe(ARCHITECTURES["llama"].model())
    layers = [replace(facts, q_heads=q_heads, k_heads=k_heads) for facts in layout.layers]
    return replace(layout, layers=tuple(layers))


def vectors_of(layout: ModelLayout, seed: int, same_keys: bool = False) -> HeadVectors:
    """Vectors of the heads of a process."""
    rng, keys = np.random.default_rng(seed), np.random.default_rng(0 if same_keys else seed)
    vectors: HeadVectors = {}
    for facts in layout.layers:
        vectors[facts.layer, "q"] = rng.random((facts.q_heads, 8), np.float32)
        vectors[facts.layer, "k"] = keys.random((facts.k_heads, 8), np.float32)
    return vectors


def test_every_wanted_head_is_written_once_with_its_number() -> None:
    part = layout_of(2, 1)
    vectors = [vectors_of(part, seed) for seed in range(4)]
    written = []
    for rank in range(4):
        parallel = ParallelHeads(vectors, rank)
        whole = parallel.whole(part)
        assert {(facts.q_heads, facts.k_heads) for facts in whole.layers} == {(8, 4)}
        wanted = choose_heads(whole, heads=[0, 3, 6, 7])
        own = parallel.own(wanted, part)
        assert all({*layer.q, *layer.k} <= {0, 1} for layer in own)  # places in this process
        written += [head for layer in own for head in layer.head_ids()]
    assert sorted(written) == sorted(head for layer in wanted for head in layer.head_ids())


def test_keys_are_drawn_where_a_process_has_all_their_query_heads() -> None:
    """With one key head that all processes have, each has some of its query heads."""
    for part, same_keys, expected in ((layout_of(2, 1), False, 4), (layout_of(2, 1), True, 0)):
        vectors = [vectors_of(part, seed, same_keys) for seed in range(2)]
        whole = ParallelHeads(vectors, 0).whole(part)
        assert len(attended_layers(choose_heads(whole), part)) == expected


def test_heads_that_all_processes_have_are_written_by_the_first() -> None:
    part = layout_of(4, 2)
    vectors = [vectors_of(part, seed=0)] * 2
    wanted = choose_heads(part)
    assert ParallelHeads(vectors, 0).whole(part) == part
    assert ParallelHeads(vectors, 0).own(wanted, part) == wanted
    assert ParallelHeads(vectors, 1).own(wanted, part) == ()


def test_queries_that_are_spread_without_their_keys_are_refused() -> None:
    part = layout_of(2, 2)
    spread = [vectors_of(part, seed, same_keys=True) for seed in range(2)]
    with pytest.raises(ConfigError, match="layer 0 spreads its query heads"):
        ParallelHeads(spread, 0).whole(part)
    shared = layout_of(2, 1)  # one key head serves all queries
    spread = [vectors_of(shared, seed, same_keys=True) for seed in range(2)]
    whole = ParallelHeads(spread, 1).whole(shared)
    assert (whole[0].q_heads, whole[0].k_heads) == (4, 1)
    own = ParallelHeads(spread, 1).own(choose_heads(whole), shared)
    assert [(layer.numbers("q"), layer.k) for layer in own[:1]] == [((2, 3), ())]


def test_rounding_does_not_make_equal_heads_different() -> None:
    part = layout_of(4, 2)
    first = vectors_of(part, seed=0)
    for key, vectors in first.items():
        vectors[:, 0] = 1e-6  # its rounding error is larger than itself
        assert vectors.any(), key
    rounded = {key: vectors + np.float32(1e-3) for key, vectors in first.items()}
    assert ParallelHeads([first, rounded], 1, q_heads=4).whole(part) == part
    other = vectors_of(part, seed=1)
    with pytest.raises(ConfigError, match="layer 0 has 8 query heads by their vectors, but 4 by"):
        ParallelHeads([first, other], 0, q_heads=4)
    with pytest.raises(ConfigError, match="layer 0 has 4 query heads by their vectors, but 8 by"):
        ParallelHeads([first, rounded], 1, q_heads=8)
    assert ParallelHeads([first, other], 0, q_heads=5).whole(part)[0].q_heads == 8
    zero = {key: 0 * vectors for key, vectors in first.items()}
    with pytest.raises(ConfigError, match="vectors of layer 0 are zero"):
        ParallelHeads([zero, zero], 0)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_tap_refuses_a_tensor_parallel_model() -> None:
    declared = ARCHITECTURES["llama"].model()
    declared._tp_size = 2
    spread = ARCHITECTURES["llama"].model()
    projection = spread.model.layers[0].self_attn.q_proj
    mesh = init_device_mesh("cpu", (1,))
    projection.weight = nn.Parameter(distribute_tensor(projection.weight, mesh, [Shard(0)]))
    for model in (declared, spread):
        with pytest.raises(ConfigError, match="tensor parallel: this process has only some"):
            qk_sniffer.tap(model)
