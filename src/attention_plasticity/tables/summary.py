"""What is printed about a finished run: one screen, from its tables and run.json alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.metrics import ALIGNED_DROP, ATTENDED, HEAD, METRICS, PHASE, POOLED
from attention_plasticity.roles import NAMES, NO_ERRORS, REPEATED_DECIDE, UNSURE
from attention_plasticity.tables.baselines import baseline_lines
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.head_roles import why_unsure
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    head_column,
    head_half_width,
    mean_half_width,
    mean_over_heads,
    p_values,
    rank_intervals,
    rank_words,
)
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    FIFTH_WORDS,
    OVER_BINS,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from attention_plasticity.tables.names import PAIR_WORDS
from qk_toolkit.formatting import count, format_heads, index_ranges
from qk_toolkit.terminal import command_console, print_line

Line = tuple[str, str]
"""A label, which may be empty, and a text."""
NOTES = (
    *("texts_unknown", "selective_layers", "attended_unknown", "aligned_unknown"),
    *("weights_unknown", "unknown_tokens", "original_left_out"),
)
"""Kinds of warnings about results that may still be correct."""
_OTHER_PAIRS = PAIR_WORDS.keys() - {"bucket"}  # than the default
_SINKS = "attn_sink_mass"
_EXTREMES = 3
_MOST_NAMES = 4
_FAR = "attn_far_mass"
_NOT_MEASURABLE = (ALIGNED_DROP, _FAR)


def print_summary(
    run: FinishedRun, console: Console | None = None, *, with_next: bool = True
) -> None:
    """Print mean plasticity, its drop, extreme heads, warnings, failures and where the files are.

    `with_next`: also the commands for the figures and the page.
    """
    console = console or command_console()
    analysed = run.info.get("tables") != {}
    console.print()
    if analysed:
        shown = _shown(run)
        _print_level(run, shown, console)
        _print(_drop(run, shown), console)
        _print(_types(run, shown), console)
        _print_extremes(run, shown, console)
        _print([*_position(run), *_attention(run), *_roles(run)], console)
    for record in run.info.get("warnings") or []:
        label = "Note" if record.get("kind") in NOTES else "Warning"
        console.print(Text.assemble((f"{label:<13}", "bold yellow"), record["text"]))
    _print([*_missing(run), *_left_out(run)], console)
    _print_failures(run, console)
    if analysed:
        _print(_advice(run, _shown(run)), console)
    _print(_files(run, with_next=with_next and analysed), console)


def _shown(run: FinishedRun) -> PlasticityColumns:
    """The plasticity that is printed first."""
    shown = main_plasticity(run)
    return OVER_BINS if shown is OVER_BUCKETS and not run.has_original else shown


def _print(lines: Sequence[Line] | Iterator[Line], console: Console) -> None:
    for label, text in lines:
        print_line(console, label, text)


def _print_level(run: FinishedRun, shown: PlasticityColumns, console: Console) -> None:
    """Mean plasticity, of what, and what the numbers mean."""
    level = mean_over_heads(run, shown.level)
    number = run.texts.get("count")
    texts = f", {count(number, 'text')}" if number else ""
    longest = "" if math.isnan(run.context) else f" of up to {run.context:,.0f} tokens"
    console.print(Text.assemble((f"{shown.title} ", "bold"), (_estimate(level), "bold green")))
    console.print(f"mean over {level.over} of {run.model_name}{texts}{longest if texts else ''}")
    console.print("1: the query decides which of two keys wins; 0: the order of keys is fixed")
    if not math.isnan(level.standard_error):
        over = "texts" if level.eligible is None else "texts and the choice of heads"
        console.print(f"±: half of the 95 % interval over {over}")
    if shown is AT_ONE_POSITION:
        size = f" of {run.info['bin_size']:,} tokens" if run.info.get("bin_size") else ""
        pooled, phase = (_mean(run, name, level.heads) or "–" for name in (POOLED, PHASE))
        text = f"over a bin{size} {pooled}: {phase} is rotary phase"
        if run.has_original:
            text += f"; over a bucket {_mean(run, OVER_BUCKETS.level, level.heads) or '–'}"
        console.print(text)
    if run.pair_sampling in _OTHER_PAIRS:
        console.print(f"key pairs: {PAIR_WORDS[run.pair_sampling]}")
    for line in baseline_lines(run, shown):
        console.print(line, markup=False)


def _drop(run: FinishedRun, shown: PlasticityColumns) -> Iterator[Line]:
    """Plasticity in the first and the last fifth, and the drop between them."""
    if shown.drop is None:
        return
    if not (drop := mean_over_heads(run, shown.drop)).heads:
        if reason := _why_unknown(run, shown.drop):
            yield "Drop", f"not measurable: {reason}"
        return
    ends = zip(FIFTH_WORDS, shown.fifths, strict=True)
    told = ", ".join(f"{words} {_mean(run, name, drop.heads)}" for words, name in ends)
    yield "Drop", f"{_estimate(drop)} over the context: {told}"
    at_equal, of_distance = (_mean(run, name, drop.heads) for name in shown.parts)
    if at_equal is not None and of_distance is not None:
        yield "", f"from position {at_equal}: queries at equal distances from their keys"
        yield "", f"from distance {of_distance}: the last fifth has farther keys"
        yield from _significant(run, shown.parts[0])


def _significant(run: FinishedRun, drop: str) -> Iterator[Line]:
    """In how many heads the drop from position differs from 0."""
    p = p_values(run.head_metrics, drop, run.influences)  # (heads,)
    tested = int(np.count_nonzero(~np.isnan(p)))
    if not tested:
        return
    values = run.head_metrics[drop].to_numpy(np.float64)[benjamini_hochberg(p)]
    heads = f"{len(values):,} of {count(tested, 'head')} (false discovery rate 5 %)"
    signs = f"{np.sum(values > 0):,} positive, {np.sum(values < 0):,} negative"
    yield "", f"that from position differs from 0 in {heads}: {signs}"


def _types(run: FinishedRun, shown: PlasticityColumns) -> Iterator[Line]:
    """Separate means of full attention, sliding windows and so on, if there are several types."""
    types = layers_by_type(run.layer_types)
    for number, layer_type in enumerate(types if len(types) > 1 else ()):
        part = run.select(layer_type=layer_type)
        level = mean_over_heads(part, shown.level)
        fall = None if shown.drop is None else _mean(part, shown.parts[0], level.heads)
        drop = "" if fall is None else f", drop from position {fall}"
        text = f"{type_words(layer_type)} {_estimate(level)}{drop}; {level.over}"
        yield "" if number else "By type", text


def _print_extremes(run: FinishedRun, shown: PlasticityColumns, console: Console) -> None:
    """The heads with the largest and the smallest plasticity.

    A plastic head need not be important: it can put all its attention on sinks, or compare the keys
    that it attends to in a fixed order.
    """
    heads = run.head_metrics
    columns = {shown.level: "plasticity", ATTENDED: "attended", _SINKS: "on sinks"}
    columns = {n: words for n, words in columns.items() if n in heads and heads[n].notna().any()}
    ranked = heads[shown.level].dropna().sort_values(ascending=False, kind="stable").index.tolist()
    few = len(ranked) <= 2 * _EXTREMES
    chosen = ranked if few else ranked[:_EXTREMES] + ranked[-_EXTREMES:]
    if not chosen:
        return
    words = {0: "most plastic", (len(chosen) if few else _EXTREMES): "least plastic"}
    values = {name: heads[name].to_numpy(np.float64) for name in columns}
    halves = {name: head_half_width(heads, name, run.influences) for name in columns}
    if _SINKS in halves:
        halves[_SINKS] = np.full(len(heads), np.nan)
    ranks = _ranks(run, shown)
    table = Table(box=None, pad_edge=False)
    table.add_column("heads")
    for name in ("layer", "head", *(["rank"] if ranks else []), *columns.values()):
        table.add_column(name, justify="right")
    places = heads[HEAD].to_numpy(np.int64)  # (heads, 2)
    for place, row in enumerate(chosen):
        ids = places[row].tolist()
        shown_values = [METRICS[n].show_half(values[n][row], halves[n][row]) for n in columns]
        rank = [ranks[ids[0], ids[1]]] if ranks else []
        table.add_row(words.get(place, ""), *map(str, ids), *rank, *shown_values)
    console.print()
    console.print(table)


def _ranks(run: FinishedRun, shown: PlasticityColumns) -> dict[tuple[int, int], str]:
    """The 95 % interval of the rank of every head, such as `1–6`; empty if no error is known."""
    column = head_column(run.head_metrics, run.influences, shown.level, None)
    if not np.isfinite(column.errors).any():
        return {}
    return dict(zip(column.heads, map(rank_words, rank_intervals(column)), strict=True))


def _position(run: FinishedRun) -> Iterator[Line]:
    """Share of position in the queries, as captured and before RoPE."""
    parts = []
    if run.has_original and "q_R2_total" in run.head_metrics:
        captured = METRICS["q_R2_total"].show(float(run.head_metrics["q_R2_total"].mean()))
        parts.append(f"{captured} of the variance of the queries as captured")
    before = _mean(run, "q_R2_unrotated", len(run.head_metrics))
    if before is not None:
        parts.append(
            f"{before} before RoPE"
            if parts
            else f"{before} of the variance of the queries before RoPE"
        )
    if parts:
        yield "Position", f"explains {', '.join(parts)}"


def _attention(run: FinishedRun) -> Iterator[Line]:
    """Where the attention goes, and plasticity of keys that receive attention."""
    heads = len(run.head_metrics)
    distance = run.settings.get("distant_from")
    away = f" ({distance:,}+ tokens)" if isinstance(distance, int) else ""
    words = (
        (_SINKS, "sinks ", ""),
        (_FAR, "far ", away),
        (ATTENDED, "attended plasticity ", ""),
    )
    parts = []
    for name, before, after in words:
        if (text := _mean(run, name, heads)) is not None:
            parts.append(f"{before}{text}{after}")
        elif name == _FAR and (reason := _why_unknown(run, name)):
            parts.append(f"{before}not measurable{after}: {reason}")
    if parts:
        yield "Attention", ", ".join(parts)


def _roles(run: FinishedRun) -> Iterator[Line]:
    """How many heads have each role, and what decides those that are unsure."""
    if not run.has("roles"):
        return
    table = run.table("roles")
    numbers = table["role"].value_counts()
    text = ", ".join(f"{name} {numbers[name]}" for name in (*NAMES, UNSURE) if name in numbers)
    reasons = why_unsure(table)
    if few := int((reasons == NO_ERRORS).sum()):
        text += f"; the texts are too few to be sure about {few} of them"
    if undecided := int((reasons == REPEATED_DECIDE).sum()):
        text += f"; a dump of repeated tokens (analyze --repeated) decides {undecided} of them"
    yield "Roles", text


def _missing(run: FinishedRun) -> Iterator[Line]:
    """Values of heads that are missing, with the reason, unless a warning explains them."""
    warnings = run.info.get("warnings") or []
    told = {reason for record in warnings for reason in record.get("reasons") or []}
    no_errors = any(record.get("kind") == "no_errors" for record in warnings)
    by_reason: dict[str, list[str]] = {}
    lines = {name for name in _NOT_MEASURABLE if _why_unknown(run, name)}  # have a line already
    for record in run.info.get("missing") or []:
        if lines.intersection(record["columns"]):
            continue
        if record["table"] == "head_metrics" and record["reason"] not in told:
            names = _main_columns(record, no_errors=no_errors)
            heads = count(record["heads"], "head")
            by_reason.setdefault(record["reason"], []).extend(f"{name} ({heads})" for name in names)
    for reason, names in by_reason.items():
        more = len(names) - _MOST_NAMES
        named = names[:_MOST_NAMES] + ([f"{more:,} more"] if more > 0 else [])
        if named:
            yield "Missing", f"{', '.join(named)}: {reason}."


def _main_columns(record: Mapping[str, Any], *, no_errors: bool) -> list[str]:
    """The columns of a record without errors of columns that are missing too, or without all."""
    errors = {name: METRICS[name].error_of for name in record["columns"] if name in METRICS}
    return [
        name
        for name in record["columns"]
        if errors.get(name) is None or not (no_errors or errors[name] in record["columns"])
    ]


def _why_unknown(run: FinishedRun, column: str) -> str | None:
    """Why no head has a value of a column, if there is one reason."""
    records = [
        record
        for record in run.info.get("missing") or []
        if record["table"] == "head_metrics" and column in record["columns"]
    ]
    if len(records) != 1 or records[0]["heads"] != len(run.head_metrics):
        return None
    return str(records[0]["reason"])


def _left_out(run: FinishedRun) -> Iterator[Line]:
    """Heads that are not in the dump, and heads that no command has analysed yet."""
    words = {"not_captured": "Not captured", "not_analysed": "Not analysed"}
    for name, label in words.items():
        heads = [(layer, q_head) for layer, q_head in run.info.get(name) or []]
        if heads:
            yet = " yet" if name == "not_analysed" else ""
            yield label, f"{count(len(heads), 'query head')}{yet}: {format_heads(heads)}"


def _print_failures(run: FinishedRun, console: Console) -> None:
    failures = run.info.get("failures") or []
    if not failures:
        return
    total = len(failures) + int((run.info.get("heads") or {}).get("analysed", 0))
    console.print(Text(f"{len(failures)} of {count(total, 'head')} failed", "bold red"))
    by_reason: dict[tuple[int, str], list[int]] = {}
    for failure in failures:
        by_reason.setdefault((failure["layer"], failure["reason"]), []).append(failure["q_head"])
    for (layer, reason), heads in by_reason.items():
        console.print(Text(f"  layer {layer}, heads {index_ranges(heads)}: {reason}"))


def _advice(run: FinishedRun, shown: PlasticityColumns) -> Iterator[Line]:
    name = f"{shown.level}_se"
    errors = run.head_metrics[name].tolist() if name in run.head_metrics else []
    text = advice(errors, run.texts.get("count") or 0)
    if text is not None:
        yield "Advice", text


def advice(errors: Sequence[float], texts: int) -> str | None:
    """How many texts, or keys per text, give half of the standard error of a head.

    `errors` are the standard errors of RoPE-aligned plasticity of the heads. None if no error
    is known. Measured on the embedded sample, root mean square over 27 heads and five draws: a
    quarter of the keys of every text gives 1.9 times the error, half of the texts 1.4 times
    (√2 is 1.4), and a third of the texts 1.6 times (√3 is 1.7).
    """
    known = [error for error in errors if not math.isnan(error)]
    if not known or not texts:
        return None
    return (
        f"standard error of a head about {median(known):#.2g} with {texts:,} texts; half of it "
        f"needs about {4 * texts:,} texts, or four times the keys per text"
    )


def _files(run: FinishedRun, *, with_next: bool) -> Iterator[Line]:
    tables = run.info.get("tables")
    number = "" if not tables else f", {count(len(tables), 'table')}"
    yield "Files", f"{run.place} (run.json{number})"
    if with_next:
        place = shlex.quote(run.place)
        yield "Next", f"attention-plasticity report {place}"
        yield "", f"attention-plasticity plot all {place}"


def _mean(run: FinishedRun, name: str, heads: int) -> str | None:
    """A mean over heads, with its number of heads if this is not `heads`; None if unknown."""
    mean = mean_over_heads(run, name) if name in run.head_metrics else None
    if mean is None or not mean.heads:
        return None
    return _estimate(mean) + ("" if mean.heads == heads else f" ({count(mean.heads, 'head')})")


def _estimate(mean: MeanEstimate) -> str:
    return METRICS["ap_overall"].show_half(mean.value, mean_half_width(mean))
