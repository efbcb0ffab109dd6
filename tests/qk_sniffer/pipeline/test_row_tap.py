"""Rows taken inside the attention calls of real models, against what a hook sees."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

from qk_dump.layout import Kind
from qk_sniffer.model.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.model.layout import decoder_of, run_backbone
from qk_sniffer.model.probing import probe
from qk_sniffer.pipeline.row_tap import RowTap
from qk_sniffer.pipeline.taken_rows import TakenRows
from qk_sniffer.sampling.heads import KINDS, KindRows, WantedLayer, choose_heads, sample_rows
from qk_sniffer.sampling.positions import PositionSampler
from tiny_models import ARCHITECTURES, LAYERS, VOCABULARY, needs

EVERYTHING = PositionSampler("all")
SOME = PositionSampler("uniform", 8, 3.0, seed=4)  # three of eight positions
Rows = Mapping[tuple[int, Kind], KindRows]
Vectors = dict[tuple[int, Kind], Any]  # (n, heads, d)


def some_model(model_type: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    architecture = ARCHITECTURES[model_type]
    return architecture.model(architecture.attention[0], dtype)


def tokens(batch: int = 2, length: int = 24) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def rows_of(
    wanted: Sequence[WantedLayer],
    lengths: Sequence[int],
    sampler: PositionSampler = SOME,
    first: int = 0,
) -> Rows:
    return sample_rows(sampler, wanted, range(first, first + len(lengths)), lengths)


def told(taken: TakenRows, rows: Rows) -> Vectors:
    return {key: taken.vectors(key) for key in rows}


def taken_from(
    model: Any, wanted: Sequence[WantedLayer], rows: Rows, ids: Tensor, **options: Any
) -> Vectors:
    decoder = decoder_of(model)
    with RowTap(decoder, wanted, **options) as tap:
        tap.expect(rows)
        run_backbone(decoder, ids)
        return told(tap.take(), rows)


def hooked(model: Any, ids: Tensor) -> dict[tuple[int, Kind], Tensor]:
    """(b, heads, s, d) of every layer and kind, as attention is first given them."""
    seen: dict[tuple[int, Kind], Tensor] = {}

    def remember(call: AttentionCall) -> None:
        seen.setdefault((call.module.layer_idx, "q"), call.query.clone())
        seen.setdefault((call.module.layer_idx, "k"), call.key.clone())

    with attention_hook(remember):
        run_backbone(decoder_of(model), ids)
    return seen


def same(first: Vectors, second: Vectors) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[key], second[key]) for key in first
    )


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2", "mllama_text_model"])
def test_rows_are_those_that_attention_was_given(model_type: str) -> None:
    model = some_model(model_type)
    wanted = choose_heads(probe(model))
    rows = rows_of(wanted, [24, 24])
    got, seen = taken_from(model, wanted, rows, tokens()), hooked(model, tokens())
    assert got.keys() == seen.keys()
    for key, kept in rows.items():
        assert 0 < len(kept.position) < 48
        expected = seen[key][kept.sequence, :, kept.position].numpy()  # (n, heads, d)
        assert got[key].dtype == np.float32
        np.testing.assert_array_equal(got[key], expected)


def test_sampled_rows_are_rows_of_the_whole() -> None:
    model = some_model()
    wanted = choose_heads(probe(model))
    whole, rows = rows_of(wanted, [24, 24], EVERYTHING), rows_of(wanted, [24, 24])
    everything = taken_from(model, wanted, whole, tokens())
    for key, vectors in taken_from(model, wanted, rows, tokens()).items():
        place = rows[key].sequence * 24 + rows[key].position  # (n,)
        np.testing.assert_array_equal(vectors, everything[key][place])


@pytest.mark.parametrize("pre_rope", [False, True])
def test_rows_in_pieces_are_the_same_rows(pre_rope: bool) -> None:
    model = some_model()
    wanted = choose_heads(probe(model))
    rows = rows_of(wanted, [24, 24], EVERYTHING)
    whole = taken_from(model, wanted, rows, tokens(), pre_rope=pre_rope)
    for max_rows in (1, 47, 48):
        pieces = taken_from(model, wanted, rows, tokens(), pre_rope=pre_rope, max_rows=max_rows)
        assert same(whole, pieces)


@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "mistral", "gpt2", "llama4_text"])
def test_a_text_gives_the_same_rows_in_a_padded_batch_as_alone(
    model_type: str, pre_rope: bool
) -> None:
    model = some_model(model_type)
    wanted = choose_heads(probe(model))
    lengths = [9, 24, 1, 17]
    texts = [tokens(1, length) for length in lengths]
    batch = torch.zeros(4, max(lengths), dtype=torch.int64)
    for line, text in zip(batch, texts, strict=True):
        line[: text.shape[1]] = text[0]
    rows = rows_of(wanted, lengths)
    together = taken_from(model, wanted, rows, batch, pre_rope=pre_rope)
    for number, text in enumerate(texts):
        own = rows_of(wanted, [text.shape[1]], first=number)
        alone = taken_from(model, wanted, own, text, pre_rope=pre_rope)
        for key, vectors in alone.items():
            mine = rows[key].sequence == number  # (n,)
            np.testing.assert_array_equal(rows[key].position[mine], own[key].position)
            np.testing.assert_allclose(together[key][mine], vectors, rtol=1e-5, atol=1e-5)


def test_only_the_wanted_heads_are_taken() -> None:
    model = some_model()
    layout = probe(model)
    everything = choose_heads(layout)
    rows = rows_of(everything, [24, 24])
    full = taken_from(model, everything, rows, tokens())
    wanted = choose_heads(layout, layers=[1, 3], heads=[1, 3])
    some = taken_from(model, wanted, rows_of(wanted, [24, 24]), tokens())
    assert set(some) == {(layer, kind) for layer in (1, 3) for kind in KINDS}
    for layer in (1, 3):
        np.testing.assert_array_equal(some[layer, "q"], full[layer, "q"][:, [1, 3]])
        np.testing.assert_array_equal(some[layer, "k"], full[layer, "k"])
    wanted = choose_heads(layout, layers=[2], heads=[3], queries=False)
    (keys,) = taken_from(model, wanted, rows_of(wanted, [24, 24]), tokens()).values()
    np.testing.assert_array_equal(keys, full[2, "k"][:, [1]])


def projections(model: Any, ids: Tensor, *names: str) -> list[dict[str, Tensor]]:
    """What projections of every layer's attention gave, by layer."""
    seen: list[dict[str, Tensor]] = [{} for _ in range(LAYERS)]
    hooks = [
        getattr(layer.self_attn, name).register_forward_hook(
            lambda _, __, output, name=name, place=place: place.update({name: output.clone()})
        )
        for layer, place in zip(decoder_of(model).layers, seen, strict=True)
        for name in names
    ]
    run_backbone(decoder_of(model), ids)
    for hook in hooks:
        hook.remove()
    return seen


