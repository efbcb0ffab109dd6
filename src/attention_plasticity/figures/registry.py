"""The registry of figures: those of one run, and those of several runs.

A new figure is an entry here, its function, and a test of its values. `plot`, `plot all`, the help,
`run.plot`, studies and the table of docs/figures.md follow from the entries. An entry names its
function as `module.function`, so that this file imports no library for figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from attention_plasticity.figures.settings import FigureOptions
from attention_plasticity.metric import Metric
from attention_plasticity.metrics import (
    ALIGNED,
    ATTENDED,
    DROP_POSITION,
    PHASE,
    POOLED,
    TABLES,
    TableKind,
)
from attention_plasticity.roles import UNSURE
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.settings import nearest

if TYPE_CHECKING:
    from attention_plasticity.compare.several import SeveralRuns
    from attention_plasticity.tables.finished_run import FinishedRun

_AGAIN = "attention-plasticity add-rotary, and analyze again"
NONE_AT_ONE_POSITION = (
    f"has no RoPE-aligned plasticity; it needs the rotary records of the dump: {_AGAIN}"
)


@dataclass(frozen=True)
class Need:
    """Something without which a figure cannot be drawn."""

    words: str  # in the table of figures
    reason: str  # what is needed and how to get it, after the word "needs"
    met: Callable[[Any], bool]  # of a run, or of several


def known(table: TableKind, column: str, words: str, reason: str) -> Need:
    """A run must have a value of this column."""

    def met(run: FinishedRun) -> bool:
        if not run.has(table):
            return False
        found = run.table(table)
        return column in found and bool(found[column].notna().any())

    return Need(words, reason, met)


def _any_run(table: TableKind, words: str, reason: str) -> Need:
    """One of several runs must have this table."""
    return Need(words, reason, lambda of: any(one.run.has(table) for one in of.runs))


@dataclass(frozen=True)
class Spec:
    """One entry of the registry. Labels come from the columns in metrics.py."""

    name: str
    shows: str  # one line for the help
    table: TableKind
    data: str  # the function that shapes its data, as `maps.roles`
    of: Literal["run", "runs"] = "run"  # one run, or several side by side
    x: tuple[str, ...] = ()  # columns across; each has a panel of its own
    y: tuple[str, ...] = ()  # columns up
    title: str = ""
    caption: str = ""  # the first sentences
    needs: tuple[Need, ...] = ()
    options: tuple[str, ...] = ()  # beside those of every figure
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Files of `plot all` by their names, with their options; empty: one with the name."""

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """The files of `plot all`, with the options of each."""
        return self.variants or {self.name: {}}

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of all options that it takes."""
        return (*FigureOptions.everywhere, *self.options)

    def metric(self, column: str) -> Metric:
        """A column of its table; an unknown one has its name as label."""
        return TABLES[self.table].by_name.get(column) or Metric(column, column, "")

    def _is_empty(self, run: Any) -> bool:
        chosen = run.heads is not None
        return chosen and run.has(self.table) and run.table(self.table).empty

    def obstacle(self, of: FinishedRun | SeveralRuns) -> str | None:
        """Why it cannot be drawn; None if it can."""
        if self.of == "run" and self._is_empty(of):
            return "other heads: its table has none of those that are selected"
        return next((need.reason for need in self.needs if not need.met(of)), None)


_ONE_POSITION = ("RoPE-aligned plasticity", f"RoPE-aligned plasticity: {_AGAIN}")
_ATTENTION = ("attention columns", "a dump with attention columns: capture.attention")
_ORIGINAL = ("the columns of the original tool", "an analysis without --no-original_columns")
_TEXTS = ("texts of the rows", "the texts of queries and keys: analyze again")
_DRAWN = ("keys drawn by attention", _ATTENTION[1])
_FAMILY = ("one family", "two models of one family and architecture")
_HAS_PHASE = known("head_metrics", PHASE, *_ONE_POSITION)
_HAS_ROLES = known("roles", "role", *_ATTENTION)
_FEWEST_SURE = 3
_SURE_ROLES = Need(
    "sure roles",
    f"at least {_FEWEST_SURE} heads whose role is sure",
    lambda run: int((run.table("roles")["role"] != UNSURE).sum()) >= _FEWEST_SURE,
)
_CONTEXT = ("plasticity", "range", "intervals", "baselines")
_COLOURS = ("cmap", "range", "vmin", "vmax")
_POINTS = ("color", "cmap", "intervals")

FIGURES: tuple[Spec, ...] = (
    Spec(
        "plasticity",
        "plasticity over the context: quantiles of heads with the extreme ones, or a line per head",
        "bins",
        "over_context.plasticity",
        options=(*_CONTEXT, "color", "cmap", "trend_threshold"),
    ),
    Spec(
        "profile",
        "plasticity over the context: mean over heads, and spread over heads",
        "bins",
        "over_context.profile",
        options=_CONTEXT,
    ),
    Spec(
        "distance",
        "RoPE-aligned plasticity by the distance of the keys",
        "distances",
        "distances.plasticity",
        title="Plasticity by distance",
        caption="RoPE-aligned plasticity by the distance from query to key: mean over heads, "
        "with a band of the middle 50 % of heads. Dashed and dotted: queries of the last and of "
        "the first fifth of the context alone. Where these lines agree, position has no effect of "
        "its own. The lower panel has the means alone, on an axis of its own.",
        needs=(known("distances", "plasticity", *_ONE_POSITION),),
        options=("range", "intervals"),
    ),
    Spec(
        "depth",
        "one metric by layer: every head, and the mean of a layer",
        "head_metrics",
        "points.depth",
        options=("metric", "intervals"),
    ),
    Spec(
        "heatmap",
        "plasticity by query position and key position",
        "bins",
        "heatmap.heatmap",
        options=("plasticity", "agg", *_COLOURS),
    ),
    Spec(
        "map",
        "one metric of every head, layer × head",
        "head_metrics",
        "maps.of_heads",
        options=("metric", "fade", "intervals", *_COLOURS),
        variants={
            "map-plasticity": {},
            "map-drop": {"metric": DROP_POSITION},
        },
    ),
    Spec(
        "key-heads",
        "one metric of every key head: its static error",
        "key_heads",
        "maps.of_heads",
        y=("static_error",),
        needs=(known("key_heads", "static_error", *_TEXTS),),
        options=("metric", "intervals", *_COLOURS),
    ),
    Spec(
        "roles",
        "the role of every head, layer × head",
        "roles",
        "maps.roles",
        title="Roles of heads",
        needs=(_HAS_ROLES,),
    ),
    Spec(
        "phase",
        "RoPE-aligned plasticity against plasticity over a bin",
        "head_metrics",
        "points.scatter",
        x=(POOLED,),
        y=(ALIGNED,),
        title="Rotary phase",
        caption="Plasticity over a bin (queries as captured) against RoPE-aligned plasticity "
        "(every query de-rotated to one position of its bin), with the same bins, key pairs and "
        "weights. The distance below the line of equal values is the rotary phase: what the "
        "rotation of RoPE inside a bin adds.",
        needs=(_HAS_PHASE,),
        options=("range", *_POINTS),
    ),
    Spec(
        "attended",
        "RoPE-aligned plasticity against attended plasticity",
        "head_metrics",
        "points.scatter",
        x=(ALIGNED,),
        y=(ATTENDED,),
        title="Attended plasticity",
        caption="Plasticity of the key pairs of the run, against plasticity of two keys drawn in "
        "proportion to the attention that they receive (attended plasticity).",
        needs=(
            _HAS_PHASE,
            known("head_metrics", ATTENDED, *_DRAWN),
        ),
        options=("range", *_POINTS),
    ),
    Spec(
        "ranks",
        "heads with the largest and smallest values, with intervals of ranks",
        "head_metrics",
        "points.ranks",
        options=("metric", "limit", "intervals"),
    ),
    Spec(
        "by-role",
        "RoPE-aligned plasticity and rotary phase by role",
        "roles",
        "points.by_role",
        y=(ALIGNED, PHASE),
        title="Plasticity by role",
        caption="RoPE-aligned plasticity (left) and rotary phase (right) of query heads by "
        "their role, one point per head. Points of a row are spread up and down only so that they "
        "can be told apart. Diamonds below the points: mean over the heads of a role.",
        needs=(_HAS_ROLES, _HAS_PHASE, _SURE_ROLES),
        options=("intervals",),
    ),
    Spec(
        "attention",
        "attention by distance: mean over heads, and spread over heads",
        "attention",
        "distances.attention",
        title="Attention by distance",
        caption="Share of attention by distance from query to key, as a mean over heads. The "
        "attention on the first four tokens of a text stands apart, at the left; the line is "
        "without it. How much of a bin goes to the first four tokens follows from the "
        "positions of the queries, in their bucket spread evenly. The band is the range of the "
        "middle 80 % of heads, not the error of the mean.",
        needs=(known("attention", "mass_0", *_ATTENTION),),
    ),
    Spec(
        "components",
        "share of the linear position R² in each query dimension",
        "component_weights",
        "distances.components",
        y=("weight",),
        title="Position in the dimensions of queries",
        caption="Share of the linear position R² in each dimension of the captured queries; the "
        "shares of a head sum to 1. Queries are as they enter the attention, after RoPE if the "
        "model has it. Dimensions that RoPE turns slowly then follow position by themselves; the "
        "figure does not show where the model stores position.",
        needs=(known("component_weights", "weight", *_ORIGINAL),),
        options=("limit", "agg", "ylabel"),
    ),
    Spec(
        "profiles",
        "plasticity over the context and by distance: one line per run",
        "bins",
        "of_runs.profiles",
        of="runs",
        needs=(Need("two runs", "two models", lambda of: len(of.runs) > 1),),
    ),
    Spec(
        "lengths",
        "plasticity, rotary phase and their drops by length of the context",
        "bins",
        "of_runs.lengths",
        of="runs",
        needs=(_any_run("bins", *_ONE_POSITION),),
    ),
    Spec(
        "depth",
        "means over heads by tenths of the depth",
        "head_metrics",
        "of_runs.depth",
        of="runs",
    ),
    Spec(
        "role-shares",
        "shares of heads of each role",
        "roles",
        "of_runs.roles",
        of="runs",
        needs=(_any_run("roles", *_ATTENTION),),
    ),
    Spec(
        "band-shares",
        "shares of the variance of the logit by eighths of the rotary bands",
        "bands",
        "of_runs.bands",
        of="runs",
        needs=(_any_run("bands", "rotary records", "the rotary embedding in a dump"),),
    ),
    Spec(
        "matched-heads",
        "heads that changed between two models of one family",
        "head_metrics",
        "of_runs.matched",
        of="runs",
        needs=(Need(*_FAMILY, lambda of: bool(of.pairs)),),
    ),
)
_OF_RUN = tuple(spec for spec in FIGURES if spec.of == "run")
_BY_NAME = {spec.name: spec for spec in _OF_RUN}
_OF_METRIC = {DROP_POSITION: known("head_metrics", DROP_POSITION, *_ONE_POSITION)}
"""What the variants of a figure need beside the figure."""


def figures_of(of: Literal["run", "runs"]) -> tuple[Spec, ...]:
    """The figures of one run, or those of several runs."""
    return tuple(spec for spec in FIGURES if spec.of == of)


def spec_of(name: object) -> Spec:
    """The entry of a figure of one run; `by_role` is the same as `by-role`."""
    if not isinstance(name, str):
        raise ConfigError(f"kind: expected one of {', '.join(_BY_NAME)}, got {in_short(name)}")
    found = _BY_NAME.get(name.replace("_", "-"))
    if found is None:
        hint = nearest(name, _BY_NAME, otherwise=f"; there are {', '.join(_BY_NAME)}")
        raise ConfigError(f"{in_short(name)}: unknown figure{hint}")
    return found


def file_names(of: Literal["run", "runs"] = "run") -> list[str]:
    """The names of all files of `plot all`, or of a study, without their endings."""
    return [name for spec in figures_of(of) for name in spec.files]


def kind_of(of: FinishedRun | SeveralRuns) -> Literal["run", "runs"]:
    """Which figures show this."""
    from attention_plasticity.tables.finished_run import FinishedRun

    return "run" if isinstance(of, FinishedRun) else "runs"


def left_out(of: FinishedRun | SeveralRuns) -> dict[str, str]:
    """The files that a run or several runs do not allow, each with what they need."""
    found = {}
    for spec in figures_of(kind_of(of)):
        reason = spec.obstacle(of)
        for name, options in spec.files.items():
            need = _OF_METRIC.get(str(options.get("metric")))
            missing = reason or (need.reason if need and not need.met(of) else None)
            if missing:
                found[name] = missing
    return found


def left_out_lines(run: FinishedRun) -> list[str]:
    """What `plot all` says about figures that it does not draw: one line for each reason."""
    reasons = left_out(run)
    return [
        f"not drawn: {', '.join(name for name in reasons if reasons[name] == reason)} "
        f"(needs {reason})"
        for reason in dict.fromkeys(reasons.values())
    ]
