"""`full_attention_heads.tsv` of DuoAttention: which key heads need full attention.

A gate of 1 keeps full attention; a head with the gate 0 sees the first and the last tokens. Tools
that read values cut them at a quantile, after adding noise of up to 1e-6. So no two gates of heads
that may have a window are closer than that: the file decides, and never chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from attention_plasticity.export.folder import CONFIG, Content, json_file, text_file
from attention_plasticity.export.heads import entries
from attention_plasticity.export.order import UNIFORM, OrderedHeads, is_share, ordered_heads
from attention_plasticity.export.settings import ExportSettings
from attention_plasticity.roles import repeated_decide
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.arrays import Array, Bools, Ints
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.formatting import count, format_heads

COPYING = ("induction", "duplicate")
"""Roles of heads that copy. They attend little to far keys in a text without copies, and need the
whole context where it has some."""
_GATES = "full_attention_heads.tsv"
_STEP = 2e-6  # between gates; more than the noise of the tools
_EVIDENCE = (
    "Gates by aligned_plasticity alone, without the rule for heads that copy, were measured on "
    "SmolLM2-135M and Qwen2.5-Coder-0.5B (docs/findings-compression.md). Gates from other values "
    "were not measured, or were worse."
)
_BOUNDED = "1 for heads of layers with a window or chunks"


@dataclass(frozen=True)
class Copying:
    """What the table of roles says about key heads, in the order of layers and heads."""

    copies: Bools  # (n,) one of its query heads copies, or is likely to
    unknown: Bools  # (n,) only repeated tokens would tell, and the run has none

    @classmethod
    def of(cls, run: FinishedRun, shape: tuple[int, int]) -> Copying:
        """Read the roles of a run. Without them all heads are unknown."""
        copies, unknown = np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
        if run.has("roles"):
            unknown[:] = False
            roles = run.table("roles")
            columns = ("layer", "k_head", "role", "likely_role", "repeated_induction")
            for layer, head, role, likely, repeated in zip(
                *(roles[name] for name in columns), strict=True
            ):
                copies[layer, head] |= role in COPYING or likely in COPYING
                unknown[layer, head] |= repeated_decide({"repeated_induction": repeated}, [likely])
        return cls(copies.ravel(), (unknown & ~copies).ravel())


def duo(heads: OrderedHeads, settings: ExportSettings) -> Content:
    """`full_attention_heads.tsv`, one row per layer and one column per key head."""
    if heads.order == UNIFORM:
        raise ConfigError(f"--order: {UNIFORM} has no values, and --to duo needs them")
    if settings.threshold is None and settings.share is None and not is_share(heads.order):
        raise ConfigError(
            f"--order: values of {heads.order} are not from 0 to 1, as gates are; give --share or "
            "--threshold"
        )
    roles = Copying.of(heads.run, heads.shape)
    free = heads.counted & ~(roles.copies & (not settings.window_copying))  # (n,) may have a window
    second = _second_values(heads)
    if settings.threshold is not None:
        full = ~free | (heads.value >= settings.threshold)
        gate, rule = full.astype(np.float64), f"1 for values of {settings.threshold:g} or more"
    elif settings.share is not None:
        number = round(settings.share * int(heads.counted.sum()))
        gate = _largest(heads, free, second, number).astype(np.float64)
        rule = f"1 for the share {settings.share:g} of the counted heads, those that must be full "
        rule += "and then those with the largest values"
    else:
        gate = distinct_gates(_ranked(heads, free, second), heads.value, free, heads.counted)
        rule = f"the values themselves, limited to 0 to 1 and at least {_STEP:g} apart"
    rows = gate.reshape(heads.shape)  # (layers, key heads)
    text = "".join("\t".join(f"{one:.7g}" for one in row) + "\n" for row in rows)
    kept = heads.counted & ~free
    rules = {
        **heads.rules(),
        "gates": f"{rule}; {_BOUNDED}",
        "ties": "equal values are ordered by " + (second[0] if second else "nothing"),
        "copying": {
            "rule": f"role or likely role {' or '.join(COPYING)} of a query head: "
            + ("no exception" if settings.window_copying else "full attention"),
            "heads": heads.pairs(roles.copies),
        },
        "full_attention_heads": int(np.count_nonzero(gate == 1.0)),
    }

    def show(folder: Path, console: Console) -> None:
        for line in _about(heads, gate, kept, roles):
            console.print(Text(line))

    config = {"sink_size": settings.sink_size, "recent_size": settings.recent_size}
    files = {_GATES: text_file(text), CONFIG: json_file(config)}
    table = heads.table(gate=gate, copies=roles.copies.astype(np.int64))
    return Content(files, entries(table.to_dict("records")), rules, _EVIDENCE, show)


def distinct_gates(ranked: Ints, value: Array, free: Bools, counted: Bools) -> Array:
    """(n,) gates in (0, 1], no two of them closer than a step, except those of bounded layers.

    `ranked` are the counted heads from the last to the first; those that must be full come last,
    next to 1. A gate differs from its value by at most a step per head.
    """
    gate = np.ones(len(value))
    found = np.where(free, np.clip(value, 0.0, 1.0), 1.0)[ranked]  # ascending
    for place in range(1, len(found)):
        found[place] = max(found[place], found[place - 1] + _STEP)
    limit = 1.0 if counted.all() else 1.0 - _STEP
    for place in reversed(range(len(found))):
        found[place] = limit = min(found[place], limit)
        limit -= _STEP
    gate[ranked] = found
    return gate


def _ranked(heads: OrderedHeads, free: Bools, second: tuple[str, Array] | None) -> Ints:
    """(counted,) counted heads from the last to the first. Refuses heads without an order."""
    keys = _keys(heads, free, second)
    counted = np.flatnonzero(heads.counted)
    order: Ints = counted[np.lexsort(keys[:, counted])]
    below, above = order[:-1], order[1:]
    same = (keys[:, below] == keys[:, above]).all(axis=0)  # (counted - 1,)
    if same.any():
        raise _equal(heads, sorted({*below[same].tolist(), *above[same].tolist()}), second)
    return order


def _largest(
    heads: OrderedHeads, free: Bools, second: tuple[str, Array] | None, number: int
) -> Bools:
    """(n,) the heads that must be full, and the first others up to `number` counted heads."""
    must = int((heads.counted & ~free).sum())
    total = int(heads.counted.sum())
    if must > number:
        raise ConfigError(
            f"--share: {number:,} of {total:,} key heads, but {must:,} copy and keep full "
            f"attention: {format_heads(heads.pairs(heads.counted & ~free))}. Give --share "
            f"{np.ceil(100 * must / total) / 100:g} or more, or --window_copying"
        )
    keys = _keys(heads, free, second)
    counted = np.flatnonzero(heads.counted)
    order = counted[np.lexsort(keys[:, counted])][::-1]  # the first heads come first
    full = ~heads.counted
    full[order[:number]] = True
    if 0 < number < total:
        last = keys[:, order[number - 1]]
        tied = counted[(keys[:, counted] == last[:, None]).all(axis=0)]
        if not full[tied].all():
            raise _equal(heads, tied.tolist(), second)
    return full


def _keys(heads: OrderedHeads, free: Bools, second: tuple[str, Array] | None) -> Array:
    """(3, n) what heads are ordered by; the last row comes first."""
    other = np.zeros(len(heads.value)) if second is None else second[1]
    return np.stack([other, heads.value, ~free]).astype(np.float64)


def _second_values(heads: OrderedHeads) -> tuple[str, Array] | None:
    """What orders heads with equal values: RoPE-aligned plasticity, or far attention for it.

    None if all values differ, or if the run does not have the second values.
    """
    own = heads.value[heads.counted]
    if len(np.unique(own)) == len(own):
        return None
    name = "far_mass" if heads.order == "aligned_plasticity" else "aligned_plasticity"
    try:
        return name, ordered_heads(heads.run, name).value
    except ToolkitError:
        return None


def _equal(heads: OrderedHeads, places: list[int], second: tuple[str, Array] | None) -> ConfigError:
    tied = np.isin(np.arange(len(heads.value)), places)
    also = "" if second is None else f" and of {second[0]}"
    return ConfigError(
        f"{heads.run.place}: the key heads {format_heads(heads.pairs(tied))} have equal values "
        f"of {heads.order}{also}, so that chance would decide which of them have a window. Choose "
        "another --order, --share or --threshold"
    )


def _about(heads: OrderedHeads, gate: Array, kept: Bools, roles: Copying) -> list[str]:
    """Which heads have a window, and which of them it may hurt."""
    binary = bool(np.isin(gate, (0.0, 1.0)).all())
    window = gate == 0.0 if binary else heads.counted & ~kept  # (n,) has a window, or may have
    lines = [f"{heads.run.model_name}: order {heads.order}"]
    if binary:
        lines[0] += f"; {int((~window).sum()):,} of {count(len(gate), 'key head')} keep everything"
    else:
        most = np.floor(100 * window.mean()) / 100
        lines[0] += f"; a tool may give a window to at most {most:g} of the heads"
    if kept.any():
        lines.append(f"full attention, because they copy: {format_heads(heads.pairs(kept))}")
    if (hurt := window & roles.copies).any():
        lines.append(
            f"a window may hurt these heads, which copy: {format_heads(heads.pairs(hurt))}"
        )
    if (hurt := window & roles.unknown).any():
        why = "the run has no dump of repeated tokens" if heads.run.has("roles") else "no roles"
        lines.append(
            f"whether these heads copy is not known ({why}), and a window may hurt them: "
            f"{format_heads(heads.pairs(hurt))}. `study` captures repeated tokens"
        )
    return lines