def in_heads(tensor: Tensor, heads: int) -> Any:
    """(1, 24, heads · d) → (24, heads, d), as rows of one text are laid out."""
    return tensor.reshape(24, heads, -1).numpy()


@pytest.mark.parametrize(("model_type", "part"), [("llama", 16), ("stablelm", 8)])
def test_vectors_before_the_rotary_embedding_are_the_projections(
    model_type: str, part: int
) -> None:
    model = some_model(model_type)
    wanted = choose_heads(probe(model))
    rows = rows_of(wanted, [24], EVERYTHING)
    before = taken_from(model, wanted, rows, tokens(1), pre_rope=True)
    after = taken_from(model, wanted, rows, tokens(1))
    for layer, seen in enumerate(projections(model, tokens(1), "q_proj", "k_proj")):
        for kind, heads in (("q", 4), ("k", 2)):
            straight, turned = before[layer, kind], after[layer, kind]
            np.testing.assert_array_equal(straight, in_heads(seen[f"{kind}_proj"], heads))
            assert not np.allclose(straight[..., :part], turned[..., :part])
            np.testing.assert_array_equal(straight[..., part:], turned[..., part:])


@pytest.mark.parametrize("heads", [None, [1, 2]])
def test_vectors_before_the_rotary_part_of_latent_attention(heads: list[int] | None) -> None:
    model = some_model("deepseek_v3")
    wanted = choose_heads(probe(model), heads=heads)
    rows = rows_of(wanted, [24], EVERYTHING)
    before = taken_from(model, wanted, rows, tokens(1), pre_rope=True)
    names = ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    for layer, seen in enumerate(projections(model, tokens(1), *names)):
        queries = in_heads(seen["q_b_proj"], 4)  # (s, heads, 16 + 8 to be turned)
        content = in_heads(seen["kv_b_proj"], 4)[..., :16]  # keys, then values
        shared = in_heads(seen["kv_a_proj_with_mqa"], 1)[..., -8:]  # one for all heads
        keys = np.concatenate([content, np.repeat(shared, 4, axis=1)], axis=-1)
        chosen = heads if heads is not None else [0, 1, 2, 3]
        np.testing.assert_array_equal(before[layer, "q"], queries[:, chosen])
        np.testing.assert_array_equal(before[layer, "k"], keys[:, chosen])


