"""Plasticity at one position against counts, also through a window or in chunks.

No Gaussian, no rotation, no draws of the package: every position of every text is captured, and two
queries of different texts at the same position are compared.
"""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import attention_plasticity as ap
import qk_sniffer
from attention_plasticity.measure.plasticity import COLUMNS, FEW_VISIBLE
from helpers.simulated_rope import split
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
from tiny_models import ARCHITECTURES, VOCABULARY

Array = npt.NDArray[np.float64]


def tapped(
    root, model_type, layers, *, texts=12, length=256, common=2.0, scale=1.0, config=None, **how
):
    """A dump of random texts of one length, from a tiny random model with the given config.

    All embeddings have a common part, so that queries have a mean and prefer some keys. `scale`
    multiplies queries and keys.
    """
    known = ARCHITECTURES[model_type]
    model = replace(known, config={**known.config, **(config or {})}).model()
    generator = torch.Generator().manual_seed(1)
    embeddings = model.get_input_embeddings().weight.data
    embeddings += common * embeddings.std() * torch.randn(embeddings.shape[1], generator=generator)
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            parameter.data *= scale
    tokens = torch.randint(8, VOCABULARY, (texts, length), generator=generator)
    how = {"sampler": "all", "tokens": False, **how}
    with torch.no_grad(), qk_sniffer.tap(model, layers=layers, **how) as tapped:
        model(input_ids=tokens)
    return ap.open_dump(tapped.save(root))


def by_text(dump, head):
    """(texts, positions, d) vectors of a dump with every position."""
    rows = read_head(dump.require_files(head), examples=True)
    assert rows.example_id is not None
    order = np.lexsort((rows.position, rows.example_id))
    texts = len(np.unique(rows.example_id))
    return rows.vectors[order].astype(np.float64).reshape(texts, -1, rows.width)


def without_rope(dump):
    """A dump captured before RoPE as the dump of a model that has none."""
    file = Path(str(dump.path)) / "dump.json"
    content = json.loads(file.read_text())
    content |= {"pre_rope": False, "attention_scale": None}  # the logits are not those of the model
    for layer in content["layers"]:
        layer |= {"rope": False, "scale": None}
        layer.pop("rotary", None)
    file.write_text(json.dumps(content))
    return ap.open_dump(dump.path)


