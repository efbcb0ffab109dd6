"""Settings in sections: one section inside another, and one that is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from flat_settings import YAML_FILE, saved
from qk_toolkit.command_line import FlagParser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import Indices, settings_from


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Dataset(_Section):
    """Texts to read. They are not shuffled."""

    name: str = Field(min_length=1, description="name on the Hub")
    texts: int = Field(default=5, ge=1, description="number of texts")
    skip: int = Field(default=0, ge=0, description="texts to skip")
    options: dict[str, Any] | None = Field(default=None, description="for load_dataset")

    @model_validator(mode="after")
    def _some_texts_remain(self) -> Dataset:
        if self.skip > self.texts:
            raise ValueError("skip: more than texts")
        return self


class Weights(_Section):
    """Parameters of the model"""

    dtype: Literal["half", "float"] = Field(default="half", description="of the weights")
    dropout: float = Field(default=0.5, gt=0, lt=1, description="share of zeros")


class Adapter(_Section):
    layers: Indices = Field(description="layers to adapt")
    rank: int = Field(default=0, ge=0, description="of the matrices")


class Model(_Section):
    """The transformer."""

    weights: Weights = Field(default=Weights())
    length: int = Field(default=20, ge=1, description="tokens")
    rank: int = Field(default=0, ge=0, description="of the process")
    causal: bool = Field(default=True, description="mask later tokens")
    adapter: Adapter | None = Field(default=None)


class SectionedSettings(_Section):
    """All sections."""

    rare_flags: ClassVar[tuple[str, ...]] = ("dataset.skip", "model.adapter")

    dataset: Dataset
    model: Model = Field(default=Model())
    pre_rope: bool = Field(title="output", default=False, description="before the embedding")


def parser() -> FlagParser:
    made = FlagParser(prog="program", allow_abbrev=False)
    add_flags(made, SectionedSettings)
    return made


def from_flags(*arguments: str, yaml_path: Path | None = None) -> SectionedSettings:
    flags = parse_flags(parser(), arguments)
    return settings_from(SectionedSettings, yaml_path=yaml_path, flags=flags)


def from_yaml(folder: Path, text: str, *arguments: str) -> SectionedSettings:
    return from_flags(*arguments, yaml_path=saved(folder, text))


def flag_error(*arguments: str) -> str:
    """The message of the error that the arguments raise; it must be one line."""
    with pytest.raises(ConfigError) as caught:
        from_flags(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def yaml_error(folder: Path, text: str, *arguments: str) -> str:
    """The message in one line, with FILE for the file."""
    with pytest.raises(ConfigError) as caught:
        from_yaml(folder, text, *arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(folder / YAML_FILE), "FILE")
