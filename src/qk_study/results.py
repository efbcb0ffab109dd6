"""A study whose models are captured and analysed: what tables, figures and README are made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from attention_plasticity.compare.cautions import cautions_of, run_cautions
from attention_plasticity.compare.runs import NamedRun, Pair, family_pairs, main_of
from attention_plasticity.metrics import HEAD_METRICS, PHASE
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from qk_study.plan import ModelPlan
from qk_study.settings import StudyModel, StudySettings
from qk_study.steps import StudiedModel


@dataclass(frozen=True)
class StudyResults:
    """All models, finished or failed, in the order of the file."""

    settings: StudySettings
    models: tuple[StudiedModel, ...]

    @cached_property
    def finished(self) -> list[tuple[ModelPlan, FinishedRun]]:
        """The models that have a run."""
        return [(one.plan, one.run) for one in self.models if one.run is not None]

    @property
    def failed(self) -> list[StudiedModel]:
        """The models whose run or whose baselines failed."""
        return [one for one in self.models if one.failure]

    @property
    def entries(self) -> list[StudyModel]:
        """The entries of the models that have a run."""
        return [plan.model for plan, _ in self.finished]

    @property
    def labels(self) -> list[str]:
        """The labels of the models that have a run."""
        return [plan.label for plan, _ in self.finished]

    @cached_property
    def runs(self) -> list[NamedRun]:
        """The finished runs with their labels."""
        return [
            NamedRun(
                plan.label,
                run,
                plan.model.entry.family or "",
                plan.model.entry.checkpoint,
            )
            for plan, run in self.finished
        ]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Models of one family and architecture, each with the first of them."""
        return family_pairs(self.runs)

    @property
    def shown(self) -> PlasticityColumns:
        """The plasticity that is shown first: RoPE-aligned, if every run has it."""
        return main_of(self.runs)

    @property
    def metrics(self) -> list[str]:
        """The metrics of tables that a run has: those with a mean in run.json, and of the file."""
        wanted = dict.fromkeys([*HEAD_METRICS.averaged, *self.settings.content.metrics])
        return [name for name in wanted if self._is_known(name)]

    @property
    def map_metrics(self) -> list[str]:
        """The metrics of figures that show a few.

        By default plasticity, its drop from position, and rotary phase.
        """
        chosen = [name for name in self.settings.content.metrics if self._is_known(name)]
        default = (self.shown.level, *self.shown.parts[:1], PHASE)
        return chosen or [name for name in default if self._is_known(name)]

    def _is_known(self, name: str) -> bool:
        """Whether a run has values of a metric."""
        tables = (one.run.head_metrics for one in self.runs)
        return any(name in table and bool(table[name].notna().any()) for table in tables)

    @cached_property
    def cautions(self) -> list[str]:
        """Sentences about the numbers, from the runs and from the study."""
        known = cautions_of(self.runs) if len(self.runs) > 1 else run_cautions(self.runs)
        return [*(one.text for one in known), *self.study_cautions]

    @cached_property
    def study_cautions(self) -> list[str]:
        """Sentences about the metrics of the study."""
        wanted = self.settings.content.metrics
        missing = [name for name in wanted if not self._is_known(name)]
        return [f"metrics: no run has {', '.join(missing)}."] if missing else []
