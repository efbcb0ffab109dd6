"""What the sections of a capture's settings have in common."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the settings: unknown fields are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    without_effect: ClassVar[dict[str, str]] = {}
    """Fields of the original capture tool that are ignored, and what is done instead."""
    fixed_values: ClassVar[dict[str, str]] = {}
    """Fields of the original capture tool with one allowed value."""
    foreign_note: ClassVar[str] = ""
    """What to say about a file that has fields of the original capture tool."""
