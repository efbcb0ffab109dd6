"""The settings of the texts of a capture: a data set, or texts that are made."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_dump.heads import MOST_EXAMPLES, MOST_POSITIONS


class Section(BaseModel):
    """A section of the settings: unknown fields are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    without_effect: ClassVar[dict[str, str]] = {}
    """Fields of the original capture tool that are ignored, and what is done instead."""
    fixed_values: ClassVar[dict[str, str]] = {}
    """Fields of the original capture tool with one allowed value."""
    foreign_note: ClassVar[str] = ""
    """What to say about a file that has fields of the original capture tool."""


class SyntheticSettings(Section):
    """Texts that are made, for the paths synthetic:repeated and synthetic:shuffled."""

    length: int | None = Field(
        default=None,
        ge=2,
        le=MOST_POSITIONS,
        description="tokens of a text of synthetic:repeated: half of them are different, and come "
        "twice (default: 2048)",
    )
    number: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EXAMPLES,
        description="number of texts of synthetic:repeated (default: 16)",
    )
    texts: str | None = Field(
        default=None,
        min_length=1,
        description="dataset whose tokens synthetic:shuffled puts in random order; as dataset.path",
    )
    seed: int = Field(default=0, ge=0, description="seed of the tokens, or of their order")

    @model_validator(mode="after")
    def _whole_periods(self) -> SyntheticSettings:
        if self.tokens % 2:
            raise ValueError(
                f"length: {self.tokens} given, expected an even number, because tokens come twice"
            )
        return self

    @property
    def tokens(self) -> int:
        """`length`, or its default."""
        return 2048 if self.length is None else self.length

    @property
    def count(self) -> int:
        """`number`, or its default."""
        return 16 if self.number is None else self.number

    def as_record(self) -> dict[str, Any]:
        """What was made, for dump.json."""
        if self.texts is not None:
            return {"type": "shuffled", "texts": self.texts, "seed": self.seed}
        sizes = {"length": self.tokens, "period": self.tokens // 2, "number": self.count}
        return {"type": "repeated", **sizes, "seed": self.seed}


class DatasetSettings(Section):
    """Where the texts come from."""

    path: str = Field(
        min_length=1,
        description="Hub dataset, or a local text, JSONL, CSV or Parquet file, "
        "or a folder of such files; synthetic:repeated or synthetic:shuffled makes texts",
    )
    name: str | None = Field(default=None, description="subset of a Hub dataset")
    revision: str | None = Field(default=None, description="branch, tag or commit of the dataset")
    split: str = Field(default="train", min_length=1, description="split to read")
    text_column: str = Field(default="text", min_length=1, description="column with the text")
    id_column: str | None = Field(
        default=None,
        description="column with an id to store (default: the row number, or the name of a text "
        "file)",
    )
    max_samples: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EXAMPLES,
        description="number of texts to take from the start (default: all)",
    )
    spread_samples: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EXAMPLES,
        description="number of texts to take at even steps of these (default: all)",
    )
    streaming: bool = Field(
        default=False, description="read texts during the capture instead of downloading them first"
    )
    synthetic: SyntheticSettings | None = Field(default=None)

    @model_validator(mode="after")
    def _settings_fit_the_path(self) -> DatasetSettings:
        kind = self.path.removeprefix("synthetic:") if self.path.startswith("synthetic:") else None
        if kind not in (None, "repeated", "shuffled"):
            raise ValueError(
                f"path: expected synthetic:repeated or synthetic:shuffled, got {self.path[:80]}"
            )
        given = self.synthetic or SyntheticSettings()
        if kind is None and self.synthetic is not None:
            raise ValueError(
                "synthetic: has an effect only if dataset.path is synthetic:repeated or "
                "synthetic:shuffled; leave it out"
            )
        if kind == "shuffled" and given.texts is None:
            raise ValueError(
                "synthetic.texts: is required for synthetic:shuffled (the dataset whose tokens are "
                "put in random order)"
            )
        unused = {"shuffled": ["synthetic.length", "synthetic.number"]}
        unused["repeated"] = ["synthetic.texts", "name", "revision", "id_column", "spread_samples"]
        for name in unused.get(kind or "", []):
            section = given if name.startswith("synthetic.") else self
            if getattr(section, name.removeprefix("synthetic.")) is not None:
                raise ValueError(f"{name}: has no effect on synthetic:{kind}; leave it out")
        if kind == "repeated" and self.streaming:
            raise ValueError("streaming: has no effect on synthetic:repeated; leave it out")
        if self.spread_samples is not None and self.streaming:
            raise ValueError(
                "spread_samples: needs the number of texts, which a streamed data set does not "
                "tell; leave streaming out"
            )
        return self

    @property
    def made(self) -> SyntheticSettings | None:
        """How texts are made; None if they are read."""
        made = self.synthetic or SyntheticSettings()
        return made if self.path.startswith("synthetic:") else None
