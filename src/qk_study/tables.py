"""The tables of a study, as CSV, Markdown and LaTeX.

All numbers come from `summary` of attention_plasticity.compare, divided in different ways. A table
of a study is a frame with all numbers, and what a reader sees of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from attention_plasticity.compare.baselines import baseline_summary
from attention_plasticity.compare.groups import layer_kinds, rope_kinds
from attention_plasticity.compare.matched import (
    changed_counts,
    matched_heads,
    role_counts,
)
from attention_plasticity.compare.summary import key_head_summary, summary
from attention_plasticity.compare.writers import Table, summary_table, table_files
from attention_plasticity.metrics import (
    ALIGNED,
    ATTENDED,
    DROP_DISTANCE,
    DROP_POSITION,
    KEY_HEADS,
    METRICS,
    PHASE,
)
from attention_plasticity.roles import NAMES, ROLES, UNSURE
from attention_plasticity.tables.names import clean
from qk_study.model_table import models_frame, written_models
from qk_study.results import StudyResults
from qk_toolkit.files import write_text

NAMES_OF_TABLES = (
    *("models", "means", "differences", "layer_types", "lengths", "depth"),
    *("band_shares", "role_shares", "role_scores", "key_heads", "baselines", "matched_heads"),
)
_ENDINGS = ("csv", "md", "tex")
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
    "score is somewhere in its 95 % interval). Unsure: heads with several possible roles; without "
    "scores on repeated tokens a far, sink or mixed head can also be an induction head."
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


@dataclass(frozen=True)
class StudyTable:
    """A table: its numbers, and what readers see."""

    name: str  # of its files
    caption: str
    frame: pd.DataFrame
    shown: tuple[Table, ...] = ()

    @cached_property
    def files(self) -> dict[str, str]:
        """The content of its files by their names."""
        return table_files(self.name, self.frame, self.shown)


def write_tables(results: StudyResults, folder: Path) -> list[StudyTable]:
    """Write all tables. Tables of an earlier command that this study does not have are removed."""
    tables = [one for one in study_tables(results) if len(one.frame)]
    files = {name: text for one in tables for name, text in one.files.items()}
    for name, text in files.items():
        write_text(folder / name, text)
    for name in (f"{one}.{end}" for one in NAMES_OF_TABLES for end in _ENDINGS):
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    return tables


def study_tables(results: StudyResults) -> Iterator[StudyTable]:
    """All tables of a study with at least one run. A table without rows is left out later."""
    written = written_models(results)
    yield StudyTable("models", written.caption, models_frame(results), (written,))
    yield from _means(results)
    yield from _divided(results)
    yield from _roles(results)
    yield _key_heads(results)
    yield _baselines(results)
    yield from _matched(results)


def label_of(metric: str) -> str:
    """The heading of a metric."""
    return METRICS[metric].label if metric in METRICS else metric.replace("_", " ")


def _labels(metrics: Sequence[str]) -> dict[str, str]:
    return {name: label_of(name) for name in metrics}


def _of(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return frame[frame["metric"].isin(list(metrics))]


def _means(results: StudyResults) -> Iterator[StudyTable]:
    """Means over all heads, and the differences from the first model."""
    frame = summary(results.runs, None, results.metrics)
    means, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    known, level = set(means["metric"]), results.shown.level
    headings = _labels([name for name in dict.fromkeys((level, *_SHOWN)) if name in known])
    caption = "Means over the heads of each model, with 95 % intervals over texts."
    own = summary_table(_of(means, [*headings]), caption, headings=headings, note=_MORE)
    yield StudyTable("means", caption, means, (own,))
    if not differences.empty:
        first = results.labels[0]
        caption = f"Every model minus {first}, with 95 % intervals."
        own = summary_table(
            _of(differences, [*headings]), caption, headings=headings, note=f"{_PAIRED} {_MORE}"
        )
        yield StudyTable("differences", caption, differences, (own,))


def _divided(results: StudyResults) -> Iterator[StudyTable]:
    """Means over heads in parts of the context, of the depth, of the layers, and of the bands."""
    runs, shown = results.runs, results.map_metrics
    kinds = [
        _by_groups("", caption, summary(runs, by, results.metrics), shown)
        for by, kinds_of, caption in (
            ("layer_type", layer_kinds, "Means over heads by types of layers"),
            ("rope", rope_kinds, "Means over heads of layers with RoPE and without"),
        )
        if len({kind for one in runs for kind in kinds_of(one.run).values()}) > 1
    ]
    if kinds:
        yield _joined("layer_types", "Means over heads by types of layers.", kinds)
    yield _by_groups(
        "depth", "Means over heads by depth", summary(runs, "depth", results.metrics, []), shown
    )
    lengths = [
        _by_groups(
            "",
            f"Means over heads and positions by {words}",
            frame,
            list(dict.fromkeys(frame["metric"])),
        )
        for by, words in (("length", "length of the context"), ("fifth", "fifths of the context"))
        for frame in [summary(runs, by, None, [])]
    ]
    caption = "Means over heads and positions by length and by fifths of the context."
    yield _joined("lengths", caption, lengths)
    frame = summary(runs, "band", None, results.pairs)
    caption = (
        "Share of the variance of the logit by eighths of the rotary bands, from the fastest (1) "
        "to the slowest (8)"
    )
    yield _by_groups("band_shares", caption, frame, [*dict.fromkeys(frame["metric"])], _SAME_HEADS)


def _joined(name: str, caption: str, parts: Sequence[StudyTable]) -> StudyTable:
    """Several tables as one; the column `by` says which rows are of which."""
    frame = pd.concat([one.frame for one in parts], ignore_index=True)
    return StudyTable(name, caption, frame, tuple(table for one in parts for table in one.shown))


def _by_groups(
    name: str, caption: str, frame: pd.DataFrame, metrics: Sequence[str], note: str = ""
) -> StudyTable:
    """A table with a column per group: for each metric one of means, and one of differences."""
    tables: list[Table] = []
    for metric in metrics:
        own = frame[frame["metric"] == metric]
        differs = (own["minus"] != "") & (own["minus"] != own["run"])
        what = f"{caption}: {label_of(metric)}." if len(metrics) > 1 else f"{caption}."
        parts = ((own[~differs], what, ""), (own[differs], f"{what} Differences.", note))
        tables += [_wide(part, words, said) for part, words, said in parts if not part.empty]
    return StudyTable(name, f"{caption}, with 95 % intervals over texts.", frame, tuple(tables))


def _wide(frame: pd.DataFrame, caption: str, note: str) -> Table:
    """A line per model; the difference of two kinds of layers of one model is a column."""
    own = frame.assign(minus=frame["minus"].where(frame["minus"] != frame["run"], ""))
    return summary_table(own, caption, "group", form="half", note=note)


def _roles(results: StudyResults) -> Iterator[StudyTable]:
    """Heads of each role, and the scores that decide roles."""
    counts = role_counts(results.runs)
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
    headings = ("model", *roles, UNSURE)
    yield StudyTable(
        "role_shares", caption, counts, (Table(caption, headings, tuple(lines), _POSSIBLE),)
    )
    names = [name for role in ROLES for name in (role.column, role.repeated_column) if name]
    frame = summary(results.runs, None, _known(results, names), results.pairs)
    caption = "Scores that decide roles, as means over heads"
    yield _by_metrics("role_scores", caption, frame)


def _known(results: StudyResults, names: Sequence[str]) -> list[str]:
    """Scores of roles that a run has."""
    tables = [one.run.table("roles") for one in results.runs if one.run.has("roles")]
    return [
        name for name in names if any(name in own and own[name].notna().any() for own in tables)
    ]


def _by_metrics(name: str, caption: str, frame: pd.DataFrame) -> StudyTable:
    """A table with a column per metric: one of means, and one of differences."""
    labels = _labels([*dict.fromkeys(frame["metric"])])
    means, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    parts = ((means, f"{caption}."), (differences, f"{caption}. {_SAME_HEADS}"))
    tables = [
        summary_table(part, words, headings=labels, form="half", digits=4)
        for part, words in parts
        if not part.empty
    ]
    return StudyTable(name, f"{caption}, with 95 % intervals over texts.", frame, tuple(tables))


def _key_heads(results: StudyResults) -> StudyTable:
    frame = key_head_summary(results.runs)
    labels = {metric.column: metric.label for metric in KEY_HEADS.columns}
    headings = {name: labels[name] for name in dict.fromkeys(frame["metric"])}
    caption = "Means over key heads."
    tables = () if frame.empty else (summary_table(frame, caption, headings=headings, form="half"),)
    return StudyTable("key_heads", caption, frame, tables)


def _baselines(results: StudyResults) -> StudyTable:
    """Means of the runs with baselines, of their baselines, and the runs minus their baselines."""
    frame = baseline_summary(results.runs)
    shown = [
        name
        for name in (ALIGNED, DROP_POSITION, DROP_DISTANCE, PHASE)
        if name in set(frame["metric"])
    ]
    caption = "RoPE-aligned plasticity of the models and of their baselines."
    if not shown:
        return StudyTable("baselines", caption, frame)
    table = summary_table(
        _of(frame, shown), caption, headings=_labels(shown), form="half", note=_BASELINES
    )
    return StudyTable("baselines", caption, frame, (table,))


def _matched(results: StudyResults) -> Iterator[StudyTable]:
    """Differences of the same heads of models of one family and architecture."""
    if not results.pairs:
        return
    matched = matched_heads(results.pairs, results.map_metrics)
    counts, tables = changed_counts(matched), []
    headings = ("heads", "tested", "changed", "risen", "fallen")
    for metric, own in counts.groupby("metric", sort=False):
        lines = tuple(
            (clean(f"{row['run']} minus {row['minus']}"), *(f"{row[name]:,}" for name in headings))
            for row in own.to_dict("records")
        )
        caption = f"Heads whose {label_of(str(metric))} changed."
        tables.append(Table(caption, ("models", *headings), lines, _CHANGED))
    caption = "Differences of the same heads; for readers the numbers of heads that changed."
    yield StudyTable("matched_heads", caption, matched, tuple(tables))
