"""Texts as tokens, and the values of key heads from a capture of another book."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from transformers import AutoTokenizer

import attention_plasticity as ap
from findings.eviction.plan import CHOICE, COPIES, ORDERS, REPORT, Plan
from qk_sniffer.demo.books import write_pieces
from qk_sniffer.demo.command import capture_demo
from qk_toolkit.arrays import Array

HEADS, TOKENS = "key_heads.csv", "tokens.json"
_SPARE = 4  # pieces of a book, because a piece may have too few tokens
_LOWEST_TOKEN = 256  # smaller numbers are special tokens and single bytes


def prepare(demo: Path, folder: Path, plan: Plan) -> None:
    """Write the texts and the values of key heads, if they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / HEADS).exists():
        dump = capture_demo(demo, CHOICE, plan.captured, plan.captured_texts)
        results = demo / "results" / f"eviction-{plan.captured}"
        _key_heads(ap.analyze_dump(dump, output_dir=str(results))).to_csv(
            folder / HEADS, index=False, na_rep="nan"
        )
    if not (folder / TOKENS).exists():
        texts = _tokens(folder, model_folder(demo), plan)
        (folder / TOKENS).write_text(json.dumps(texts), encoding="utf-8")


def model_folder(demo: Path) -> Path:
    """The checkpoint that the capture made."""
    return next((demo / "model").iterdir())


def read_tokens(folder: Path, texts: str) -> npt.NDArray[np.int64]:
    """(texts, tokens) of a book, or of the copies."""
    return np.array(json.loads((folder / TOKENS).read_text(encoding="utf-8"))[texts])


def read_heads(folder: Path) -> dict[str, Array]:
    """(layers, key heads) of every order."""
    table = pd.read_csv(folder / HEADS)
    layers = table["layer"].nunique()
    return {name: table[name].to_numpy(np.float64).reshape(layers, -1) for name in ORDERS}


def _key_heads(run: Any) -> pd.DataFrame:
    """One row per key head. Columns of query heads are means over the group."""
    row = ["layer", "k_head"]
    heads = run.table("key_heads").sort_values(row, ignore_index=True)
    means = run.head_metrics.groupby(row).mean(numeric_only=True).reset_index(drop=True)
    columns = {name: heads[name] if name in heads else means[name] for name in ORDERS}
    found: pd.DataFrame = heads[row].assign(**columns)
    assert not found.isna().any().any(), "a key head has no value"
    return found


def _tokens(folder: Path, model: Path, plan: Plan) -> dict[str, list[list[int]]]:
    """Tokens of pieces of both books, and of texts with random tokens that come twice."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    lengths = {CHOICE: plan.middle, REPORT: max(plan.contexts)}
    found = {}
    for book, context in lengths.items():
        length, path = context + plan.following, folder / f"{book}.jsonl"
        write_pieces(path, book, plan.texts + _SPARE, length)
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]
        texts = [one[:length] for one in texts if len(one) >= length][: plan.texts]
        assert len(texts) == plan.texts, "too many texts are short"
        found[book] = texts
    found[COPIES] = [
        _with_copy(text, plan, number, len(tokenizer)) for number, text in enumerate(found[REPORT])
    ]
    return found


def _with_copy(text: list[int], plan: Plan, number: int, vocabulary: int) -> list[int]:
    """A text with random tokens in the middle of its context, and again after it."""
    rng = np.random.default_rng([plan.seed, number])
    copied = rng.integers(_LOWEST_TOKEN, vocabulary, plan.copied).tolist()
    half = (plan.middle - plan.copied) // 2
    return [*text[:half], *copied, *text[half : plan.middle - plan.copied], *copied]
