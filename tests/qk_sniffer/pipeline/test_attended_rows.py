"""Keys drawn by attention in one forward, against the model's own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qk_dump.attended_keys import read_attended
from qk_dump.layout import HeadId
from qk_dump.source import open_dump
from qk_sniffer.attention import received
from qk_sniffer.config import CaptureSettings
from qk_sniffer.model.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.model.layout import decoder_of, run_backbone
from qk_sniffer.model.logits import in_float32
from qk_sniffer.model.probing import probe
from qk_sniffer.notebook import tap
from qk_sniffer.pipeline.attended_rows import AttendedRows, AttendedTexts
from qk_sniffer.pipeline.row_tap import RowTap
from qk_sniffer.pipeline.setup import attended_layers, wanted_heads
from qk_sniffer.sampling.attended_keys import AttendedSampler, inclusion
from qk_sniffer.sampling.heads import sample_rows
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES, VOCABULARY

LENGTHS = (61, 40, 3)
SAMPLER = PositionSampler("uniform", 8, 2.0, seed=1)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
KINDS = {
    "llama": "grouped heads",
    "gpt2": "a key head for every query head",
    "mistral": "windows",
    "llama4_text": "chunks",
    "gemma2": "soft-cap and windows",
    "gpt_oss": "learned sinks",
    "deepseek_v3": "MLA",
}


def tokens(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCABULARY, (1, length), generator=generator)


def padded(lengths: tuple[int, ...]) -> Tensor:
    ids = torch.zeros((len(lengths), max(lengths)), dtype=torch.int64)
    for line, length in zip(ids, lengths, strict=True):
        line[:length] = tokens(length)
    return ids


def weights_of(model: Any, ids: Tensor) -> list[Tensor]:
    """(heads, s, s) of every layer, in float32 arithmetic."""
    found: list[Tensor] = []

    def remember(call: AttentionCall) -> None:
        if call.is_self_attention:
            found.append(in_float32(call).weights().cpu())

    with attention_hook(remember):
        run_backbone(decoder_of(model), ids)
    return found


def taken(
    model: Any,
    lengths: tuple[int, ...],
    sampler: AttendedSampler,
    *,
    first: int = 0,
    heads: tuple[int, ...] | None = None,
) -> tuple[dict[int, AttendedRows], Any]:
    """What a forward takes, by layer, and the base rows."""
    layout = probe(model)
    wanted = wanted_heads(layout, CaptureSettings(heads=heads))
    examples = range(first, first + len(lengths))
    base = sample_rows(SAMPLER, wanted, examples, lengths)
    texts = AttendedTexts(sampler, examples, lengths, attended_layers(wanted, layout))
    with RowTap(decoder_of(model), wanted, attention=True) as rows:
        rows.expect(base, None, texts)
        run_backbone(decoder_of(model), padded(lengths))
        found = rows.take()
    layers = [layer.facts.layer for layer in wanted]
    return {layer: found.attended(layer) for layer in layers}, base  # type: ignore[misc]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_what_keys_receive_is_the_mean_weight_of_evenly_spaced_queries(
    name: str, device: str
) -> None:
    """Three texts in one batch, padded; the shortest one has fewer tokens than queries."""
    architecture = ARCHITECTURES[name]
    model = architecture.model(architecture.attention[0]).to(device)
    sampler = AttendedSampler(number=6, queries=7, seed=3)
    found, base = taken(model, LENGTHS, sampler)
    layout = probe(model)
    for text, length in enumerate(LENGTHS):
        weights = weights_of(model, tokens(length))
        for facts, told in zip(layout.layers, weights, strict=True):
            rows = found[facts.layer]
            queries = sampler.query_positions(length, facts.window)
            expected = told[:, queries].double().mean(dim=1)  # (heads, s)
            expected = expected.view(facts.k_heads, facts.group, length)
            places = base[facts.layer, "k"]
            mine = places.sequence == text
            kept = rows.base_received[torch.from_numpy(mine)]  # (n, k, group)
            position = places.position[mine]
            torch.testing.assert_close(
                kept.double().permute(1, 2, 0), expected[..., position], atol=2e-6, rtol=0
            )
            chance = inclusion(expected.sum(dim=1), sampler.number)  # (k, s)
            own = rows.base_chance[torch.from_numpy(mine)].T
            torch.testing.assert_close(own, chance[:, position], atol=1e-3, rtol=0)
            for head in range(facts.k_heads):
                number = int(rows.count[text, head])
                drawn = rows.position[text, head, :number]
                assert drawn[:4].tolist() == list(range(min(4, length)))
                got = rows.received[text, head, :number].T.double()
                torch.testing.assert_close(got, expected[head][:, drawn], atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "llama4_text"])
def test_blocks_of_queries_and_heads_do_not_change_what_keys_receive(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ARCHITECTURES[name].model(ARCHITECTURES[name].attention[0])
    sampler = AttendedSampler(number=6, queries=20)
    whole, _ = taken(model, (61,), sampler)
    monkeypatch.setattr(received, "_MOST_LOGITS", {"other": 3 * 61 * 2})
    blocks, _ = taken(model, (61,), sampler)
    monkeypatch.setattr(received, "_MOST_KEYS", {"other": 1 << 20})
    together, _ = taken(model, (61,), sampler)
    for layer, rows in whole.items():
        for other in (blocks[layer], together[layer]):
            torch.testing.assert_close(other.base_received, rows.base_received)


def test_other_texts_and_heads_do_not_change_a_draw() -> None:
    model = ARCHITECTURES["llama"].model()
    sampler = AttendedSampler(number=10, queries=16, seed=2)
    together, _ = taken(model, LENGTHS, sampler)
    alone, _ = taken(model, LENGTHS[1:2], sampler, first=1)
    some, _ = taken(model, LENGTHS, sampler, heads=(2, 3))
    for layer, rows in together.items():
        number = rows.count[1]
        assert (alone[layer].count[0] == number).all()
        assert (some[layer].count[1] == number[1:]).all()
        for head, count in enumerate(number.tolist()):
            drawn = rows.position[1, head, :count]
            assert (alone[layer].position[0, head, :count] == drawn).all()
        assert (some[layer].position[1, 0, :count] == drawn).all()


@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("name", ["llama", "stablelm", "deepseek_v3", "cohere2", "gpt2"])
def test_vectors_of_drawn_keys_are_those_of_a_capture_of_all_keys(
    name: str, pre_rope: bool
) -> None:
    """With rotary embedding of all or of some dimensions, before and after it."""
    architecture = ARCHITECTURES[name]
    model = architecture.model(architecture.attention[0])
    taps = []
    few = {"sampler": "uniform", "base_rate": 1.0, "min_bucket_size": 16}
    for options in ({}, {**few, "attended_keys": 12, "attention": True}):
        with torch.no_grad(), tap(model, pre_rope=pre_rope, **options) as tapped:
            run_backbone(decoder_of(model), torch.cat([tokens(40), tokens(40).flip(1)]))
        taps.append(tapped)
    everything, some = taps
    assert some.attended_heads
    for head in some.attended_heads:
        whole = everything.keys(head.layer, head.head)
        drawn = some.attended(head.layer, head.head)
        base = some.keys(head.layer, head.head)
        assert len(drawn) > 10
        assert base.received is not None
        assert drawn.received is not None
        places = 40 * drawn.example_id + drawn.position
        np.testing.assert_array_equal(drawn.vectors, whole.vectors[places])
        assert not np.isin(places, 40 * base.example_id + base.position).any()
        assert (np.diff(places) > 0).all()
        assert drawn.received.received.shape == (len(drawn), some.layout[head.layer].group)
        assert (drawn.received.inclusion > 1 / 16).all()


def test_a_tap_saves_drawn_keys(tmp_path: Path) -> None:
    """Two forwards of several texts each; a forward alone gives the same draws."""
    model = ARCHITECTURES["llama"].model()
    options: dict[str, Any] = {"sampler": "uniform", "base_rate": 1.0, "min_bucket_size": 16}
    options |= {"attention": True, "attended_keys": 9, "layers": [1]}
    with torch.no_grad(), tap(model, **options) as tapped:
        for first in (40, 50):
            run_backbone(decoder_of(model), torch.cat([tokens(first), tokens(first).flip(1)]))
    dump = open_dump(tapped.save(tmp_path / "dump"))
    assert (
        list(dump.attended)
        == tapped.attended_heads
        == [HeadId(1, head, "k", attended=True) for head in range(2)]
    )
    for head in range(2):
        rows = read_attended(dump, 1, head, max_rows=1000, seed=0)
        drawn = tapped.attended(1, head)
        assert rows is not None
        assert rows.received is not None
        assert drawn.received is not None
        assert set(drawn.example_id) == {0, 1, 2, 3}
        np.testing.assert_array_equal(rows.vectors, drawn.vectors)
        np.testing.assert_array_equal(rows.position, drawn.position)
        np.testing.assert_array_equal(rows.received.received, drawn.received.received)
        np.testing.assert_array_equal(rows.received.inclusion, drawn.received.inclusion)
    with pytest.raises(ConfigError, match="attended/l00h00k: no keys are drawn by attention"):
        tapped.attended(0, 0)
    with pytest.raises(ConfigError, match="attended_keys: has an effect only with"):
        tap(model, attended_keys=3)
    with tap(model, **options) as unused:
        pass
    empty = open_dump(unused.save(tmp_path / "empty"))
    assert read_attended(empty, 1, 0, max_rows=9, seed=0) is None
    assert len(empty.attended) == 2