def visible(t, begin, window, *, chunked):
    """The keys whose pairs a query at t compares: those that it sees, or those before its bin."""
    if window is None:
        return range(begin)
    return range(t // window * window if chunked else max(0, t - window + 1), t + 1)


def counted(q, k, window, *, chunked, same_bin, size):
    """Mean over pairs that a position sees of 4c(E − c)/(E(E − 1)); c of E texts prefer a key.

    Then the mean over bins of `size` positions, weighted by tokens. Not all pairs of a position are
    counted.
    """
    texts, length, _ = q.shape
    rng, found = np.random.default_rng(0), []
    for begin in range(0, length, size):
        total, pairs, end = 0.0, 0, min(length, begin + size)
        for t in range(begin, end):
            keys = visible(t, begin, window, chunked=chunked)
            x, y = keys.start + np.array(np.triu_indices(len(keys), 1))  # all pairs
            if same_bin:
                x, y = (one[x // size == y // size] for one in (x, y))
            if len(x) == 0:
                continue
            some = rng.integers(0, len(x), 40)
            w = k[:, x[some]] - k[:, y[some]]  # (texts, pairs, d)
            scores = w @ q[:, t].T  # (texts of the keys, pairs, texts)
            c = ((scores > 0) + 0.5 * (scores == 0)).sum(axis=-1)  # equal keys: a tie
            total += len(x) * float(np.mean(4 * c * (texts - c) / (texts * (texts - 1))))
            pairs += len(x)
        if pairs:
            found.append((total / pairs, end - begin))
    return float(np.average([value for value, _ in found], weights=[n for _, n in found]))


@pytest.mark.parametrize(
    ("model_type", "config", "layers", "sampling", "size"),
    [
        ("llama", {}, [1], "context", 64),
        ("llama", {}, [2], "bucket", 64),
        ("glm", {}, [2], "bucket", 64),  # interleaved, half of the dimensions
        ("stablelm", {}, [2], "context", 64),  # halves, half of the dimensions
        ("mistral", {"sliding_window": 100}, [0], "context", 128),  # bins wider than the window
        ("mistral", {"sliding_window": 100}, [2], "bucket", 32),
        ("llama4_text", {"attention_chunk_size": 48}, [0], "context", 128),
        ("llama4_text", {"attention_chunk_size": 100}, [0], "bucket", 64),
        ("no rope", {"sliding_window": 100}, [0], "context", 128),
    ],
)
def test_it_is_what_queries_of_one_position_count(
    tmp_path, model_type, config, layers, sampling, size
):
    rope = model_type != "no rope"
    if rope:
        dump = tapped(tmp_path / "dump", model_type, layers, config=config)
    else:
        dump = without_rope(
            tapped(tmp_path / "dump", "mistral", layers, config=config, pre_rope=True)
        )
    settings = ap.make_config(num_pairs_per_bin=2000, pair_sampling=sampling, bin_size=size)
    aligned, pooled, expected = [], [], []
    for layer, q_head in dump.query_heads:
        result = ap.analyze_head(layer, q_head, dump=dump, config=settings)
        row = result.metrics
        aligned.append(row["ap_aligned"])
        pooled.append(row["ap_pooled"])
        assert abs(row["ap_aligned_counted"] - aligned[-1]) < 0.05
        q = by_text(dump, HeadId(layer, q_head, "q"))
        k = by_text(dump, HeadId(layer, result.k_head, "k"))
        window = next(iter(config.values()), None)
        mask = {"chunked": model_type == "llama4_text", "same_bin": sampling == "bucket"}
        expected.append(counted(q, k, window, **mask, size=size))
        between = np.subtract(*(result.tables["bins"][name] for name in ("q_bin", "k_bin")))
        assert (0 in between) == (window is not None)
    differences = np.abs(np.subtract(aligned, expected))
    assert differences.mean() <= 0.01
    assert differences.max() <= 0.05
    if rope:
        assert np.abs(np.subtract(pooled, expected)).mean() > 0.1
    else:
        assert pooled == aligned


def counted_cells(q, k, window, size):
    """The same for every bin of queries and bin of keys: share of the pairs, and mean.

    Without a window all cells of a bin have the same share.
    """
    texts, length, _ = q.shape
    rng, found = np.random.default_rng(0), {}
    for begin in range(0, length, size):
        cells = {}
        for t in range(begin, begin + size):
            keys = np.array(visible(t, begin, window, chunked=False), int)
            for key_bin in np.unique(keys // size).tolist():
                own = keys[keys // size == key_bin]
                x, y = own[np.array(np.triu_indices(len(own), 1))]
                if len(x) == 0:
                    continue
                some = rng.integers(0, len(x), 30)
                scores = (k[:, x[some]] - k[:, y[some]]) @ q[:, t].T
                c = (scores > 0).sum(axis=-1)
                value = float(np.mean(4 * c * (texts - c) / (texts * (texts - 1))))
                total, pairs = cells.get(key_bin, (0.0, 0.0))
                cells[key_bin] = total + len(x) * value, pairs + len(x)
        every = sum(pairs for _, pairs in cells.values())
        for key_bin, (total, pairs) in cells.items():
            share = 1 / len(cells) if window is None else pairs / every
            found[begin // size, key_bin] = share, total / pairs
    return found


@pytest.mark.parametrize("window", [None, 48])
def test_the_parts_of_the_drop_are_what_cells_count(tmp_path, window):
    """At a fixed distance and at fixed positions; 20 bins, four in every fifth."""
    model_type, config = (
        ("llama", {}) if window is None else ("mistral", {"sliding_window": window})
    )
    dump = tapped(tmp_path, model_type, [1], config=config, length=320, common=3.0)
    settings = ap.make_config(num_pairs_per_bin=4000, bin_size=16)
    differences, of_distances = [], []
    for layer, q_head in dump.query_heads[::3]:
        result = ap.analyze_head(layer, q_head, dump=dump, config=settings)
        q = by_text(dump, HeadId(layer, q_head, "q"))
        k = by_text(dump, HeadId(layer, result.k_head, "k"))
        cells = counted_cells(q, k, window, 16)
        first = range(1 if window is None else 0, 4)
        for name, expected in split(cells, first, range(16, 20)).items():
            differences.append(result.metrics[name] - expected)
        table = result.tables["distances"]
        for number, value in zip(table["distance_bin"], table["plasticity"], strict=True):
            own = [one for (a, b), (_, one) in cells.items() if a - b == number]
            of_distances.append(value - float(np.mean(own)))
        assert math.fsum(table["first20_share"]) == pytest.approx(1.0)
    assert np.abs(differences).mean() <= 0.01
    assert np.abs(differences).max() <= 0.03
    assert np.abs(of_distances).mean() <= 0.02


def received(q, k, window):
    """(length,) mean weight that the queries of a text give each key."""
    logits = q @ k.T / math.sqrt(q.shape[1])  # (queries, keys)
    distance = np.subtract.outer(np.arange(len(q)), np.arange(len(k)))
    logits[(distance < 0) | (distance >= (window or len(k)))] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=1, keepdims=True)).mean(axis=0))


def counted_by_attention(q, k, window, size):
    """The same with every pair of keys of a text, weighted by the product of their attention."""
    texts, length, _ = q.shape
    means = []
    for begin, text in product(range(0, length, size), range(texts)):
        attention, value, weight = received(q[text], k[text], window), 0.0, 0.0
        for t in range(begin, begin + size):
            keys = np.array(visible(t, begin, window, chunked=False), int)
            keys = keys[keys >= 4]  # not the sinks
            x, y = keys[np.array(np.triu_indices(len(keys), 1))]
            c = ((k[text][x] - k[text][y]) @ q[:, t].T > 0).sum(axis=1)
            both = attention[x] * attention[y]
            value += both @ (4 * c * (texts - c) / (texts * (texts - 1)))
            weight += both.sum()
        if weight:
            means.append(value / weight)
    return float(np.mean(means))


@pytest.mark.parametrize(("window", "size"), [(None, 12), (32, 12), (32, 48)])
def test_attended_plasticity_is_a_count_with_weights(tmp_path, window, size):
    """Large queries and keys, so that few keys get most attention."""
    model_type, config = (
        ("llama", {}) if window is None else ("mistral", {"sliding_window": window})
    )
    how = {"attention": True, "attended_keys": 85, "texts": 24, "length": 96}
    dump = tapped(tmp_path, model_type, [1], config=config, common=1.0, scale=4.0, **how)
    differences = []
    for head in (0, 3):
        q, k = (by_text(dump, HeadId(1, *of)) for of in ((head, "q"), (head // 2, "k")))
        metrics = ap.analyze_head(1, head, dump=dump, config=ap.make_config(bin_size=size)).metrics
        differences.append(metrics["ap_attended"] - counted_by_attention(q, k, window, size))
    assert np.abs(differences).max() <= 0.03


def test_few_visible_pairs_give_no_value_and_the_reason(tmp_path):
    how = {"sampler": "uniform", "base_rate": 2.0, "config": {"sliding_window": 8}}
    dump = tapped(tmp_path / "dump", "mistral", [0], **how)
    result = ap.analyze_head(0, 0, dump=dump, config=ap.make_config(bin_size=64))
    for name in COLUMNS:
        assert math.isnan(result.metrics[name])
        assert result.missing["head_metrics"][f"{name}_se"] == FEW_VISIBLE
    assert "capture more keys per window" in FEW_VISIBLE
    assert "bins" not in result.tables
