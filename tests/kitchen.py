"""Settings with one field of every kind, and the refusals they give."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import (
    Indices,
    settings_from,
)


class Kitchen(BaseModel):
    """One field of every kind."""

    model_config = ConfigDict(extra="forbid")

    cooks: int = Field(default=2, ge=1, description="people at the stove")
    heat: float = Field(default=0.5, gt=0, lt=1, description="share of full power, 50% by default")
    open_late: bool = Field(default=False, description="serve after ten")
    style: Literal["plain", "rich"] = Field(default="plain", description="of cooking")
    name: str = Field(default="corner", description="on the sign")
    cellar: str | None = Field(default=None, description="where the wine is")
    tables: Indices | None = Field(default=None, description="that are laid")
    seats: int | None = Field(default=None, ge=1, le=90, description="in the house")

    @model_validator(mode="after")
    def _room(self) -> Kitchen:
        if self.seats is not None and self.seats < self.cooks:
            raise ValueError("seats: fewer than cooks")
        return self


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kitchen", allow_abbrev=False)
    add_flags(made, Kitchen)
    return made


def from_flags(*words: str, yaml_path: Path | None = None) -> Kitchen:
    return settings_from(Kitchen, yaml_path=yaml_path, flags=parse_flags(parser(), words))


def from_yaml(folder: Path, text: str | bytes, section: str | None = None) -> Kitchen:
    return settings_from(Kitchen, yaml_path=saved(folder, text), section=section)


def saved(folder: Path, text: str | bytes) -> Path:
    path = folder / "kitchen.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def flag_refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        from_flags(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def yaml_refusal(folder: Path, text: str | bytes, section: str | None = None) -> str:
    """The message of a refusal, which must begin with the file and fit a line."""
    with pytest.raises(ConfigError) as caught:
        from_yaml(folder, text, section)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'kitchen.yaml'}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder / 'kitchen.yaml'}: ")
