"""A study whose models are captured and analysed: what tables, figures and README are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from attention_plasticity.comparison.cautions import run_cautions
from attention_plasticity.comparison.comparison import Comparison, compared
from attention_plasticity.comparison.runs import ComparedRun, compare_runs, labelled, main_of
from attention_plasticity.family.bands import band_table
from attention_plasticity.family.checkpoints import Checkpoint, checkpoint_table
from attention_plasticity.family.depth import depth_table
from attention_plasticity.family.layer_kinds import kind_table
from attention_plasticity.family.lengths import length_table
from attention_plasticity.family.matched import Pair, can_match, matched_heads
from attention_plasticity.family.roles import role_changes, role_counts, role_scores
from attention_plasticity.metrics import HEAD_METRICS, PHASE
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from qk_study.study.plan import ModelPlan
from qk_study.study.relations import StudyRelations, study_relations
from qk_study.study.scores import StudyScores
from qk_study.study.settings import StudyModel, StudySettings
from qk_study.study.steps import StudiedModel


@dataclass(frozen=True)
class StudyResults:
    """All models, finished or failed, in the order of the file."""

    settings: StudySettings
    models: tuple[StudiedModel, ...]
    scores: StudyScores | None

    @cached_property
    def finished(self) -> list[tuple[ModelPlan, FinishedRun]]:
        """The models that have a run."""
        return [(one.plan, one.run) for one in self.models if one.run is not None]

    @property
    def failed(self) -> list[StudiedModel]:
        """The models without a run."""
        return [one for one in self.models if one.run is None]

    @property
    def entries(self) -> list[StudyModel]:
        """The entries of the models that have a run."""
        return [plan.model for plan, _ in self.finished]

    @property
    def labels(self) -> list[str]:
        """The labels of the models that have a run."""
        return [plan.label for plan, _ in self.finished]

    @property
    def families(self) -> list[str]:
        """The families of the models that have a run; an empty text if a family is not given."""
        return [model.entry.family or "" for model in self.entries]

    @cached_property
    def runs(self) -> list[ComparedRun]:
        """The finished runs with their labels."""
        return labelled([run for _, run in self.finished], self.labels)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Means over heads and their first and last fifths: a row per model and type of layers."""
        return compare_runs(self.runs)

    @property
    def shown(self) -> PlasticityColumns:
        """The plasticity that is shown first: at one position, if every run has it."""
        return main_of(self.table)

    @property
    def metrics(self) -> list[str]:
        """The metrics of tables: all that have a mean in run.json, and those of the file."""
        return list(dict.fromkeys([*HEAD_METRICS.averaged, *self.settings.content.metrics]))

    @cached_property
    def lengths(self) -> pd.DataFrame:
        """Plasticity at one position and phase by length of the context; empty without bins."""
        return length_table(self.runs)

    @cached_property
    def depth(self) -> pd.DataFrame:
        """Means over heads by relative depth, of every metric that has a mean."""
        return depth_table(self.runs, self.metrics)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The models with a checkpoint whose family has at least two of them."""
        given = [
            Checkpoint(run, entry.family or "", entry.checkpoint, entry.phase or "")
            for run, entry in zip(self.runs, (one.entry for one in self.entries), strict=True)
            if entry.checkpoint is not None
        ]
        families = [(one.family, one.number) for one in given]
        several = {
            name
            for name, _ in families
            if len({number for own, number in families if own == name}) > 1
        }
        return [one for one in given if one.family in several]

    @cached_property
    def trajectories(self) -> pd.DataFrame:
        """Means over heads of the checkpoints; empty without two checkpoints of a family."""
        return checkpoint_table(self.checkpoints, self.metrics)

    @cached_property
    def layer_kinds(self) -> pd.DataFrame:
        """Means over the layers of each kind, of every metric that has a mean."""
        return kind_table(self.runs, self.metrics)

    @cached_property
    def roles(self) -> pd.DataFrame:
        """Heads of each role per model; empty if no run has roles."""
        return role_counts(self.runs)

    @cached_property
    def role_scores(self) -> pd.DataFrame:
        """Means over heads of the scores that decide roles, and differences of pairs."""
        return role_scores(self.runs, self.pairs)

    @cached_property
    def role_changes(self) -> pd.DataFrame:
        """Roles of the same heads in both models of each pair."""
        return role_changes(self.pairs)

    @cached_property
    def bands(self) -> pd.DataFrame:
        """Shares of eighths of the rotary bands, and differences of pairs; empty without bands."""
        return band_table(self.runs, self.pairs)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Models of one family and architecture, each with the first of them.

        Models without a family are paired if both have a checkpoint. The first is the one with the
        smallest checkpoint, or without checkpoints the first of the file.
        """
        entries = [model.entry for model in self.entries]
        numbers = [math.inf if one.checkpoint is None else one.checkpoint for one in entries]
        order = sorted(range(len(entries)), key=lambda place: numbers[place])
        found: list[Pair] = []
        for number, place in enumerate(order):
            for earlier in order[:number]:
                one, other = entries[place], entries[earlier]
                related = one.family == other.family and (
                    one.family is not None or None not in (one.checkpoint, other.checkpoint)
                )
                if related and can_match(self.runs[place], self.runs[earlier]):
                    found.append(Pair(self.runs[place], self.runs[earlier]))
                    break
        return found

    @cached_property
    def matched(self) -> pd.DataFrame:
        """Differences of the same heads of the pairs."""
        return matched_heads(self.pairs, self.map_metrics)

    @property
    def map_metrics(self) -> list[str]:
        """The metrics of figures that show a few; by default plasticity, its drop, and phase.

        Those that no run has are left out.
        """
        known = set(self.depth["metric"])
        chosen = [name for name in self.settings.content.metrics if name in known]
        default = (self.shown.level, *filter(None, [self.shown.drop]), PHASE)
        return chosen or [name for name in default if name in known]

    def of_shown_metrics(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table with the metrics of figures, in the order of these metrics."""
        places = {name: place for place, name in enumerate(self.map_metrics)}
        own = table[table["metric"].isin(places)]
        return own.sort_values("metric", key=lambda names: names.map(places), kind="stable")

    @cached_property
    def relations(self) -> StudyRelations | None:
        """Correlations of metrics with scores; None without scores or with one model."""
        if self.scores is None or len(self.runs) < 2:
            return None
        return study_relations(self.runs, self.families, self.scores, self.map_metrics)

    @cached_property
    def comparison(self) -> Comparison | None:
        """All models side by side; None if fewer than two have a run.

        Runs whose settings differ are compared with a caution, so that one of them does not stop a
        whole study.
        """
        if len(self.runs) < 2:
            return None
        return compared([run for _, run in self.finished], self.labels, None, None)

    @cached_property
    def cautions(self) -> list[str]:
        """Sentences about the numbers, from the comparison and from the scores."""
        found = []
        missing = [name for name in self.settings.content.metrics if name not in self.map_metrics]
        if missing:
            found.append(f"metrics: no run has {', '.join(missing)}.")
        if self.scores is not None:
            found += [*(self.relations.warnings if self.relations else ()), *self.scores.notes]
        if self.comparison is not None:
            return [*(one.text for one in self.comparison.cautions), *found]
        return [*(one.text for one in run_cautions(self.runs)), *found]
