"""The settings of an atlas, and those of its two captures and its analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attention_plasticity.config import RunnerConfig
from attention_plasticity.config import make_config as make_analysis
from attention_plasticity.roles import check_thresholds
from qk_sniffer.config import (
    CaptureConfig,
    CaptureSettings,
    InferenceSettings,
    ModelSettings,
    TokenizerSettings,
)
from qk_sniffer.text_settings import DatasetSettings, SyntheticSettings
from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote

_RUN = "how to run"
_TEXTS, _REPEATED = "texts", "repeated"
"""Names of the two dumps."""
_SAME_HEADS = {"layers", "heads", "head_sampling", "full_attention_only"}


class RepeatedSettings(BaseModel):
    """The random tokens that come twice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: int = Field(
        default=512, ge=4, multiple_of=2, description="tokens of a text; the second half is a copy"
    )
    number: int = Field(default=16, ge=4, description="texts; 4 are needed for errors")
    seed: int = Field(default=0, ge=0, description="seed of the tokens")


class AtlasSettings(BaseModel):
    """What an atlas is made of."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    output_dir: str | None = Field(
        title=_RUN,
        default=None,
        min_length=1,
        description="folder of the atlas (default: atlas/<name of the model>)",
    )
    max_workers: int | None = Field(
        title=_RUN,
        default=None,
        ge=1,
        description="worker processes of the analysis (default: one per available CPU)",
    )
    role_thresholds: dict[str, float] = Field(
        title=_RUN,
        default={},
        description="thresholds of roles in place of the defaults, such as "
        "{previous: 0.5, repeated_induction: 0.3}",
    )
    overwrite: bool = Field(
        title=_RUN, default=False, description="discard the dumps and results in the folder"
    )
    dry_run: bool = Field(
        title=_RUN, default=False, description="print what would be captured, and stop"
    )
    dataset: DatasetSettings
    model: ModelSettings
    tokenizer: TokenizerSettings = Field(default=TokenizerSettings())
    inference: InferenceSettings = Field(default=InferenceSettings())
    capture: CaptureSettings = Field(default=CaptureSettings())
    repeated: RepeatedSettings = Field(default=RepeatedSettings())

    @model_validator(mode="after")
    def _thresholds_of_roles(self) -> AtlasSettings:
        check_thresholds(self.role_thresholds)
        return self

    @model_validator(mode="after")
    def _require_rows_with_attention(self) -> AtlasSettings:
        for name in ("attention", "capture_queries", "capture_keys"):
            if not getattr(self.capture, name):
                raise ValueError(f"capture.{name}: an atlas needs it; leave it out")
        if self.dataset.made is not None:
            raise ValueError(f"dataset.path: an atlas needs real texts, got {self.dataset.path}")
        if self.output_dir is not None and is_remote(self.output_dir):
            raise ValueError("output_dir: an atlas is made in a folder of this machine, got a URL")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the atlas."""
        if self.output_dir is not None:
            return user_path(self.output_dir)
        return Path("atlas") / self.model.name.rstrip("/").rsplit("/", 1)[-1]

    @property
    def captures(self) -> dict[str, CaptureConfig]:
        """The capture of the texts, and that of repeated tokens, by a name for messages."""
        return {
            "texts": self._capture(_TEXTS, self.dataset, self.capture, self.tokenizer),
            "repeated tokens": self._capture(
                _REPEATED,
                DatasetSettings(
                    path="synthetic:repeated",
                    synthetic=SyntheticSettings(**self.repeated.model_dump()),
                ),
                CaptureSettings(capture_keys=False, **self.capture.model_dump(include=_SAME_HEADS)),
                self.tokenizer.model_copy(update={"max_length": None}),
            ),
        }

    def _capture(
        self,
        name: str,
        dataset: DatasetSettings,
        capture: CaptureSettings,
        tokenizer: TokenizerSettings,
    ) -> CaptureConfig:
        output: Any = {"data_root": str(self._dump(name))}
        return CaptureConfig(
            dataset=dataset,
            model=self.model,
            tokenizer=tokenizer,
            inference=self.inference,
            capture=capture,
            output=output,
            overwrite=self.overwrite,
        )

    @property
    def analysis(self) -> RunnerConfig:
        """The analysis of the texts, with the scores on repeated tokens."""
        return make_analysis(
            dataset_local_root=str(self._dump(_TEXTS)),
            repeated=str(self._dump(_REPEATED)),
            output_dir=str(self.folder),
            role_thresholds=self.role_thresholds,
            max_workers=self.max_workers,
        )

    def _dump(self, name: str) -> Path:
        return self.folder / "dumps" / name
