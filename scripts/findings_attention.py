"""The tables of docs/findings-attention.md; `findings_smollm2.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

import attention_plasticity as ap
from attention_plasticity.run.head_means import MeanEstimate
from attention_plasticity.tables.intervals import corrected, mean_of_heads

COLUMNS = ("attn_sink_mass", "attn_distant_mass", "attn_entropy", "attn_max_logit")


def attention_tables(run: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table."""
    metrics = run.head_metrics
    metrics = metrics.assign(
        far=metrics["attn_far_mass"],
        gap=corrected(metrics, "ap_attended") - corrected(metrics, "ap_overall"),
    )
    yield "attention-layers", _layers(run, metrics)
    yield "far-heads", _heads(metrics, "far")
    yield "sink-heads", _heads(metrics, "attn_sink_mass")
    yield "attended", _attended(run, metrics)
    yield "attended-heads", _heads(metrics, "gap")
    yield "correlations", _correlations(metrics)


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _layers(run: ap.Run, metrics: pd.DataFrame) -> str:
    rows = []
    for first in range(0, 30, 5):
        members = metrics[metrics["layer"].between(first, first + 4)]
        names = ("attn_sink_mass", "attn_distant_mass", "attn_entropy", "ap_overall", "ap_attended")
        means = [_estimate(mean_of_heads(members, run.influences, name)) for name in names]
        rows.append([f"{first}–{first + 4}", *means])
    return markdown(
        [
            "layers",
            "on the first four tokens",
            "at 256 tokens or more",
            "entropy (nats)",
            "plasticity",
            "attended plasticity",
        ],
        rows,
    )


def _heads(metrics: pd.DataFrame, name: str) -> str:
    """The four heads with the largest values and the four with the smallest."""
    ordered = metrics.sort_values(name)[::-1]
    rows = [
        [
            f"{head['layer']:.0f}.{head['q_head']:.0f}",
            *(_value(head, column) for column in COLUMNS[:3]),
            f"{head['far']:.2f}",
            *(_corrected(head, column) for column in ("ap_overall", "ap_attended")),
        ]
        for head in pd.concat([ordered.head(4), ordered.tail(4)]).to_dict("records")
    ]
    return markdown(
        [
            "head (layer.head)",
            "on the first four tokens",
            "at 256 tokens or more",
            "entropy (nats)",
            "far, without the first tokens",
            "plasticity",
            "attended plasticity",
        ],
        rows,
    )


def _attended(run: ap.Run, metrics: pd.DataFrame) -> str:
    rows = [
        [label, _estimate(mean_of_heads(metrics, run.influences, name)), spread]
        for label, name, spread in (
            ("plasticity, keys at random", "ap_overall", _spread(corrected(metrics, "ap_overall"))),
            ("attended plasticity", "ap_attended", _spread(corrected(metrics, "ap_attended"))),
            ("attended plasticity by counting", "ap_attended_counted",
             _spread(metrics["ap_attended_counted"])),
        )
    ]  # fmt: skip
    return markdown(["", "mean over heads", "10 % and 90 % of the heads"], rows)


def _correlations(metrics: pd.DataFrame) -> str:
    plain, attended = corrected(metrics, "ap_overall"), corrected(metrics, "ap_attended")
    rows = []
    for label, column in (
        ("weight on the first four tokens", "attn_sink_mass"),
        ("weight at 256 tokens or more", "attn_distant_mass"),
        ("the same without the first tokens", "far"),
        ("entropy", "attn_entropy"),
        ("largest logit", "attn_max_logit"),
        ("variance from position", "q_R2_total"),
    ):
        values = metrics[column]
        rows.append([label, _rho(values, plain), _rho(values, attended)])
    rows.append(["attended plasticity", _rho(attended, plain), ""])
    return markdown(["", "ρ with plasticity", "ρ with attended plasticity"], rows)


def _rho(one: pd.Series, other: pd.Series) -> str:
    return f"{stats.spearmanr(one, other).statistic:+.2f}"


def _spread(values: pd.Series) -> str:
    return f"{values.quantile(0.1):.2f} – {values.quantile(0.9):.2f}"


def _value(head: Mapping[Any, Any], name: str) -> str:
    return f"{head[name]:.2f} ± {head[f'{name}_se']:.2f}"


def _corrected(head: Mapping[Any, Any], name: str) -> str:
    return f"{head[name] - head[f'{name}_bias']:.3f} ± {head[f'{name}_se']:.3f}"


def _estimate(mean: MeanEstimate) -> str:
    return f"{mean.value:.3f} ± {mean.standard_error:.3f}"
