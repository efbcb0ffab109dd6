"""What heads do, for the page: roles, scores, a text per head, words, and rotary bands.

Texts are stored once, in the compressed block of the run, so that no token is part of the HTML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.metrics import ALIGNED, PHASE
from attention_plasticity.page.attention import distant_from
from attention_plasticity.page.ordered import ordered
from attention_plasticity.page.payload import Column
from attention_plasticity.page.role_sentences import Measured, head_sentence
from attention_plasticity.roles import NAMES, REPEATED_DECIDE, UNSURE, default_thresholds
from attention_plasticity.roles import ROLES as DEFINED
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import (
    COLOURS,
    DARK_COLOURS,
    SCORES,
    repeated_decides,
    require_roles,
)
from attention_plasticity.tables.intervals import head_half_width, row_half_width
from attention_plasticity.tables.profiles import HEAD

KINDS = ("strongest", "typical")
_SHOWN = (
    *("repeated_induction", "repeated_duplicate", "repeated_previous"),
    *("induction_excess", "duplicate_excess", "previous_mass", "self_mass", "local_mass"),
    *("far_mass", "first_mass", "sink_rate", "top_weight", "effective_keys"),
)
"""The scores of the card, in its order."""
_BANDS = ("norm_product", "variance_share")
_LONGEST = 40  # characters of a token
Tables = dict[str, dict[str, Column]]


def role_words() -> dict[str, Any]:
    """Names and meanings of roles, and the scores of the card; the same for all runs."""
    by_name = {metric.column: metric for metric in SCORES}
    return {
        "names": [*NAMES, UNSURE],
        "meanings": {role.name: role.meaning for role in DEFINED},
        "scores": [
            {
                "name": name,
                "label": by_name[name].label,
                "meaning": by_name[name].meaning,
                "decimals": by_name[name].decimals,
            }
            for name in _SHOWN
        ],
        "decide": REPEATED_DECIDE,
        "kinds": list(KINDS),
        "colours": {"light": COLOURS, "dark": DARK_COLOURS},
    }


def role_content(run: FinishedRun, heads: pd.DataFrame) -> tuple[dict[str, Any] | None, Tables]:
    """The description of the roles of a run, and their tables; None and no table without roles."""
    if not run.has("roles"):
        return None, {}
    table = ordered(run.table("roles"), HEAD, run.path("roles"))
    require_roles(table, run.path("roles"))
    texts = _Texts()
    tables: Tables = {"roles": _role_columns(run, table, heads, texts)}
    if run.has("words"):
        tables["words"] = _word_columns(run.table("words"), texts)
    if run.has("bands"):
        bands = ordered(run.table("bands"), [*HEAD, "band"], run.path("bands"))
        tables["bands"] = _band_columns(bands)
    tables["texts"] = {"utf8": texts.utf8}
    about = {
        "thresholds": _thresholds(run),
        "has_intervals": any(name.endswith("_half_width") for name in tables["roles"]),
        "why_no_words": why_no_words(run),
    }
    return about, tables


def why_no_words(run: FinishedRun) -> str:
    """Why the run has no words; empty if it has them."""
    if run.has("words"):
        return ""
    capture = (run.dump.get("capture") or {}).get("capture")
    if isinstance(capture, dict) and capture.get("tokens") is False:
        return "the capture left out tokens (capture.tokens: false)"
    return "the dump has no tokens"


class _Texts:
    """Texts of a run, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, texts: Iterable[str]) -> npt.NDArray[np.int64]:
        """The numbers of some texts; new texts are added."""
        found = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
        return np.array(found, np.int64)

    @property
    def utf8(self) -> npt.NDArray[np.uint8]:
        """All texts in the order of their numbers, as the bytes of a JSON list."""
        return np.frombuffer(json.dumps(list(self._numbers)).encode("ascii"), np.uint8)


