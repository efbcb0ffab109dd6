"""A study whose models are captured and analysed: what tables, figures and README are made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.comparison import Comparison
from attention_plasticity.tables.baselines import FOLDER
from attention_plasticity.tables.finished_run import FinishedRun
from qk_study.plan import ModelPlan
from qk_study.settings import StudySettings
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
    def labels(self) -> list[str]:
        """The labels of the models that have a run."""
        return [plan.label for plan, _ in self.finished]

    @property
    def runs(self) -> tuple[NamedRun, ...]:
        """The finished runs with their labels."""
        return self.comparison.runs

    @cached_property
    def comparison(self) -> Comparison:
        """The means, differences and cautions of the finished runs."""
        found = []
        for plan, run in self.finished:
            one = plan.model.entry
            known = (one.family or "", one.checkpoint, one.size, one.phase or "", one.source)
            found.append(NamedRun(plan.label, run, *known))
        return Comparison(tuple(found), tuple(self.settings.content.metrics))

    @cached_property
    def cautions(self) -> list[str]:
        """Sentences about the numbers, from the runs and from the study."""
        return [*(one.text for one in self.comparison.cautions), *self.study_cautions]

    @property
    def study_cautions(self) -> list[str]:
        """Sentences about the metrics of the study, and about what is left to do."""
        missing = [name for name in self.comparison.wanted if not self.comparison.has(name)]
        found = [f"metrics: no run has {', '.join(missing)}."] if missing else []
        if self.with_baselines:
            found.append(
                "Level and drop of plasticity have no baselines to compare with, which are random "
                "weights and shuffled tokens."
            )
        return found

    @property
    def with_baselines(self) -> list[str]:
        """The words of the command that adds baselines; empty if there is nothing to add."""
        alone = [
            run.place
            for plan, run in self.finished
            if plan.model.entry.source == "model" and not (run.folder / FOLDER).is_dir()
        ]
        return ["attention-plasticity", "study", *alone, "--baselines"] if alone else []
