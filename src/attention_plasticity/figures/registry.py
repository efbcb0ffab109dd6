"""The registry of figures. A new figure is one entry here and, at most, a function for its data.

An entry names its function as `module.function`, so that this file imports no library for figures.

`plot`, `plot all`, the help, `run.plot` and studies follow from the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from attention_plasticity.figures.spec import Need, Spec, known
from attention_plasticity.metrics import (
    ALIGNED,
    ATTENDED,
    DROP_POSITION,
    PHASE,
    POOLED,
)
from attention_plasticity.roles import UNSURE
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.settings import nearest

if TYPE_CHECKING:
    from pathlib import Path

    from attention_plasticity.tables.finished_run import FinishedRun

_AGAIN = "attention-plasticity add-rotary, and analyze again"
_ONE_POSITION = f"RoPE-aligned plasticity: {_AGAIN}"
_ATTENTION = "a dump with attention columns: capture.attention"
_TEXTS = "the texts of queries and keys: analyze again"
_HAS_PHASE = known("head_metrics", PHASE, _ONE_POSITION)
_HAS_ROLES = known("roles", "role", _ATTENTION)
_SURE_ROLES = Need(
    "a head whose role is sure",
    lambda run: bool((run.table("roles")["role"] != UNSURE).any()),
)
_CONTEXT = ("plasticity", "range", "intervals", "baselines")
_COLOURS = ("cmap", "range", "vmin", "vmax")
_POINTS = ("color", "cmap", "intervals")

FIGURES: tuple[Spec, ...] = (
    Spec(
        "plasticity",
        "plasticity over the context: one line per head, and the mean",
        "bins",
        "over_context.plasticity",
        options=(*_CONTEXT, "color", "cmap", "trend_threshold", "alpha", "line_width"),
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
        needs=(known("distances", "plasticity", _ONE_POSITION),),
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
        needs=(known("key_heads", "static_error", _TEXTS),),
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
        needs=(_HAS_PHASE, known("head_metrics", ATTENDED, _ATTENTION)),
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
        "attention on the first four tokens of a text stands apart, at the left; the other bars "
        "are without it. How much of a bin goes to the first four tokens follows from the "
        "positions of the queries, in their bucket spread evenly. Boxes are the range of the "
        "middle 80 % of heads, not the error of the mean.",
        needs=(known("attention", "mass_0", _ATTENTION),),
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
        options=("limit", "agg", "ylabel"),
    ),
)
_BY_NAME = {spec.name: spec for spec in FIGURES}
_OF_METRIC = {
    DROP_POSITION: known("head_metrics", DROP_POSITION, _ONE_POSITION),
}
"""What the variants of a figure need beside the figure."""


def spec_of(name: object) -> Spec:
    """The entry with this name; `by_role` is the same as `by-role`."""
    if not isinstance(name, str):
        raise ConfigError(f"kind: expected one of {', '.join(_BY_NAME)}, got {in_short(name)}")
    found = _BY_NAME.get(name.replace("_", "-"))
    if found is None:
        hint = nearest(name, _BY_NAME, otherwise=f"; there are {', '.join(_BY_NAME)}")
        raise ConfigError(f"{in_short(name)}: unknown figure{hint}")
    return found


def file_names() -> list[str]:
    """The names of all files of `plot all`, without their endings."""
    return [name for spec in FIGURES for name in spec.files]


def left_out(run: FinishedRun) -> dict[str, str]:
    """The files of `plot all` that a run does not allow, each with what they need."""
    found = {}
    for spec in FIGURES:
        reason = spec.obstacle(run)
        for name, options in spec.files.items():
            need = _OF_METRIC.get(str(options.get("metric")))
            missing = reason or (need.reason if need and not need.met(run) else None)
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


def save_all(
    run: FinishedRun,
    folder: Path,
    kind: str = "png",
    only: Collection[str] | None = None,
    **options: Any,
) -> Iterator[Path]:
    """Draw all figures of a run and yield the path of each finished file.

    `only` has the names of the files that are wanted; None: all. Each figure takes those of the
    `options` that it knows.

    Examples:
        >>> from pathlib import Path
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.figures import save_all
        >>> run = open_run("results/sample")
        >>> [path.name for path in save_all(run, Path("figures"), "svg", ["profile", "map-drop"])]
        ['profile.svg', 'map-drop.svg']
    """
    from attention_plasticity.figures.request import draw_figure
    from attention_plasticity.figures.saving import require_target, save_figure

    layers, types, heads = (options.pop(one, None) for one in ("layers", "layer_type", "heads"))
    chosen = run.select(layers, types, heads)
    missing = left_out(chosen)
    wanted = [
        (spec, name, own)
        for spec in FIGURES
        for name, own in spec.files.items()
        if name not in missing and (only is None or name in only)
    ]
    paths = [folder / f"{name}.{kind}" for _, name, _ in wanted]
    for path in paths:
        require_target(path)
    for (spec, _, own), path in zip(wanted, paths, strict=True):
        given = {name: value for name, value in options.items() if name in spec.taken}
        save_figure(draw_figure(spec, chosen, {**given, **own}), path)
        yield path
