"""Files that the preparation writes and the evaluation reads: tokens, values of heads, rankings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from compression_conditions import ORDERS, Floats, Ints, Ranks

_TOKENS, _HEADS, _RANKS = "tokens.json", "key_heads.csv", "ranks"
Tokens = dict[str, dict[str, list[int]]]
"""For `calibration` and `evaluation`: the tokens of texts by their names."""


@dataclass(frozen=True)
class Inputs:
    """The inputs in a folder."""

    folder: Path

    @property
    def has_tokens(self) -> bool:
        """Whether the texts were made."""
        return (self.folder / _TOKENS).exists()

    @property
    def has_heads(self) -> bool:
        """Whether the heads were analysed."""
        return (self.folder / _HEADS).exists()

    def write_tokens(self, tokens: Tokens) -> None:
        """Keep the tokens of texts."""
        _in_one_step(self.folder / _TOKENS, json.dumps(tokens))

    def tokens(self, kind: str) -> dict[str, Ints]:
        """(n,) tokens of every text."""
        content = json.loads((self.folder / _TOKENS).read_text(encoding="utf-8"))[kind]
        return {text: np.array(ids, np.int64) for text, ids in content.items()}

    def write_heads(self, heads: pd.DataFrame) -> None:
        """Keep the values of key heads, one row each, by layer and number."""
        _in_one_step(self.folder / _HEADS, heads.to_csv(index=False))

    def heads(self) -> dict[str, Floats]:
        """(layers, k_heads) values of every order."""
        table = pd.read_csv(self.folder / _HEADS)
        shape = (int(table["layer"].max()) + 1, int(table["k_head"].max()) + 1)
        return {name: table[name].to_numpy(np.float64).reshape(shape) for name in ORDERS}

    def has_ranks(self, text: str) -> bool:
        """Whether the keys of a text were ranked."""
        return self._ranks(text).exists()

    def write_ranks(self, text: str, ranks: dict[str, Ranks]) -> None:
        """Keep the ranks (layers, k_heads, n) of every ranking of a text."""
        path = self._ranks(text)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        arrays: dict[str, npt.ArrayLike] = dict(ranks)
        with draft.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        draft.rename(path)

    def ranks(self, text: str) -> dict[str, Ranks]:
        """(layers, k_heads, n) ranks of every ranking of a text."""
        with np.load(self._ranks(text)) as file:
            return {name: file[name] for name in file.files}

    def _ranks(self, text: str) -> Path:
        return self.folder / _RANKS / f"{text.replace('/', '-')}.npz"


def _in_one_step(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.rename(path)