def test_what_an_earlier_forward_left_is_dropped() -> None:
    model = some_model()
    decoder, wanted = decoder_of(model), choose_heads(probe(model))
    rows = rows_of(wanted, [24, 24])
    other = rows_of(wanted, [12], first=7)
    with RowTap(decoder, wanted) as tap:
        tap.expect(rows)
        run_backbone(decoder, tokens())
        tap.expect(other)
        run_backbone(decoder, tokens(1, 12))
        got = told(tap.take(), other)
        run_backbone(decoder, tokens())  # nobody asked for anything
        assert not any(key in tap.take() for key in rows)
    assert same(got, taken_from(model, wanted, other, tokens(1, 12)))


def test_a_failed_forward_spoils_nothing() -> None:
    model = some_model("stablelm")
    decoder, wanted = decoder_of(model), choose_heads(probe(model))
    rows = rows_of(wanted, [24, 24])

    def fail(*_: object) -> None:
        raise ValueError("in the middle")

    for place in (decoder.layers[1].self_attn.o_proj, decoder.layers[1].self_attn.k_proj):
        with RowTap(decoder, wanted, pre_rope=True) as tap:
            hook = place.register_forward_pre_hook(fail)
            tap.expect(rows)
            with pytest.raises(ValueError, match="in the middle"):
                run_backbone(decoder, tokens() % 64)
            hook.remove()
            tap.expect(rows)
            run_backbone(decoder, tokens())
            got = told(tap.take(), rows)
        assert same(got, taken_from(model, wanted, rows, tokens(), pre_rope=True))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_second_forward_before_taking_changes_nothing() -> None:
    model = some_model()
    decoder, wanted = decoder_of(model), choose_heads(probe(model))
    rows = rows_of(wanted, [24, 24])
    with RowTap(decoder, wanted) as tap:
        tap.expect(rows)
        run_backbone(decoder, tokens())
        run_backbone(decoder, tokens() % 64)
        got = told(tap.take(), rows)
    assert same(got, taken_from(model, wanted, rows, tokens()))


def test_another_model_of_the_same_kind_is_not_heard() -> None:
    mine, other = some_model(), some_model()
    wanted = choose_heads(probe(mine))
    rows = rows_of(wanted, [24, 24])
    with RowTap(decoder_of(mine), wanted, pre_rope=True) as tap:
        tap.expect(rows)
        run_backbone(decoder_of(other), tokens())
        assert not any(key in tap.take() for key in rows)


def test_a_step_that_continues_from_a_cache_is_left_out() -> None:
    model = some_model()
    wanted = choose_heads(probe(model))
    rows = rows_of(wanted, [1], EVERYTHING)
    with RowTap(decoder_of(model), wanted) as tap, torch.inference_mode():
        cache = model(input_ids=tokens(1), use_cache=True).past_key_values
        tap.expect(rows)
        model(input_ids=tokens(1, 1), past_key_values=cache)
        assert not any(key in tap.take() for key in rows)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pre_rope", [False, True])
def test_half_precision_is_widened_exactly(dtype: torch.dtype, pre_rope: bool) -> None:
    model = some_model("stablelm", dtype)
    wanted = choose_heads(probe(model))
    rows = rows_of(wanted, [24, 24])
    got = taken_from(model, wanted, rows, tokens(), pre_rope=pre_rope)
    if pre_rope:
        seen = {
            (layer, kind): told[f"{kind}_proj"].unflatten(-1, (heads, -1)).transpose(1, 2)
            for layer, told in enumerate(projections(model, tokens(), "q_proj", "k_proj"))
            for kind, heads in (("q", 4), ("k", 2))
        }
    else:
        seen = hooked(model, tokens())
    for key, kept in rows.items():
        expected = seen[key][kept.sequence, :, kept.position]
        assert expected.dtype == dtype
        assert got[key].dtype == np.float32
        np.testing.assert_array_equal(got[key], expected.float().numpy())


