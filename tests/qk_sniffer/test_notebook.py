"""`qk_sniffer.tap` on loaded models, as one uses it in a notebook."""

import errno
import os
import shutil
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers.modeling_utils import AttentionInterface

import qk_sniffer
from qk_dump.reader import read_attended
from qk_dump.side_files import read_tokens
from qk_dump.source import open_dump
from qk_sniffer.cli import main
from qk_sniffer.engines.hf.layout import decoder_of
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError
from tiny_models import ARCHITECTURES, VOCABULARY
from tiny_texts import save_texts, save_tiny_model, some_text, tiny_tokenizer, vision_language_model

ORIGINAL = AttentionInterface.get_interface


@cache
def some_model(model_type="llama"):
    return ARCHITECTURES[model_type].model()


def tokens(batch=1, length=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(8, VOCABULARY, (batch, length), generator=generator)


def padded(lengths, left=False):
    """Tokens (b, s) of texts of these lengths, and their mask."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, length in enumerate(lengths):
        place = slice(-length, None) if left else slice(length)
        ids[number, place] = tokens(1, length, seed=number)[0]
        mask[number, place] = 1
    return ids, mask


def same(first, second):
    return first.columns.keys() == second.columns.keys() and all(
        np.array_equal(values, second[name], equal_nan=values.dtype.kind == "f")
        for name, values in first.columns.items()
    )


def fail(*_):
    raise ValueError("in the middle")


def test_rows_come_as_arrays_of_one_length():
    with qk_sniffer.tap(some_model(), sampler="all") as tapped:
        some_model()(input_ids=tokens(2))
    for rows in (tapped.queries(0, 3), tapped.keys(3, 1)):
        assert len(rows) == 48
        assert rows.example_id.tolist() == [0] * 24 + [1] * 24
        assert rows.position.tolist() == [*range(24), *range(24)]
        assert rows.bucket.tolist() == [0] * 48
        assert rows.vectors.shape == (48, 16)
        assert rows.vectors.dtype == np.float32
        assert set(rows.sliding_window) == {-1}
    assert tapped.lengths == [24, 24]
    assert repr(tapped) == (
        "<Tap LlamaForCausalLM: layers 0-3, 16 query heads, 8 key heads, 2 texts, 1,152 rows>"
    )
    with pytest.raises(AttributeError, match="there is no column 'nonsense', only bucket, exam"):
        _ = tapped.queries(0, 0).nonsense


def test_examples_are_numbered_onward_over_forwards():
    """Also when the tap is opened again."""
    model = some_model()
    tapped, alone = qk_sniffer.tap(model, sampler="all"), qk_sniffer.tap(model, sampler="all")
    with tapped:
        model(input_ids=tokens(2, 10, seed=1))
        with alone:
            model(input_ids=tokens(1, 5, seed=2))
    model(input_ids=tokens(1, 9))  # outside
    with tapped:
        model(input_ids=tokens(1, 7, seed=3))
    assert tapped.lengths == [10, 10, 5, 7]
    rows = tapped.keys(1, 0)
    assert rows.example_id.tolist() == [0] * 10 + [1] * 10 + [2] * 5 + [3] * 7
    np.testing.assert_array_equal(rows.vectors[rows.example_id == 2], alone.keys(1, 0).vectors)


def holey():
    ids, mask = padded([8, 8])
    mask[1, 3] = 0
    return ids, mask


@pytest.mark.parametrize("padding", [padded([4, 8], left=True), holey()], ids=["left", "hole"])
def test_other_padding_is_refused(padding):
    model = some_model()
    with qk_sniffer.tap(model, sampler="all") as tapped:
        with pytest.raises(ConfigError) as caught:
            model(input_ids=padding[0], attention_mask=padding[1])
        model(input_ids=tokens(1, 5))
    assert str(caught.value) == (
        "attention_mask: sequences must be padded on the right; other padding shifts "
        "positions. Set tokenizer.padding_side = 'right'."
    )
    assert tapped.lengths == [5]
    assert tapped.queries(0, 0).example_id.tolist() == [0] * 5


def test_texts_with_images_are_captured_in_the_text_layers():
    """Padding is seen although the decoder gets masks made of it."""
    model, ids = vision_language_model(), tokens(2, 12)
    ids[:, 1:5] = 5
    images = torch.zeros(2, 3, 28, 28)
    with qk_sniffer.tap(model, sampler="all") as tapped:
        model(input_ids=ids, pixel_values=images, token_type_ids=(ids == 5).long())
        assert (len(tapped.heads), len(tapped.keys(3, 1))) == (24, 24)
        ids, mask = padded([12, 8])
        model(input_ids=ids, attention_mask=mask)
        assert tapped.lengths == [12, 12, 12, 8]
        ids, mask = padded([12, 8], left=True)
        with pytest.raises(ConfigError, match="padded on the right"):
            model(input_ids=ids, attention_mask=mask)


def test_positions_of_ones_own_are_refused():
    model = some_model()
    packed = torch.arange(6).repeat(2)[None]  # two texts in one sequence
    with qk_sniffer.tap(model, sampler="all") as tapped:
        model(input_ids=tokens(1, 12), position_ids=torch.arange(12)[None])
        ids, mask = padded([12, 8])
        places = (mask.cumsum(dim=1) - 1).masked_fill(mask == 0, 1)  # as generate() makes them
        model(input_ids=ids, attention_mask=mask, position_ids=places)
        assert tapped.lengths == [12, 12, 8]
        with pytest.raises(ConfigError, match="position_ids"):
            model(input_ids=tokens(1, 12), position_ids=packed)


def generated(model, ids, **options):
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=4, **options)


def test_of_a_generation_with_a_cache_the_prompt_is_kept():
    model, ids = some_model(), tokens(2, 12)
    plain = generated(model, ids)
    with qk_sniffer.tap(model, sampler="all") as tapped:
        assert torch.equal(generated(model, ids), plain)
        generated(model, ids[:1, :7])
    assert tapped.lengths == [12, 12, 7]
    with qk_sniffer.tap(model, sampler="all") as prompt:
        model(input_ids=ids)
        model(input_ids=ids[:1, :7])
    np.testing.assert_allclose(
        tapped.keys(3, 1).vectors, prompt.keys(3, 1).vectors, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("bare", [False, True])
def test_tokens_may_be_given_by_position_or_as_embeddings(bare):
    model, ids = some_model("gpt2"), tokens(2, 12)
    called = decoder_of(model) if bare else model
    with qk_sniffer.tap(called, sampler="all") as tapped:
        called(ids)
        called(inputs_embeds=model.get_input_embeddings()(ids))
    assert tapped.lengths == [12] * 4
    rows = tapped.queries(1, 2)
    np.testing.assert_array_equal(rows.vectors[:24], rows.vectors[24:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": [4]}, "capture.layers: 4 given, there are 0-3"),
        ({"queries": False, "keys": False}, "neither queries nor keys"),
        (
            {"sampler": "some"},
            "sampler: expected one of auto, log_uniform, uniform, all, got 'some'",
        ),
        ({"base_rate": 4.0}, "base_rate: is chosen by the sampler auto; leave it out"),
        ({"texts": 0}, "texts: expected a number from 1, got 0"),
        ({"base_rate": 0.0}, "base_rate"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        qk_sniffer.tap(some_model(), **settings)
    assert message in str(caught.value)


def test_a_forward_that_failed_is_forgotten():
    """Also by a tap that is opened after it."""
    model = some_model()
    with qk_sniffer.tap(model, sampler="all", pre_rope=True) as tapped:
        model(input_ids=tokens(1, 5, seed=1))
        hook = model.model.layers[2].mlp.register_forward_pre_hook(fail)
        with pytest.raises(ValueError, match="in the middle"):
            model(input_ids=tokens(1, 90))
        hook.remove()
        with qk_sniffer.tap(model, sampler="all", pre_rope=True) as second:
            model(input_ids=tokens(1, 6, seed=2))
    assert (tapped.lengths, second.lengths) == ([5, 6], [6])
    with qk_sniffer.tap(model, sampler="all", pre_rope=True) as undisturbed:
        model(input_ids=tokens(1, 5, seed=1))
        model(input_ids=tokens(1, 6, seed=2))
    assert all(same(tapped.rows(head), undisturbed.rows(head)) for head in tapped.heads)


def lines(model, lengths, **how):
    """A tap of texts of these lengths, one per forward, and what it said."""
    said = []
    with torch.inference_mode(), qk_sniffer.tap(model, say=said.append, **how) as tapped:
        for number, length in enumerate(lengths):
            model(input_ids=tokens(1, length, seed=number))
    return tapped, said


@pytest.mark.parametrize("attended", [0, 5])
def test_a_longer_text_thins_earlier_ones(attended):
    """As if the sampler for the longest text had been there from the start."""
    model, lengths = some_model(), [3, 40, 24, 300, 150]
    auto, _ = lines(model, lengths, texts=64, attended_keys=attended)
    sampler = auto.plan.sampler
    assert (sampler.min_bucket_size, sampler.base_rate, sampler.key_base_rate) == (16, 2.0, 8.0)
    chosen = {
        "sampler": "uniform",
        "min_bucket_size": 16,
        "base_rate": 2.0,
        "key_base_rate": 8.0,
    }
    same_sampler, _ = lines(model, lengths, attended_keys=attended, **chosen)
    for head in auto.heads + auto.attended_heads:
        thinned, direct = auto.rows(head), same_sampler.rows(head)
        assert list(thinned.columns) == list(direct.columns)
        for name, values in thinned.columns.items():
            close = 1e-5 if values.dtype.kind == "f" and name != "vector" else 0  # other blocks
            np.testing.assert_allclose(values, direct[name], rtol=close, atol=close)
    assert len(auto.queries(0, 0)) < sum(lengths) / 4
    assert repr(auto) == repr(same_sampler)


def test_only_the_first_16_texts_set_the_buckets():
    """Nor does a forward that failed."""
    model = some_model()
    tapped, _ = lines(model, [32] * 16 + [300], texts=64)
    assert tapped.plan.sampler.min_bucket_size == 2
    with qk_sniffer.tap(model, texts=64) as tapped:
        model(input_ids=tokens(1, 32))
        hook = model.model.layers[2].mlp.register_forward_pre_hook(fail)
        with pytest.raises(ValueError, match="in the middle"):
            model(input_ids=tokens(1, 300))
        hook.remove()
    assert tapped.plan.sampler.min_bucket_size == 2


def test_a_tap_keeps_what_a_capture_of_the_texts_keeps(tmp_path):
    """The default of both, and files of the same size."""
    model = save_tiny_model(tmp_path / "model")
    lengths = [500, 130, 400, 511, 260, 90]
    texts = save_texts(tmp_path / "texts", lengths)
    flags = {"capture.attended_keys": 0, "inference.batch_size": 1}
    given = [*flags.items(), ("model.name", model), ("dataset.path", texts)]
    words = [word for name, value in given for word in (f"--{name}", str(value))]
    assert main([*words, "--output.data_root", str(tmp_path / "captured")]) == 0
    loaded = ARCHITECTURES["llama"].model()
    with torch.inference_mode(), qk_sniffer.tap(loaded, texts=len(lengths)) as tapped:
        for number, length in enumerate(lengths):
            text = some_text(length, seed=number)
            loaded(**tiny_tokenizer()(text, return_tensors="pt", return_token_type_ids=False))
    tapped.save(tmp_path / "tapped", tiny_tokenizer())
    captured, dump = open_dump(tmp_path / "captured"), open_dump(tmp_path / "tapped")
    assert captured.manifest.sampler == dump.manifest.sampler
    assert list(captured.folders) == list(dump.folders)
    for head in dump.folders:
        tables = [pq.read_table(one.require_files(head)[0]) for one in (captured, dump)]
        assert tables[0].equals(tables[1])
        assert head.kind == "k" or tables[0].num_rows < 0.8 * sum(lengths)
    sizes = [sum(path.stat().st_size for path in one.path.rglob("*")) for one in (captured, dump)]
    assert sizes[1] <= 1.05 * sizes[0]


def test_what_a_tap_assumes_and_what_everything_takes_is_said_once():
    model = some_model()
    assert lines(model, [24, 24])[1] == [
        "tap: assumes 16 texts and keeps 128 queries and 512 keys per bucket of them; texts= is "
        "another number, sampler='all' keeps every position"
    ]
    assert lines(model, [24], texts=2)[1] == []
    assert lines(model, [24], sampler="log_uniform")[1] == []
    # 24 tokens, 4 layers, 4 query and 2 key heads of 16 dimensions
    tapped, [everything] = lines(model, [24, 24], sampler="all", texts=10, attention=False)
    rows = 24 * (16 + 8) * (16 + 5) * 4  # floats of the vector, and five integers
    assert everything.startswith(
        f"tap: keeps every position: {rows / 1000:.1f} kB for the 24 tokens of this forward, "
        f"{rows / 100:.1f} kB for 10 texts like these"
    )
    assert sum(len(tapped.rows(head)) for head in tapped.heads) == 48 * 24


def left_behind(model):
    return AttentionInterface.get_interface is not ORIGINAL or any(
        module._forward_pre_hooks or module._forward_hooks for module in model.modules()
    )


def test_taps_on_two_models_hear_their_own_and_close_in_any_order():
    models = (ARCHITECTURES["llama"].model(), some_model("smollm3"))
    stacks, taps = (ExitStack(), ExitStack()), []
    for model, stack in zip(models, stacks, strict=True):
        taps.append(stack.enter_context(qk_sniffer.tap(model, sampler="all", pre_rope=True)))
    models[0](input_ids=tokens(1, 4))
    models[1](input_ids=tokens(1, 6))
    stacks[0].close()
    for model in models:
        model(input_ids=tokens(1, 8))
    with pytest.raises(RuntimeError), stacks[1]:
        models[1](input_ids=tokens(1, 3).float())
    assert taps[0].lengths == [4]
    assert taps[1].lengths == [6, 8]
    assert not any(map(left_behind, models))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_training_step_under_a_tap_has_the_same_gradients(checkpointing):
    gradients = []
    for tapping in (False, True):
        model = ARCHITECTURES["llama"].model().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        with ExitStack() as stack:
            if tapping:
                tapped = stack.enter_context(qk_sniffer.tap(model, sampler="all"))
            model(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert all(map(torch.equal, *gradients))
    assert tapped.lengths == [24]
    assert len(tapped.queries(0, 0)) == 24


def test_a_model_that_counts_positions_from_1_for_its_decoder_is_heard():
    model = vision_language_model("paligemma")
    with torch.inference_mode(), qk_sniffer.tap(model, sampler="all") as tapped:
        model(input_ids=tokens(2, 12))
        ids, mask = padded([12, 8])
        model(ids, None, mask)  # by position, as any of a forward's arguments may be given
        with pytest.raises(ConfigError, match="position_ids"):
            model(input_ids=tokens(1, 12), position_ids=torch.arange(12)[None] + 1)
        with pytest.raises(ConfigError, match="position_ids"):  # the decoder itself
            decoder_of(model)(input_ids=tokens(1, 12), position_ids=torch.arange(12)[None] + 1)
    assert tapped.lengths == [12, 12, 12, 8]
    assert tapped.queries(0, 0).position.tolist() == [*range(12)] * 3 + [*range(8)]


def test_tokens_are_known_where_ids_are_given(tmp_path):
    """One forward gets ids, one embeddings: its tokens are null in a saved dump."""
    model, ids = some_model(), tokens(1, 12)
    embeddings = model.get_input_embeddings()(ids)
    with qk_sniffer.tap(model, sampler="all") as tapped:
        model(ids)
        model(inputs_embeds=embeddings)
    rows, keys = tapped.queries(1, 2), tapped.keys(1, 1)
    assert rows.token_id.tolist() == keys.token_id.tolist() == [*ids[0].tolist(), *[-1] * 12]
    np.testing.assert_allclose(rows.first_mass[:12], rows.first_mass[12:], atol=1e-6)
    assert rows.argmax_position[:12].tolist() == rows.argmax_position[12:].tolist()
    assert rows.argmax_token[:12].tolist() == ids[0, rows.argmax_position[:12]].tolist()
    assert set(rows.argmax_token[12:]) == set(rows.duplicate_keys[12:]) == {-1}
    assert np.isnan(rows.induction_mass[12:]).all()
    dump = tapped.save(tmp_path / "dump", tokenizer=tiny_tokenizer())
    table = pq.read_table(dump / "l01h02q" / "data.parquet")
    for name in ("token_id", "argmax_token", "duplicate_mass", "induction_keys"):
        assert [value is None for value in table[name].to_pylist()] == [False] * 12 + [True] * 12
    vocabulary = {number: token for token, number in tiny_tokenizer().get_vocab().items()}
    known = {number: vocabulary.get(number, "") for number in ids[0].tolist()}
    assert read_tokens(dump) == known
    assert "`tokens.parquet`" in (dump / "README.md").read_text()


@pytest.mark.parametrize("wanted", [True, False])
def test_tokens_that_are_not_known_or_not_wanted_are_left_out(wanted, tmp_path):
    model, ids = some_model(), tokens(1, 12)
    given = {"inputs_embeds": model.get_input_embeddings()(ids)} if wanted else {"input_ids": ids}
    with qk_sniffer.tap(model, sampler="all", tokens=wanted) as tapped:
        model(**given)
    rows = tapped.queries(0, 0)
    assert "first_mass" in rows
    assert {"token_id", "argmax_token", "duplicate_mass", "induction_mass"}.isdisjoint(rows.columns)
    dump = tapped.save(tmp_path, tokenizer=tiny_tokenizer())  # an empty folder
    assert read_tokens(dump) is None
    names = pq.read_schema(dump / "l00h00q" / "data.parquet").names
    assert "first_mass" in names
    assert "token_id" not in names


FEW = {"sampler": "uniform", "base_rate": 1.0, "min_bucket_size": 16}


@pytest.mark.parametrize(
    ("model_type", "pre_rope"), [("llama", False), ("stablelm", True), ("deepseek_v3", True)]
)
def test_drawn_keys_are_those_of_a_tap_of_all_keys(model_type, pre_rope, tmp_path):
    """With rotary embedding of all, some or no dimensions; read back from a saved dump."""
    model = some_model(model_type)
    everything = qk_sniffer.tap(model, sampler="all", pre_rope=pre_rope, layers=[1])
    some = qk_sniffer.tap(model, pre_rope=pre_rope, layers=[1], attended_keys=12, **FEW)
    with torch.no_grad(), everything, some:
        for seed in (1, 2):
            model(input_ids=tokens(2, 40, seed=seed))
    dump = open_dump(some.save(tmp_path / "dump"))
    assert list(dump.attended) == some.attended_heads
    for head in some.attended_heads:
        whole, base = everything.keys(1, head.head), some.keys(1, head.head)
        drawn = some.attended(1, head.head)
        assert set(drawn.example_id) == {0, 1, 2, 3}
        places = 40 * drawn.example_id + drawn.position
        np.testing.assert_array_equal(drawn.vectors, whole.vectors[places])
        assert not np.isin(places, 40 * base.example_id + base.position).any()
        assert drawn.received.shape == (len(drawn), some.layout[1].group)
        assert (drawn.inclusion > 1 / 16).all()
        read = read_attended(dump, 1, head.head)
        for name in set(drawn.columns) - {"sliding_window"}:
            np.testing.assert_array_equal(read[name], drawn[name])


def test_a_model_that_overflows_is_not_saved(tmp_path):
    """Vectors are finite and logits are not, which keys show by the attention they receive."""
    model = ARCHITECTURES["llama"].model()
    attention = model.model.layers[2].self_attn
    for weights in (attention.q_proj.weight, attention.k_proj.weight):
        weights.data.mul_(1e20)
    with qk_sniffer.tap(model, sampler="all", queries=False, attended_keys=3) as tapped:
        model(input_ids=tokens(1, 12))
    with pytest.raises(ToolkitError, match=r"layer 2: NaN or infinity in the attention logits of"):
        tapped.save(tmp_path / "dump")
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    """The disk is full at the sixth file. When there is room, the same rows are saved."""
    model, fsync, files = some_model(), os.fsync, []

    def until_full(number):
        files.append(number)
        if len(files) == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(number)

    with qk_sniffer.tap(model, sampler="all", layers=[0]) as tapped:
        model(input_ids=tokens(1, 12))
    with monkeypatch.context() as change:
        change.setattr(os, "fsync", until_full)
        with pytest.raises(OutputError) as caught:
            tapped.save(tmp_path / "new" / "dump")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'new' / 'dump'}: cannot be written: No space left")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]
    saved = open_dump(tapped.save(tmp_path / "new" / "dump"))
    assert list(saved.folders) == tapped.heads


def test_what_a_killed_save_leaves_is_no_dump(tmp_path):
    """No reader finds it, and the next save removes it."""
    model = some_model()
    with qk_sniffer.tap(model, sampler="all", layers=[0]) as tapped:
        model(input_ids=tokens(1, 12))
    whole = tapped.save(tmp_path / "other")
    killed = tmp_path / "data" / ".mine.part-1-abcd"
    killed.parent.mkdir()
    whole.rename(killed)
    (killed / "dump.json").unlink()
    with pytest.raises(ConfigError, match="no heads found"):
        open_dump(tmp_path / "data")
    tapped.save(tmp_path / "data" / "mine")
    assert [path.name for path in killed.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize("last", ["examples.parquet", "dump.json"])
def test_the_draft_of_a_killed_save_is_refused_by_its_own_name(tmp_path, monkeypatch, last):
    """Whatever was the last file that was written."""
    left = tmp_path / "left"
    replace = Path.replace

    def killed(draft, target):
        written = replace(draft, target)
        if target.name == last:
            shutil.copytree(target.parent, left)
            raise KeyboardInterrupt
        return written

    with qk_sniffer.tap(some_model(), sampler="all", layers=[0]) as tapped:
        tapped.model(input_ids=tokens(1, 12))
    with monkeypatch.context() as change:
        change.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            tapped.save(tmp_path / "dump")
    assert (left / last).exists()
    with pytest.raises(ConfigError, match=r"left: was not saved to the end.*Save it again"):
        open_dump(left)
    whole = tapped.save(tmp_path / "dump")
    assert not (whole / ".capture").exists()
    assert list(open_dump(whole).folders) == tapped.heads


def test_a_folder_that_holds_something_is_not_written_to(tmp_path):
    with qk_sniffer.tap(some_model(), sampler="all", layers=[0]) as tapped:
        some_model()(input_ids=tokens(1, 5))
    tapped.save(tmp_path / "dump")
    with pytest.raises(ConfigError, match="already holds a dump; choose another folder"):
        tapped.save(tmp_path / "dump")
    with pytest.raises(ConfigError, match="is not empty; choose another folder"):
        tapped.save(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        tapped.save(tmp_path / "file")
