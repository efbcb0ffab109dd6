"""Settings without sections, one field of every type, and helpers that build them."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_toolkit.command_line import FlagParser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import Indices, settings_from

YAML_FILE = "settings.yaml"


class FlatSettings(BaseModel):
    """One field of every type."""

    model_config = ConfigDict(extra="forbid")

    batch_size: int = Field(default=2, ge=1, description="texts per batch")
    rate: float = Field(default=0.5, gt=0, lt=1, description="share of tokens, 50% by default")
    pre_rope: bool = Field(default=False, description="before the rotary embedding")
    dtype: Literal["half", "float"] = Field(default="half", description="of the vectors")
    model: str = Field(default="tiny", description="name on the Hub")
    cache_dir: str | None = Field(default=None, description="folder for downloads")
    layers: Indices | None = Field(default=None, description="layers to read")
    buffer: int | None = Field(default=None, ge=1, le=90, description="texts in memory")

    @model_validator(mode="after")
    def _buffer_holds_a_batch(self):
        if self.buffer is not None and self.buffer < self.batch_size:
            raise ValueError("buffer: smaller than batch_size")
        return self


def parser(kind):
    made = FlagParser(prog="program", allow_abbrev=False)
    add_flags(made, kind)
    return made


def from_flags(*arguments, yaml_path=None, kind=FlatSettings):
    flags = parse_flags(parser(kind), arguments)
    return settings_from(kind, yaml_path=yaml_path, flags=flags)


def from_yaml(folder, text, section=None):
    return settings_from(FlatSettings, yaml_path=saved(folder, text), section=section)


def saved(folder, text):
    path = folder / YAML_FILE
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def flag_error(*arguments, **options):
    """The message of the error that the arguments raise; it must be one line."""
    with pytest.raises(ConfigError) as caught:
        from_flags(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def yaml_error(folder, text, section=None):
    """The message without the file; it must begin with the file and be one line."""
    with pytest.raises(ConfigError) as caught:
        from_yaml(folder, text, section)
    message = str(caught.value)
    assert message.startswith(f"{folder / YAML_FILE}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder / YAML_FILE}: ")
