"""Settings in sections, one of them inside another and one that may be absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from kitchen import saved
from qk_toolkit.command_line import FlagParser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import Indices, settings_from


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Menu(_Section):
    """What is cooked. Nothing is warmed up."""

    name: str = Field(min_length=1, description="on the cover")
    dishes: int = Field(default=5, ge=1, description="to choose from")
    soups: int = Field(default=0, ge=0, description="among them")
    prices: dict[str, Any] | None = Field(default=None, description="by dish")

    @model_validator(mode="after")
    def _soups_are_dishes(self) -> Menu:
        if self.soups > self.dishes:
            raise ValueError("soups: more than dishes")
        return self


class Oven(_Section):
    """What bakes"""

    fuel: Literal["gas", "wood"] = Field(default="gas", description="it burns")
    heat: float = Field(default=0.5, gt=0, lt=1, description="share of full power")


class Garden(_Section):
    tables: Indices = Field(description="that are laid outside")
    lamps: int = Field(default=0, ge=0, description="in the trees")


class House(_Section):
    """The rooms."""

    oven: Oven = Field(default=Oven())
    seats: int = Field(default=20, ge=1, description="inside")
    lamps: int = Field(default=0, ge=0, description="on the walls")
    heated: bool = Field(default=True, description="in winter")
    garden: Garden | None = Field(default=None)


class Restaurant(_Section):
    """Everything."""

    menu: Menu
    house: House = Field(default=House())
    open_late: bool = Field(title="when", default=False, description="serve after ten")


def parser() -> FlagParser:
    made = FlagParser(prog="restaurant", allow_abbrev=False)
    add_flags(made, Restaurant)
    return made


def from_flags(*words: str, yaml_path: Path | None = None) -> Restaurant:
    return settings_from(Restaurant, yaml_path=yaml_path, flags=parse_flags(parser(), words))


def from_yaml(folder: Path, text: str, *words: str) -> Restaurant:
    return from_flags(*words, yaml_path=saved(folder, text))


def flag_refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        from_flags(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def yaml_refusal(folder: Path, text: str, *words: str) -> str:
    """The message of a refusal in one line, with FILE for the file."""
    with pytest.raises(ConfigError) as caught:
        from_yaml(folder, text, *words)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(folder / "kitchen.yaml"), "FILE")
