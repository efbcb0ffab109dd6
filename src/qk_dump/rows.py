"""The one container of rows: a dict of arrays with one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
"""A column: (n,) or (n, w)."""


class Rows:
    """Some rows of one head.

    `columns` has an array (n,) or (n, w) per name. A value that is not known is NaN in a column of
    floats and −1 in a column of integers.
    """

    def __init__(self, columns: Mapping[str, Values]) -> None:
        self.columns = dict(columns)
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")
        self._length = next(iter(lengths.values()), 0)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __repr__(self) -> str:
        return f"<Rows: {self._length:,} of {', '.join(self.columns)}>"

    def get(self, name: str) -> Values | None:
        """A column, or None if the rows do not have it."""
        return self.columns.get(name)

    @overload
    def __getitem__(self, which: str) -> Values: ...

    @overload
    def __getitem__(self, which: slice | npt.NDArray[Any]) -> Self: ...

    def __getitem__(self, which: str | slice | npt.NDArray[Any]) -> Values | Self:
        """A column by its name, or some of the rows by index, mask or slice."""
        if isinstance(which, str):
            return self.columns[which]
        return self.holding({name: values[which] for name, values in self.columns.items()})

    def with_columns(self, more: Mapping[str, Values]) -> Self:
        """The rows with further columns, or with others in place of theirs."""
        return self.holding({**self.columns, **more})

    def holding(self, columns: Mapping[str, Values]) -> Self:
        """Other rows with the same facts about them."""
        other = copy(self)
        Rows.__init__(other, columns)
        return other

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """The rows of all parts. A column that some parts lack is unknown there."""
        if len(parts) == 1:
            return parts[0]
        like = {name: values for part in reversed(parts) for name, values in part.columns.items()}
        names = dict.fromkeys(name for part in parts for name in part.columns)
        return Rows(
            {
                name: np.concatenate(
                    [part.columns.get(name, _unknown(len(part), like[name])) for part in parts]
                )
                for name in names
            }
        )


def _unknown(length: int, like: Values) -> Values:
    """A column without a known value, with the type and width of another one."""
    return np.full((length, *like.shape[1:]), np.nan if like.dtype.kind == "f" else -1, like.dtype)
