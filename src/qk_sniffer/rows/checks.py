"""Refuse NaN and infinity in rows before they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qk_dump.columns import EXAMPLE, HEAD, LSE, POSITION, RECEIVED, VALUE_NORM, VECTOR
from qk_dump.rows import Rows
from qk_sniffer.rows.layer_tables import Part
from qk_toolkit.errors import ToolkitError

_OVERFLOW = "The model overflows: load it in bfloat16 or float32 (model.dtype)"
_TOO_LARGE = "Values are too large for float16: set output.vector_dtype to float32"
_KEPT = "Texts finished earlier are kept."


def stored_rows(part: Part, rows: Rows, *, half: bool, known_attention: bool) -> Rows:
    """The rows of a part, with the column `head`, in the precision of the dump, checked.

    `known_attention` is whether the attention of the layer was computed. Elsewhere its columns are
    NaN.
    """
    vectors = "queries" if part.kind == "q" else "keys"
    _require_finite(part, rows, VECTOR, vectors, _OVERFLOW)
    for column in (LSE, RECEIVED):
        if known_attention and column in rows:
            _require_logits(part, rows, column)
    norms = rows.get(VALUE_NORM)
    if norms is not None and not np.isnan(norms).all():  # not known in some layers
        _require_finite(part, rows, VALUE_NORM, "values", _OVERFLOW)
    if half:
        with np.errstate(over="ignore"):
            rows = rows.with_columns({VECTOR: rows[VECTOR].astype(np.float16)})
        _require_finite(part, rows, VECTOR, vectors, _TOO_LARGE)
    return rows


def _require_finite(part: Part, rows: Rows, column: str, name: str, remedy: str) -> None:
    values = rows[column]
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum(dtype=np.float32)):
            return
    wrong = _not_finite(values)
    if wrong.any():
        text = rows[EXAMPLE][np.argmax(wrong)]
        raise ToolkitError(
            f"layer {part.layer}: NaN or infinity in the {name} of text {text}. {remedy}. {_KEPT}"
        )


def _require_logits(part: Part, rows: Rows, column: str) -> None:
    wrong = _not_finite(rows[column])
    if not wrong.any():
        return
    row = int(np.argmax(wrong))
    kind = "query" if part.kind == "q" else "key"
    where = f", position {rows[POSITION][row]}" if part.kind == "q" else ""
    raise ToolkitError(
        f"layer {part.layer}: NaN or infinity in the attention logits of text "
        f"{rows[EXAMPLE][row]}, {kind} head {rows[HEAD][row]}{where}. {_OVERFLOW}. {_KEPT}"
    )


def _not_finite(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """(n,) rows of (n,) or (n, w) with a value that is not finite."""
    wrong = ~np.isfinite(values)
    return wrong if wrong.ndim == 1 else np.asarray(wrong.any(axis=1))
