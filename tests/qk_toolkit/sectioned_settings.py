"""Settings in sections: one section inside another, and one that is optional."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

import flat_settings
from flat_settings import YAML_FILE, saved
from qk_toolkit.settings import Indices


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Dataset(_Section):
    """Texts to read. They are not shuffled."""

    name: str = Field(min_length=1, description="name on the Hub")
    texts: int = Field(default=5, ge=1, description="number of texts")
    skip: int = Field(default=0, ge=0, description="texts to skip")
    options: dict[str, Any] | None = Field(default=None, description="for load_dataset")

    @model_validator(mode="after")
    def _some_texts_remain(self):
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


from_flags = partial(flat_settings.from_flags, kind=SectionedSettings)
flag_error = partial(flat_settings.flag_error, kind=SectionedSettings)


def from_yaml(folder, text, *arguments):
    return from_flags(*arguments, yaml_path=saved(folder, text))


def yaml_error(folder, text, *arguments):
    """The message in one line, with FILE for the file."""
    message = flag_error(*arguments, yaml_path=saved(folder, text))
    return message.replace(str(folder / YAML_FILE), "FILE")