def _role_columns(
    run: FinishedRun, table: pd.DataFrame, heads: pd.DataFrame, texts: _Texts
) -> dict[str, Column]:
    """One row per head: numbers of its roles, scores with half widths, the number of its text."""
    numbers = {name: number for number, name in enumerate((*NAMES, UNSURE))}
    found: dict[str, Column] = {name: table[name].to_numpy() for name in HEAD}
    found["role"] = np.array([numbers[name] for name in table["role"]])
    found["likely"] = np.array([numbers[name] for name in table["likely_role"]])
    found["repeated_decide"] = repeated_decides(table)
    halves = {metric.column: row_half_width(table, metric.column) for metric in SCORES}
    for name in _SHOWN:
        if table[name].notna().any():
            found[name] = table[name].to_numpy(np.float32)
            if np.isfinite(halves[name]).any():
                found[f"{name}_half_width"] = halves[name].astype(np.float32)
    found["text"] = texts.numbers(_sentences(run, table, heads, halves))
    return found


def _sentences(
    run: FinishedRun, table: pd.DataFrame, heads: pd.DataFrame, halves: dict[str, Any]
) -> Iterable[str]:
    plasticity = {name: _measured_by_head(run, heads, name) for name in (ALIGNED, PHASE)}
    values = {metric.column: table[metric.column].to_numpy(np.float64) for metric in SCORES}
    thresholds = _thresholds(run)
    labels = table[[*HEAD, "role", "likely_role"]].itertuples(index=False, name=None)
    for row, (layer, head, role, likely) in enumerate(labels):
        scores = {
            name: Measured(float(values[name][row]), float(halves[name][row])) for name in values
        }
        aligned, phase = (
            plasticity[name].get((layer, head), Measured(math.nan)) for name in (ALIGNED, PHASE)
        )
        yield head_sentence(
            *(role, likely, scores, aligned, phase),
            *(distant_from(run), run.info.get("bin_size"), thresholds),
        )


def _measured_by_head(
    run: FinishedRun, heads: pd.DataFrame, name: str
) -> dict[tuple[int, int], Measured]:
    """A metric of every head, by layer and head."""
    halves = head_half_width(heads, name, run.influences)
    rows = zip(heads["layer"], heads["q_head"], heads[name], halves, strict=True)
    return {(layer, head): Measured(float(value), float(half)) for layer, head, value, half in rows}


def _thresholds(run: FinishedRun) -> dict[str, float]:
    """The threshold of every column that decides about a role."""
    given = run.settings.get("role_thresholds")
    named = {**default_thresholds(), **(given if isinstance(given, dict) else {})}
    found: dict[str, float] = {}
    for role in DEFINED:
        found[role.column] = named[role.name]
        if role.repeated_column is not None:
            found[role.repeated_column] = named[role.repeated_column]
    return found


def _word_columns(words: pd.DataFrame, texts: _Texts) -> dict[str, Column]:
    """One row per head and example, the strongest first."""
    table = words[words["kind"].isin(KINDS)]
    table = table.assign(kind=table["kind"].map(KINDS.index))
    table = table.sort_values([*HEAD, "kind"], kind="stable", ignore_index=True)
    return {
        **{name: table[name].to_numpy() for name in (*HEAD, "kind")},
        "distance": table["distance"].to_numpy(np.float64),
        "weight": table["weight"].to_numpy(np.float32),
        "on_first": (table["k_position"] == 0).to_numpy(np.int64),  # 1: the key is token 0
        "query": texts.numbers(map(_short, table["query_token"])),
        "key": texts.numbers(map(_short, table["key_token"])),
    }


def _short(token: str) -> str:
    return token if len(token) <= _LONGEST else f"{token[:_LONGEST]}…"


def _band_columns(bands: pd.DataFrame) -> dict[str, Column]:
    """One row per head and band, with halves of 95 % intervals."""
    found: dict[str, Column] = {name: bands[name].to_numpy() for name in (*HEAD, "band")}
    with np.errstate(over="ignore"):
        for name in ("wavelength", *_BANDS):
            found[name] = bands[name].to_numpy(np.float64).astype(np.float32)
        for name in _BANDS:
            half = row_half_width(bands, name)
            found[f"{name}_half_width"] = half.astype(np.float32)
    return found
