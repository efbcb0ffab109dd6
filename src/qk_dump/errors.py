"""The few errors a user can cause. Each message names the file, the value and the way out."""

from __future__ import annotations


class ToolkitError(Exception):
    """Base of every error meant for a person; the command line prints it without a traceback."""

    exit_code = 1


class ConfigError(ToolkitError):
    """The request cannot be carried out: a setting, a path, a contradiction with the dump."""

    exit_code = 2


class DumpError(ToolkitError):
    """A file of the dump cannot be used. It fails its head, never the others."""


class HeadError(ToolkitError):
    """A head whose files are fine but which cannot be analysed, such as one with two queries."""


class OutputError(ToolkitError):
    """A result could not be written."""


class HubError(ToolkitError):
    """The Hub refused, failed or cannot be reached. What was done before is intact."""
