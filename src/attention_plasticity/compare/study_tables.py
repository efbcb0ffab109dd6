"""The tables of several runs: what a study writes, and what a comparison prints.

A table is a frame with all numbers, and what a reader sees of it. All numbers come from
`SeveralRuns`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from attention_plasticity.compare.groups import layer_kinds, rope_kinds
from attention_plasticity.compare.matched import changed_counts
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.compare.several import SeveralRuns
from attention_plasticity.compare.writers import UNKNOWN, Table, summary_table, table_files
from attention_plasticity.metrics import (
    ALIGNED,
    ATTENDED,
    DROP_DISTANCE,
    DROP_POSITION,
    KEY_HEADS,
    METRICS,
    PHASE,
)
from attention_plasticity.roles import NAMES, UNSURE
from attention_plasticity.tables.names import clean

NAMES_OF_TABLES = (
    *("models", "means", "differences", "layer_types", "lengths", "depth"),
    *("band_shares", "role_shares", "role_scores", "key_heads", "baselines", "matched_heads"),
)
_SHOWN = (
    *(ALIGNED, DROP_POSITION, DROP_DISTANCE, PHASE, ATTENDED),
    *("attn_sink_mass", "attn_far_mass", "attn_entropy"),
)
"""The metrics of the table of means for readers, if a model has them. The CSV file has all."""
_MORE = "The CSV file has more metrics."
_PAIRED = "Models on the same texts are compared text by text; others are independent samples."
_SAME_HEADS = "Differences are those of the same heads."
_POSSIBLE = (
    "Heads that likely have the role (heads that surely have it – heads that can have it if each "
    "score is somewhere in its 95 % interval). Unsure: heads with several possible roles; they "
    "are counted at their likely role too. Without scores on repeated tokens a far, sink or mixed "
    "head can also be an induction head."
)
_BASELINES = (
    "The interval of random weights has the error between draws, if there are several. Shuffled "
    "tokens have another order of the same texts: a drop from position that does not differ from "
    "theirs is not shown to come from content."
)
_CHANGED = (
    "Changed: Student's t over groups of texts, corrected for the number of heads, at a false "
    "discovery rate of 5 %."
)


_OF_MODELS = (
    *("model", "family", "size", "checkpoint", "phase", "source", "name", "revision"),
    *("layers", "query_heads", "key_heads", "head_dim", "heads_analysed", "heads_failed"),
    *("texts", "context", "precision", "sampler", "bucket_size", "bin_size"),
    *("pair_sampling", "pairs_per_bucket", "pairs_per_bin", "query_model", "seed"),
)
_SHOWN_OF_MODELS = {
    "family": "family",
    "size": "size",
    "checkpoint": "checkpoint",
    "phase": "phase",
    "layers": "layers",
    "query_heads": "query heads",
    "key_heads": "key heads",
    "heads_analysed": "analysed",
    "texts": "texts",
    "context": "context",
}
_OF_HEADS = (
    "Heads are per layer; analysed: all heads with results. Context: tokens of the longest text."
)
_KINDS = (
    ("layer_type", layer_kinds, "Means over heads by types of layers"),
    ("rope", rope_kinds, "Means over heads of layers with RoPE and without"),
)
_LENGTHS = (("length", "length of the context"), ("fifth", "fifths of the context"))
_BANDS = (
    "Share of the variance of the logit by eighths of the rotary bands, from the fastest (1) to "
    "the slowest (8)"
)
_SHORTENED = 1e6  # checkpoints from this number on are shortened
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True)
class NamedTable:
    """A table: its numbers, and what readers see."""

    name: str  # of its files
    caption: str
    frame: pd.DataFrame
    shown: tuple[Table, ...] = ()

    @cached_property
    def files(self) -> dict[str, str]:
        """The content of its files by their names."""
        return table_files(self.name, self.frame, self.shown)


def tables_of(data: SeveralRuns) -> Iterator[NamedTable]:
    """All tables that have a row, of at least one run."""
    for make in (_models, _means, _divided, _roles, _key_heads, _baselines, _matched):
        yield from (table for table in make(data) if len(table.frame))


def _models(data: SeveralRuns) -> Iterator[NamedTable]:
    """What the models are. Readers see family, size, checkpoint and phase only if one has them."""
    frame = pd.DataFrame([_row(one) for one in data.runs], columns=list(_OF_MODELS))
    names = [
        name for name in _SHOWN_OF_MODELS if frame[name].notna().any() and (frame[name] != "").any()
    ]
    lines = tuple(
        (clean(str(row["model"])), *(_cell(name, row[name]) for name in names))
        for row in frame.to_dict("records")
    )
    headings = ("model", *(_SHOWN_OF_MODELS[name] for name in names))
    caption = "The models of the study."
    yield NamedTable("models", caption, frame, (Table(caption, headings, lines, _OF_HEADS),))


def _row(one: NamedRun) -> dict[str, Any]:
    run, dump, layout = one.run, one.run.dump, one.run.layout
    sampler = dump.get("sampler") or {}
    row = {
        "model": one.label,
        "family": one.family,
        "size": math.nan if one.size is None else one.size,
        "checkpoint": math.nan if one.checkpoint is None else one.checkpoint,
        "phase": one.phase,
        "source": one.source,
        "name": clean(str(dump.get("model") or "")),
        "revision": clean(str(dump.get("revision") or "")),
        "layers": layout.get("num_layers"),
        "query_heads": layout.get("num_q_heads"),
        "key_heads": layout.get("num_k_heads"),
        "head_dim": dump.get("head_dim"),
        "heads_analysed": len(run.head_metrics),
        "heads_failed": len(run.failures),
        "texts": run.texts.get("count"),
        "context": run.context,
        "precision": clean(str(dump.get("dtype") or "")),
        "sampler": clean(str(sampler.get("type") or "")),
        "bucket_size": dump.get("min_bucket_size"),
        "bin_size": run.info.get("bin_size"),
    }
    names = {name: name for name in ("pair_sampling", "query_model", "seed")}
    names |= {f"pairs_per_{part}": f"num_pairs_per_{part}" for part in ("bucket", "bin")}
    return row | {name: run.settings.get(own, "") for name, own in names.items()}


def _cell(name: str, value: Any) -> str:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if name == "size" or (name == "checkpoint" and value >= _SHORTENED):
        return short_number(float(value))
    return clean(value) if isinstance(value, str) else f"{value:,.0f}"


def short_number(number: float) -> str:
    """`135M` for 135,000,000, `1.7B` for 1,700,000,000."""
    for unit, sign in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g}{sign}"
    return f"{number:g}"


def label_of(metric: str) -> str:
    """The heading of a metric."""
    return METRICS[metric].label if metric in METRICS else metric.replace("_", " ")


def _labels(metrics: Sequence[str]) -> dict[str, str]:
    return {name: label_of(name) for name in metrics}


def _of(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return frame[frame["metric"].isin(list(metrics))]


def _means(data: SeveralRuns) -> Iterator[NamedTable]:
    """Means over all heads, and the differences from the first model."""
    frame = data.by(None)
    means, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    known, level = set(means["metric"]), data.shown.level
    headings = _labels([name for name in dict.fromkeys((level, *_SHOWN)) if name in known])
    caption = "Means over the heads of each model, with 95 % intervals over texts."
    own = summary_table(_of(means, [*headings]), caption, headings=headings, note=_MORE)
    yield NamedTable("means", caption, means, (own,))
    caption = f"Every model minus {data.runs[0].label}, with 95 % intervals."
    own = summary_table(
        _of(differences, [*headings]), caption, headings=headings, note=f"{_PAIRED} {_MORE}"
    )
    yield NamedTable("differences", caption, differences, (own,))


def _divided(data: SeveralRuns) -> Iterator[NamedTable]:
    """Means over heads in parts of the context, of the depth, of the layers, and of the bands."""
    kinds = [
        _by_groups("", caption, data.by(division), data.map_metrics)
        for division, kinds_of, caption in _KINDS
        if len({kind for one in data.runs for kind in kinds_of(one.run).values()}) > 1
    ]
    if kinds:
        yield _joined("layer_types", "Means over heads by types of layers.", kinds)
    yield _by_groups("depth", "Means over heads by depth", data.by("depth"), data.map_metrics)
    lengths = [
        _by_groups("", f"Means over heads and positions by {words}", data.by(division))
        for division, words in _LENGTHS
    ]
    caption = "Means over heads and positions by length and by fifths of the context."
    yield _joined("lengths", caption, lengths)
    yield _by_groups("band_shares", _BANDS, data.by("band"), note=_SAME_HEADS)


def _joined(name: str, caption: str, parts: Sequence[NamedTable]) -> NamedTable:
    """Several tables as one; the column `by` says which rows are of which."""
    frame = pd.concat([one.frame for one in parts], ignore_index=True)
    return NamedTable(name, caption, frame, tuple(table for one in parts for table in one.shown))


def _by_groups(
    name: str,
    caption: str,
    frame: pd.DataFrame,
    metrics: Sequence[str] | None = None,
    note: str = "",
) -> NamedTable:
    """A table with a column per group: for each metric one of means, and one of differences."""
    tables: list[Table] = []
    metrics = [*dict.fromkeys(frame["metric"])] if metrics is None else metrics
    for metric in metrics:
        own = frame[frame["metric"] == metric]
        differs = (own["minus"] != "") & (own["minus"] != own["run"])
        what = f"{caption}: {label_of(metric)}." if len(metrics) > 1 else f"{caption}."
        parts = ((own[~differs], what, ""), (own[differs], f"{what} Differences.", note))
        tables += [_wide(part, words, said) for part, words, said in parts if not part.empty]
    return NamedTable(name, f"{caption}, with 95 % intervals over texts.", frame, tuple(tables))


def _wide(frame: pd.DataFrame, caption: str, note: str) -> Table:
    """A line per model; the difference of two kinds of layers of one model is a column."""
    own = frame.assign(minus=frame["minus"].where(frame["minus"] != frame["run"], ""))
    return summary_table(own, caption, "group", form="half", note=note)


def _roles(data: SeveralRuns) -> Iterator[NamedTable]:
    """Heads of each role, and the scores that decide roles."""
    counts = data.role_counts
    if counts.empty:
        return
    roles = [role for role in NAMES if counts.loc[counts["role"] == role, "possible"].any()]
    lines = []
    for label, own in counts.groupby("run", sort=False):
        numbers = own.set_index("role")
        cells = (
            f"{row['likely']:,} ({row['sure']:,}–{row['possible']:,})"
            for row in numbers.loc[roles].to_dict("records")
        )
        unsure = int(own["heads"].iloc[0] - own["sure"].sum())
        lines.append((clean(str(label)), *cells, f"{unsure:,}"))
    caption = "Heads of each model that have each role."
    headings = ("model", *roles, f"{UNSURE} among them")
    yield NamedTable(
        "role_shares", caption, counts, (Table(caption, headings, tuple(lines), _POSSIBLE),)
    )
    yield _by_metrics("role_scores", "Scores that decide roles, as means over heads", data)


def _by_metrics(name: str, caption: str, data: SeveralRuns) -> NamedTable:
    """A table with a column per metric: one of means, and one of differences."""
    frame = data.role_scores
    labels = _labels([*dict.fromkeys(frame["metric"])])
    means, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    parts = ((means, f"{caption}."), (differences, f"{caption}. {_SAME_HEADS}"))
    tables = [
        summary_table(part, words, headings=labels, form="half", digits=4)
        for part, words in parts
        if not part.empty
    ]
    return NamedTable(name, f"{caption}, with 95 % intervals over texts.", frame, tuple(tables))


def _key_heads(data: SeveralRuns) -> Iterator[NamedTable]:
    """Means over key heads."""
    frame = data.key_heads
    labels = {metric.column: metric.label for metric in KEY_HEADS.columns}
    headings = {name: labels[name] for name in dict.fromkeys(frame["metric"])}
    caption = "Means over key heads."
    tables = () if frame.empty else (summary_table(frame, caption, headings=headings, form="half"),)
    yield NamedTable("key_heads", caption, frame, tables)


def _baselines(data: SeveralRuns) -> Iterator[NamedTable]:
    """Means of the runs with baselines, of their baselines, and the runs minus their baselines."""
    frame = data.baselines
    known = set(frame["metric"])
    shown = [name for name in (ALIGNED, DROP_POSITION, DROP_DISTANCE, PHASE) if name in known]
    caption = "RoPE-aligned plasticity of the models and of their baselines."
    own = _of(frame, shown)
    table = summary_table(own, caption, headings=_labels(shown), form="half", note=_BASELINES)
    yield NamedTable("baselines", caption, frame, (table,) if shown else ())


def _matched(data: SeveralRuns) -> Iterator[NamedTable]:
    """Differences of the same heads of models of one family and architecture."""
    if not data.pairs:
        return
    counts, tables = changed_counts(data.matched), []
    headings = ("heads", "tested", "changed", "risen", "fallen")
    for metric, own in counts.groupby("metric", sort=False):
        lines = tuple(
            (clean(f"{row['run']} minus {row['minus']}"), *(f"{row[name]:,}" for name in headings))
            for row in own.to_dict("records")
        )
        caption = f"Heads whose {label_of(str(metric))} changed."
        tables.append(Table(caption, ("models", *headings), lines, _CHANGED))
    caption = "Differences of the same heads; for readers the numbers of heads that changed."
    yield NamedTable("matched_heads", caption, data.matched, tuple(tables))