def test_the_first_of_two_calls_of_a_layer_is_taken() -> None:
    config = AutoConfig.for_model("diffllama", **ARCHITECTURES["llama"].config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    needs(model._supports_attention_backend, "let diffllama's attention go through the registry")
    layout = probe(model)
    assert [facts.call for facts in layout.layers] == [0] * LAYERS
    wanted = choose_heads(layout)
    rows = rows_of(wanted, [24], EVERYTHING)
    after, seen = taken_from(model, wanted, rows, tokens(1)), hooked(model, tokens(1))
    before = taken_from(model, wanted, rows, tokens(1), pre_rope=True)
    for layer, straight in enumerate(projections(model, tokens(1), "q_proj", "k_proj")):
        for kind, heads in (("q", 4), ("k", 2)):
            turned = seen[layer, kind][0].transpose(0, 1).numpy()  # (s, heads, d)
            np.testing.assert_array_equal(after[layer, kind], turned)
            projected = in_heads(straight[f"{kind}_proj"], heads)
            np.testing.assert_array_equal(before[layer, kind], projected)


def test_a_batch_without_any_kept_position() -> None:
    model = some_model()
    wanted = choose_heads(probe(model), heads=[0])
    empty = np.empty(0, np.int64)
    rows: Rows = {(layer, kind): KindRows(empty, empty) for layer in range(4) for kind in KINDS}
    for pre_rope in (False, True):
        got = taken_from(model, wanted, rows, tokens(), pre_rope=pre_rope)
        assert {vectors.shape for vectors in got.values()} == {(0, 1, 16)}
    assert rows_of(wanted, []).keys() == rows.keys()


def test_rows_are_sampled_by_example_number_layer_and_kind() -> None:
    wanted = choose_heads(probe(some_model()), layers=[1, 2])
    rows = sample_rows(SOME, wanted, [5, 3], [100, 50])
    assert set(rows) == {(layer, kind) for layer in (1, 2) for kind in KINDS}
    for (layer, kind), kept in rows.items():
        for place, (example, length) in enumerate([(5, 100), (3, 50)]):
            mine = kept.position[kept.sequence == place]
            expected = SOME.positions(length, example=example, layer=layer, kind=kind)
            np.testing.assert_array_equal(mine, expected)
        assert np.all(np.diff(kept.sequence) >= 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["llama", "stablelm", "deepseek_v3"])
def test_rows_from_a_gpu(model_type: str, dtype: torch.dtype, pre_rope: bool) -> None:
    architecture = ARCHITECTURES[model_type]
    model = architecture.model("sdpa", dtype).cuda()
    wanted = choose_heads(probe(model))
    batches = [tokens(4, length) for length in (512, 300, 512)]
    decoder, results, expected = decoder_of(model), [], []
    with RowTap(decoder, wanted, pre_rope=pre_rope, max_rows=100) as tap:
        for ids in batches:  # taken while the next one runs, as a capture does
            rows = rows_of(wanted, [ids.shape[1]] * 4)
            tap.expect(rows)
            run_backbone(decoder, ids)
            results.append((tap.take(), rows))
    for (taken, rows), ids in zip(results, batches, strict=True):
        seen = hooked(model, ids)
        vectors = told(taken, rows)
        expected.append(vectors)
        for key, kept in rows.items():
            if not pre_rope:
                cpu = seen[key].cpu()[kept.sequence, :, kept.position].float().numpy()
                np.testing.assert_array_equal(vectors[key], cpu)
    if pre_rope:
        ids, (_, rows) = batches[0], results[0]
        same_again = taken_from(model, wanted, rows, ids, pre_rope=True, max_rows=10**6)
        assert same(same_again, expected[0])


@pytest.mark.parametrize("model_type", ["llama", "stablelm"])
def test_turned_vectors_are_never_taken_for_straight_ones(model_type: str) -> None:
    model = some_model(model_type)
    wanted = choose_heads(probe(model))
    rows = rows_of(wanted, [24], EVERYTHING)
    file = sys.modules[type(wanted[0].facts.module).__module__]
    original = file.apply_rotary_pos_emb
    with (
        RowTap(decoder_of(model), wanted, pre_rope=True) as tap,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(file, "apply_rotary_pos_emb", original)  # not heard
        tap.expect(rows)
        run_backbone(decoder_of(model), tokens(1))
        taken = tap.take()
    assert not any(key in taken for key in rows)


class _Copies(TorchFunctionMode):
    """Remembers of every copy whether it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[bool] = []

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is Tensor.copy_:
            self.waiting.append(not (options or {}).get("non_blocking", False))
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("max_rows", [7, 65_536])
@pytest.mark.parametrize("model_type", ["llama", "stablelm"])
def test_copies_wait_on_devices_other_than_cuda(model_type: str, max_rows: int) -> None:
    """The CPU stands for MPS and XPU, which no test machine has: only CUDA has our events."""
    model = ARCHITECTURES[model_type].model()
    wanted = choose_heads(probe(model))
    for pre_rope in (False, True):
        with (
            _Copies() as copies,
            RowTap(decoder_of(model), wanted, pre_rope=pre_rope, max_rows=max_rows) as tap,
        ):
            tap.expect(rows_of(wanted, [24, 24], EVERYTHING))
            run_backbone(decoder_of(model), tokens())
            tap.take()
        assert len(copies.waiting) >= 8
        assert all(copies.waiting)
