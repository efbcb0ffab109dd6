"""Several runs as tables and figures ask about them. Every summary is made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from attention_plasticity.compare.cautions import Caution, cautions_of, run_cautions
from attention_plasticity.compare.matched import matched_heads, role_counts
from attention_plasticity.compare.runs import NamedRun, Pair, family_pairs, main_of, minus_first
from attention_plasticity.compare.summary import baseline_summary, key_head_summary, summary
from attention_plasticity.metrics import HEAD_METRICS, PHASE
from attention_plasticity.roles import ROLES
from attention_plasticity.tables.main_plasticity import PlasticityColumns

_OF_THE_CONTEXT = ("length", "fifth", "band")
"""Divisions whose metrics cannot be chosen."""
_WITHOUT_DIFFERENCES = ("depth", "length", "fifth")


@dataclass(frozen=True, repr=False, eq=False)
class SeveralRuns:
    """Runs with their names, their means and differences.

    `wanted` are columns of the tables of heads that are shown besides those with a mean in
    run.json.
    """

    runs: tuple[NamedRun, ...]
    wanted: tuple[str, ...] = ()
    _by: dict[str | None, pd.DataFrame] = field(default_factory=dict, init=False)

    def by(self, division: str | None) -> pd.DataFrame:
        """The summary of all heads (None), or by groups of heads or parts of the context.

        Rotary bands are compared in models of one family; all else is compared with the first run,
        if it is compared.
        """
        if division not in self._by:
            metrics = None if division in _OF_THE_CONTEXT else self.metrics
            pairs: Sequence[Pair] = minus_first(self.runs)
            if division in _WITHOUT_DIFFERENCES:
                pairs = []
            elif division == "band":
                pairs = self.pairs
            self._by[division] = summary(self.runs, division, metrics, pairs)
        return self._by[division]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Models of one family and architecture, each with the first of them."""
        return family_pairs(self.runs)

    @cached_property
    def matched(self) -> pd.DataFrame:
        """The differences of the same heads in these pairs."""
        return matched_heads(self.pairs, self.map_metrics)

    @cached_property
    def role_counts(self) -> pd.DataFrame:
        """How many heads of each run have each role."""
        return role_counts(self.runs)

    @cached_property
    def role_scores(self) -> pd.DataFrame:
        """Means and differences of the scores that decide roles."""
        names = [name for role in ROLES for name in (role.column, role.repeated_column) if name]
        tables = [one.run.table("roles") for one in self.runs if one.run.has("roles")]
        known = [
            name for name in names if any(name in own and own[name].notna().any() for own in tables)
        ]
        return summary(self.runs, None, known, self.pairs)

    @cached_property
    def key_heads(self) -> pd.DataFrame:
        """Means over the key heads of every run that has their table."""
        return key_head_summary(self.runs)

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """Runs with baselines, their baselines, and the runs minus their baselines."""
        return baseline_summary(self.runs)

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What a reader must know about these numbers."""
        return tuple(cautions_of(self.runs) if len(self.runs) > 1 else run_cautions(self.runs))

    @property
    def shown(self) -> PlasticityColumns:
        """The plasticity of figures and first tables: RoPE-aligned, if every run has it."""
        return main_of(self.runs)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of tables that a run has."""
        known = dict.fromkeys([*HEAD_METRICS.averaged, *self.wanted])
        return [name for name in known if self.has(name)]

    @cached_property
    def map_metrics(self) -> list[str]:
        """The metrics of figures that show a few.

        By default plasticity, its drop from position, and rotary phase.
        """
        chosen = [name for name in self.wanted if self.has(name)]
        default = (self.shown.level, *self.shown.parts[:1], PHASE)
        return chosen or [name for name in default if self.has(name)]

    def has(self, name: str) -> bool:
        """Whether a run has values of a metric."""
        tables = (one.run.head_metrics for one in self.runs)
        return any(name in table and bool(table[name].notna().any()) for table in tables)
