"""Means of attention and attended plasticity of one head, from the formulas of docs/method.md.

Slow and plain on purpose. As in `reference.py`, the package chooses which key rows form a pair; the
attention of the keys, the sizes of the pools and the plasticity of the pairs are computed here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head import attended
from attention_plasticity.head.aligned import BinnedHead, binned_head
from attention_plasticity.head.key_pool import AttendedHead, attended_keys
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head.token_weights import token_weights
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.numeric.attended_pairs import AttendedDraw, AttendedKeys
from qk_dump.layout import HeadId
from qk_dump.source import open_dump
from reference_errors import GROUPS, Estimate, Pair, Queries, Row, errors, factor, influence_row

MEANS = ("attn_entropy", "attn_sink_mass", "attn_distant_mass", "attn_max_logit", "attn_far_mass")
ATTENDED = ("ap_attended", "ap_attended_se", "ap_attended_bias", "ap_attended_counted")
ATTENDED += (
    "ap_attended_corrected",
    "ap_attended_counted_se",
    "ap_attended_ess",
    "n_later_queries",
)
AT_ONE_POSITION = [
    f"ap_attended_aligned{end}" for end in ("", "_se", "_bias", "_corrected", "_counted")
]
AT_ONE_POSITION += ["ap_attended_aligned_counted_se"]
UNKNOWN = {name: math.nan for mean in MEANS for name in (mean, f"{mean}_se")}
UNKNOWN |= dict.fromkeys((*ATTENDED, *AT_ONE_POSITION), math.nan)


class Head(NamedTuple):
    """What the attended pairs of a head are computed from."""

    root: Path
    ids: tuple[int, int, int]  # layer, query head, key head
    q: Any  # Rows of reference.py
    k: Any
    X_k: np.ndarray  # rotated keys
    queries: Queries
    eligible: dict[int, list[int]]  # key buckets of every query bucket
    window: int | None


class AttentionTables(NamedTuple):
    metrics: Row
    influences: list[Row]
    buckets: list[Row]


def attention_tables(head: Head, config: RunnerConfig, seed: int) -> AttentionTables:
    """Columns of the table of heads, rows of the tables of influences and of attention."""
    columns = head.q.attention
    if columns is None:
        return AttentionTables(UNKNOWN, [], [])
    known = [i for i, value in enumerate(columns["lse"]) if value is not None]
    masses = [columns["mass_by_distance"][i] for i in known]
    first = config.distant_from.bit_length()
    distant = [sum(mass[first:]) for mass in masses]
    far = []
    for i, mass in zip(known, distant, strict=True):
        tokens = head.q.position[i] - config.distant_from + 1  # at distances from distant_from on
        far.append(max(mass - columns["sink_mass"][i], 0.0) if tokens > 4 else 0.0)
    if first >= len(masses[0]) and any(mass[-1] > 0 for mass in masses):
        distant = far = [math.nan] * len(known)
    values = {
        name: [columns[name][i] for i in known] for name in ("entropy", "sink_mass", "max_logit")
    }
    group = [int(head.q.example_id[i]) % 16 for i in known]
    weight = [tokens_of(head.root, float(head.q.position[i]), "q") for i in known]
    by_name = (values["entropy"], values["sink_mass"], distant, values["max_logit"], far)
    estimates = {
        name: mean(list_, weight, group, 4) for name, list_ in zip(MEANS, by_name, strict=True)
    }
    metrics = dict(UNKNOWN)
    for name, estimate in estimates.items():
        metrics |= {name: estimate.value, f"{name}_se": estimate.error}
    attended = attended_plasticity(head, config, seed)
    metrics |= attended.metrics
    rows = [influence_row(name, math.nan, estimate) for name, estimate in estimates.items()]
    buckets = bucket_rows(head.q, known, weight, values)
    return AttentionTables(metrics, rows + attended.influences, buckets)


def tokens_of(root: Path, position: float, kind: str) -> float:
    """Tokens that a row stands for: 1 / the probability that it was captured."""
    file = root / "dump.json"
    manifest = json.loads(file.read_text()) if file.exists() else {}
    sampler = manifest.get("sampler")
    if sampler is None or sampler["type"] == "all":
        return 1.0
    rate = sampler["base_rate"] if kind == "q" else sampler.get("key_base_rate")
    rate = sampler["base_rate"] if rate is None else rate
    size = manifest["min_bucket_size"]
    if sampler["type"] == "log_uniform":
        size = 2 ** max(math.ceil(math.log2(size)), math.floor(math.log2(position + 1)))
    return float(max(1.0, size / rate))


def mean(values: list[float], weight: list[float], group: list[int], fewest: int) -> Estimate:
    """Mean over tokens, with the influence of every group."""
    total = math.fsum(weight)
    value = math.fsum(w * v for w, v in zip(weight, values, strict=True)) / total
    groups = len(set(group))
    shares = []
    for g in range(GROUPS):
        rows = zip(values, weight, group, strict=True)
        own = [w * (v - value) for v, w, one in rows if one == g]
        shares.append(factor(groups) * math.fsum(own) / total)
    return Estimate(value, 0.0, shares if groups >= fewest else [math.nan] * GROUPS, groups)


def bucket_rows(
    q: Any, known: list[int], weight: list[float], values: dict[str, list[float]]
) -> list[Row]:
    """A row per query bucket with at least one query of known attention."""
    rows = []
    masses = [list(q.attention["mass_by_distance"][i]) for i in known]
    open_end = any(len(mass) < 24 and mass[-1] > 0 for mass in masses)
    for bucket in sorted({int(q.bucket[i]) for i in known}):
        inside = [n for n, i in enumerate(known) if q.bucket[i] == bucket]
        group = [int(q.example_id[known[n]]) % 16 for n in inside]
        row: Row = {
            "q_bucket": bucket,
            "q_position": float(np.mean([q.position[known[n]] for n in inside])),
            "n_queries": len(inside),
            "n_groups": len(set(group)),
            "n_tokens": math.fsum(weight[n] for n in inside),
        }
        columns = dict(values)
        for number in range(24):
            first = 0 if number == 0 else 2 ** (number - 1)
            columns[f"mass_{first}"] = [bin_of(mass, number, open_end) for mass in masses]
        for name, list_ in columns.items():
            estimate = mean([list_[n] for n in inside], [weight[n] for n in inside], group, 3)
            row |= {name: estimate.value, f"{name}_se": estimate.error}
        rows.append(row)
    return rows


def bin_of(masses: list[float], number: int, open_end: bool) -> float:
    """The mass of a bin; `open_end`: the last bin of the dump also holds larger distances."""
    if open_end and number >= len(masses) - 1:
        return math.nan
    if number == 23:
        return sum(masses[23:])
    return masses[number] if number < len(masses) else 0.0


def layer_facts(root: Path, layer: int) -> Row:
    """What dump.json has about a layer."""
    if not (root / "dump.json").exists():
        return {}
    manifest = json.loads((root / "dump.json").read_text())
    return next((e for e in manifest.get("layers", []) if e["layer"] == layer), {})


def received(head: Head) -> tuple[list[float], list[int]]:
    """Attention that every key receives from later queries of its text, and their number."""
    facts = layer_facts(head.root, head.ids[0])
    scale = facts.get("scale", 1 / math.sqrt(head.X_k.shape[1]))
    softcap, chunked = facts.get("softcap"), facts.get("type") == "chunked_attention"
    attention, numbers = [], []
    for key, at, text in zip(head.k.vectors, head.k.position, head.k.example_id, strict=True):
        total, number = 0.0, 0
        for i, p in enumerate(head.q.position):
            lse = head.q.attention["lse"][i]
            if lse is None or head.q.example_id[i] != text or p <= at:
                continue
            if head.window is not None:
                inside = p // head.window == at // head.window if chunked else p - at < head.window
                if not inside:
                    continue
            logit = scale * float(head.q.vectors[i] @ key)
            if softcap is not None:
                logit = softcap * math.tanh(logit / softcap)
            total += math.exp(logit - lse)
            number += 1
        attention.append(total)
        numbers.append(number)
    return attention, numbers


def pair_probabilities(
    weight: list[float], text: Any, inside: list[int], text_weight: dict[int, float]
) -> dict[tuple[int, int], float]:
    """Probability of every pair of the keys `inside`, by enumeration."""
    by_text: dict[int, list[int]] = {}
    for key in inside:
        if weight[key] > 0 and text_weight.get(int(text[key]), 0.0) > 0:
            by_text.setdefault(int(text[key]), []).append(key)
    pairs = {one: [(a, b) for a in keys for b in keys if a < b] for one, keys in by_text.items()}
    total = sum(text_weight[one] for one, found in pairs.items() if found)
    chances = {}
    for one, found in pairs.items():
        products = math.fsum(weight[a] * weight[b] for a, b in found)
        for a, b in found:
            chances[a, b] = text_weight[one] / total * weight[a] * weight[b] / products
    return chances


def attended_plasticity(head: Head, config: RunnerConfig, seed: int) -> AttentionTables:
    """The columns of attended plasticity in bins, for the pairs that the package draws.

    All pairs of a bin of queries form one cell. The dump has no rotary records.
    """
    if head.window is not None:
        return through_a_window(head, config)
    attention, numbers = received(head)
    attention = [
        0.0 if at < 4 else value for at, value in zip(head.k.position, attention, strict=True)
    ]
    size, draw = package_draw(head, config, seed)
    queries, key_bin = in_bins(head, size), np.floor(head.k.position / size).astype(int)
    bins, owners = sorted(set(queries.bucket.tolist())), sorted(set(key_bin.tolist()))
    bins = [j for j in bins if j > 0 and (queries.bucket == j).sum() >= 2]
    used, ess, later = {}, {}, {}
    for j in bins:
        drawn = draw.draw(np.array(owners) < j)
        used[j] = []
        for rank, (a, b) in enumerate(zip(drawn.first, drawn.second, strict=True)):
            assert a != b
            assert head.k.example_id[a] == head.k.example_id[b]
            assert max(key_bin[a], key_bin[b]) < j
            group = int(head.k.example_id[a]) % 16
            w = head.k.vectors[a].astype(float) - head.k.vectors[b]
            used[j].append(Pair(w, 0, group, rank))
        inside = [i for i, number in enumerate(key_bin) if number < j]
        texts, counts = np.unique(head.q.example_id[queries.bucket == j], return_counts=True)
        by_text = dict(zip(texts.tolist(), counts.tolist(), strict=True))
        chances = pair_probabilities(attention, head.k.example_id, inside, by_text)
        if chances:
            ess[j] = 1 / math.fsum(chance**2 for chance in chances.values())
            later[j] = math.fsum(p * (numbers[a] + numbers[b]) / 2 for (a, b), p in chances.items())
    found = errors(queries, used, {j: [0] for j in bins}, lambda j: 0)
    count = {j: int((queries.bucket == j).sum()) for j in ess}
    total = sum(count.values())
    by_name = {row["quantity"]: row for row in found.influences if row["quantity"] != "ap_bucket"}
    metrics = {
        "ap_attended": by_name["ap_overall"]["value"],
        "ap_attended_se": found.metrics["ap_overall_se"],
        "ap_attended_bias": found.metrics["ap_overall_bias"],
        "ap_attended_corrected": by_name["ap_overall"]["value"] - found.metrics["ap_overall_bias"],
        "ap_attended_counted": found.metrics["ap_counted"],
        "ap_attended_counted_se": found.metrics["ap_counted_se"],
        "ap_attended_ess": sum(count[j] * ess[j] for j in ess) / total if total else math.nan,
        "n_later_queries": sum(count[j] * later[j] for j in later) / total if total else math.nan,
    }
    rows = [
        {**by_name[old], "quantity": new}
        for old, new in (("ap_overall", "ap_attended"), ("ap_counted", "ap_attended_counted"))
    ]
    return AttentionTables(metrics, rows, [])


def through_a_window(head: Head, config: RunnerConfig) -> AttentionTables:
    """The values of the package: a count of all pairs checks them (test_attended.py)."""
    layer, q_head, k_head = head.ids
    result = analyze_head(layer, q_head, k_head, open_dump(head.root), config)
    rows = [
        {name: values[i] for name, values in result.influences.items()}
        for i, quantity in enumerate(result.influences["quantity"])
        if quantity in ("ap_attended", "ap_attended_counted")
    ]
    return AttentionTables({name: result.metrics[name] for name in ATTENDED}, rows, [])


def in_bins(head: Head, size: int) -> Queries:
    """The queries as captured, in bins of `size` tokens, with one Gaussian per bin."""
    vectors = head.q.vectors.astype(float)

    def gaussian(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return vectors[rows].mean(axis=0), np.cov(vectors[rows].T)

    bins = np.floor(head.q.position / size).astype(int)
    return head.queries._replace(
        model="full", vectors=vectors, bucket=bins, slope=0.0, gaussian=gaussian
    )


def package_draw(head: Head, config: RunnerConfig, seed: int) -> tuple[int, AttendedDraw]:
    """The size of the bins, and the package's draw of attended pairs."""
    layer, q_head, k_head = head.ids
    dump = open_dump(head.root)
    keys = KeyHead.read(dump, layer, k_head, config)
    rows, exponent = read_queries(dump, HeadId(layer, q_head, "q"), keys, config)
    own = attended_keys(rows, q_head, keys, None, head.window, exponent, single_example=False)
    assert isinstance(own, AttendedHead)
    binned = binned_head(
        rows,
        token_weights(dump, "q", rows),
        keys,
        head.window,
        config,
    )
    assert isinstance(binned, BinnedHead)
    attended_in = AttendedKeys(keys.bin_index, own.attention)
    rng = np.random.default_rng([seed, 1])
    draw = AttendedDraw(attended_in, binned.text_weights(keys), attended.PAIRS, False, rng)
    return binned.bins.size, draw
