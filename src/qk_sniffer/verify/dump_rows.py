"""Check the rows of a dump: its first text is captured again with transformers.

The dump may come from another engine. The settings are those that `dump.json` records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qk_dump.checks import rules_of
from qk_dump.columns import POSITION, VECTOR
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.reader import read_head
from qk_dump.rows import Rows
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.setup import Setup, prepare
from qk_sniffer.capture.work import make_batch
from qk_sniffer.config import CaptureConfig, ModelSettings, make_config
from qk_sniffer.text_settings import SyntheticSettings
from qk_toolkit.errors import ConfigError
from qk_toolkit.model_files import Note

TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
GIVEN = ("revision", "gguf_file", "device_map", "trust_remote_code")
"""Settings of the model that a check of a dump takes; the others are those of the capture."""
_OF_ENGINE = ("attn_implementation", "commit", "files", "device")  # in a plan, of its model


@dataclass(frozen=True)
class RowCheck:
    """How far the rows of a layer differ. Columns are those of attention."""

    layer: int
    rows: int
    vectors: float  # relative to the largest number in the vectors of a head
    columns: float  # relative to the largest number in the column, if that is above 1

    @property
    def largest(self) -> float:
        """The larger difference."""
        return max(self.vectors, self.columns)


@dataclass(frozen=True)
class DumpCheck:
    """The layers of a dump, and the text that was captured again."""

    layers: list[RowCheck]
    text: int
    tokens: int
    dtype: str

    @property
    def tolerance(self) -> float:
        """The largest difference of two engines that is expected in this precision."""
        return TOLERANCES[self.dtype]

    @property
    def failed(self) -> list[int]:
        """Layers that differ by more, or by NaN."""
        return [one.layer for one in self.layers if not one.largest <= self.tolerance]


def check_dump(dump: Dump, model: ModelSettings, note: Note) -> DumpCheck:
    """Compare the rows of the first text that has tokens with those of transformers.

    The model may have another name than in the capture. Of `model`, only where it is and how it is
    loaded is used.
    """
    plan = None if dump.manifest is None else dump.manifest.capture
    if plan is None:
        raise ConfigError(
            f"{dump.path}: dump.json records no settings of a capture, so its texts cannot be run "
            "again; leave --dump out"
        )
    setup = prepare(_config(plan, model), Ranks(), note, plan)
    recorded = plan["model"].get("files")
    if recorded is not None and setup.loaded.files != recorded:
        note(f"{model.name}: its files are not those of the model that was captured")
    rows, text, tokens = _first_text(setup)
    checks = []
    for layer in setup.row_plan.wanted:
        heads = [head for head in rows if head.layer == layer.facts.layer and not head.attended]
        pairs = [(rows[head], _stored(dump, head, text, rows[head])) for head in heads]
        checks.append(_compared(dump, layer.facts.layer, pairs))
    return DumpCheck(checks, text, tokens, setup.loaded.dtype)


def _config(plan: Mapping[str, Any], model: ModelSettings) -> CaptureConfig:
    """The settings of the plan, for the given model and transformers."""
    own = {name: value for name, value in plan["model"].items() if name not in _OF_ENGINE}
    if model.name != own["name"]:  # these are of the other place
        own |= {"revision": None, "gguf_file": None}
    given = model.model_dump(include={*GIVEN, "name"}, exclude_none=True)
    dataset = dict(plan["dataset"])
    made = dataset.pop("synthetic", None)
    if made is not None:  # as it is in dump.json
        fields = SyntheticSettings.model_fields
        dataset["synthetic"] = {name: made[name] for name in fields if name in made}
    capture = dict(plan["capture"])
    capture["sampler"] = {
        name: value for name, value in capture["sampler"].items() if name != "chosen"
    }
    return make_config(
        model={**own, **given},
        capture=capture,
        dataset=dataset,
        tokenizer=plan["tokenizer"],
        output={"data_root": "unused", **plan["output"]},
    )


def _first_text(setup: Setup) -> tuple[dict[HeadId, Rows], int, int]:
    """The rows of the first text with tokens, its number and its length."""
    for text in setup.texts:
        batch = make_batch(setup, 0, [text])
        if batch.token_ids:
            rows = setup.row_source.take(batch.texts, batch.token_ids).rows()
            return rows, text.example_id, batch.num_tokens
    raise ConfigError("dataset.path: no text has tokens")


def _stored(dump: Dump, head: HeadId, text: int, like: Rows) -> Rows:
    """The rows of a text in a dump, in the order of their positions, with the columns of `like`."""
    rules = rules_of(dump, head)
    rows = read_head(dump.require_files(head), examples=True, columns=like.columns, rules=rules)
    rows = rows.of_texts(np.array([text]))
    return rows[np.argsort(rows.position, kind="stable")]


def _compared(dump: Dump, layer: int, pairs: list[tuple[Rows, Rows]]) -> RowCheck:
    vectors, columns, number = 0.0, 0.0, 0
    for here, there in pairs:
        if here[POSITION].tolist() != there[POSITION].tolist():
            raise ConfigError(
                f"{dump.path}: layer {layer}: other positions of the text are kept than a capture "
                "keeps; the texts or the tokenizer have changed"
            )
        if not len(here):
            continue
        number += len(here)
        for name, values in here.columns.items():
            if values.dtype.kind != "f" or name not in there.columns:
                continue
            found = _difference(values, there[name], 1e-30 if name == VECTOR else 1.0)
            if name == VECTOR:
                vectors = max(vectors, found)
            else:
                columns = max(columns, found)
    return RowCheck(layer, number, vectors, columns)


def _difference(
    one: npt.NDArray[np.floating], other: npt.NDArray[np.floating], least: float
) -> float:
    """The largest difference, relative to the largest number; NaN belongs to NaN."""
    if (np.isnan(one) != np.isnan(other)).any():
        return float("inf")
    known = ~np.isnan(one)
    if not known.any():
        return 0.0
    largest = float(np.abs(one[known]).max())
    return float(np.abs(one[known] - other[known]).max()) / max(largest, least)
