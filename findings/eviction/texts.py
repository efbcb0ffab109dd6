"""Texts of the study as tokens of a model.

Books come with this package, Python source is that of the installed pandas, French prose is the
handbook of Debian (its package is fetched with apt-get), and records are drawn from a fixed seed.
"""

from __future__ import annotations

import html
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from findings.eviction.plan import (
    CHOICE,
    CODE,
    FRENCH,
    OTHERS,
    RECORDS,
    REPORT,
    Plan,
    copies_in,
    needles_in,
)
from qk_sniffer.demo.books import read_book

Tokens = npt.NDArray[np.int64]

HANDBOOK = "debian-handbook"
_LOWEST_TOKEN = 256  # smaller numbers are special tokens and single bytes
_PADDING = -1
_WORDS = """
amber anchor apple arrow basket beacon bishop bottle bridge butter candle canyon carpet castle
cherry circle cotton copper desert dragon engine falcon feather forest garden ginger glacier
guitar hammer harbor helmet hollow island jacket jungle kettle ladder lantern lemon magnet
marble meadow mirror monkey mountain needle ocean orange orchid paddle pebble pencil pepper
pillow planet pocket rabbit ribbon river rocket saddle salmon sandal shadow silver spider
"""
_FACT = "\nOne of the special magic numbers for {word} is: {number}.\n"
_QUESTION = (
    "\n\nWhat is the special magic number for {word} mentioned in the provided text? The special "
    "magic number for {word} mentioned in the provided text is:"
)


def text_of(name: str) -> str:
    """A long text."""
    made: dict[str, Callable[[], str]] = {CODE: _code, FRENCH: _french, RECORDS: _records}
    return made[name]() if name in made else read_book(name)


def model_tokens(tokenizer: Any, plan: Plan) -> dict[str, Tokens]:
    """All arrays of tokens, by name.

    `capture/BOOK` (texts, tokens) and `BOOK` (texts, context + following) are different pieces of a
    text. `needles:BOOK/CONTEXT` (texts, context) has numbers in it, and `…/questions` (texts,
    needles, tokens) asks for each, with its answer; -1 fills the end. `…/answers` is 1 on answers.
    """
    found: dict[str, Tokens] = {}
    for book in (CHOICE, REPORT, *OTHERS):
        stream = np.array(tokenizer(text_of(book), add_special_tokens=False)["input_ids"])
        long = book in (CHOICE, REPORT)
        length = max(plan.contexts) if long else plan.main
        sizes = {book: (plan.texts, length + plan.following)}
        if book != REPORT:
            sizes[f"capture/{book}"] = (plan.captured_texts, plan.captured)
        start = 0
        for name, (texts, tokens) in sizes.items():
            part = stream[start : start + texts * tokens]
            if len(part) < texts * tokens:
                raise SystemExit(f"{book}: has {len(stream):,} tokens; {name} needs more")
            found[name] = part.reshape(texts, tokens)
            start += texts * tokens
        if long:
            for context in plan.contexts:
                found |= _needles(tokenizer, book, found[book], context, plan)
    copied = [
        _with_copy(text, plan, number, len(tokenizer)) for number, text in enumerate(found[REPORT])
    ]
    found[copies_in(REPORT)] = np.stack(copied)
    return found


def _with_copy(text: Tokens, plan: Plan, number: int, vocabulary: int) -> Tokens:
    """(main context + copied,) random tokens in the middle of a context, and again after it."""
    rng = np.random.default_rng([plan.seed, number])
    copied = rng.integers(_LOWEST_TOKEN, vocabulary - _LOWEST_TOKEN, plan.copied)
    half = (plan.main - plan.copied) // 2
    return np.concatenate([text[:half], copied, text[half : plan.main - plan.copied], copied])


def _needles(
    tokenizer: Any, book: str, texts: Tokens, context: int, plan: Plan
) -> dict[str, Tokens]:
    """Numbers at even depths of every text, and one question for each."""

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    contexts, questions, answers = [], [], []
    for number, text in enumerate(texts):
        rng = np.random.default_rng([plan.seed, 1, context, number])
        words = rng.choice(_WORDS.split(), plan.needles, replace=False)
        values = rng.integers(10**6, 10**7, plan.needles)
        facts = [
            ids(_FACT.format(word=word, number=value))
            for word, value in zip(words, values, strict=True)
        ]
        filled = context - sum(map(len, facts))
        parts = np.array_split(text[:filled], plan.needles + 1)
        pieces = [*parts[0]]
        for fact, part in zip(facts, parts[1:], strict=True):
            pieces += [*fact, *part]
        contexts.append(pieces)
        asked = [ids(_QUESTION.format(word=word)) for word in words]
        replies = [ids(f" {value}") for value in values]
        questions.append([q + a for q, a in zip(asked, replies, strict=True)])
        answers.append([[0] * len(q) + [1] * len(a) for q, a in zip(asked, replies, strict=True)])
    length = max(len(one) for rows in questions for one in rows)
    name = f"{needles_in(book)}/{context}"
    return {
        name: np.array(contexts),
        f"{name}/questions": _padded(questions, length, _PADDING),
        f"{name}/answers": _padded(answers, length, 0),
    }


def _padded(rows: list[list[list[int]]], length: int, fill: int) -> Tokens:
    """Lists as an array (texts, needles, length)."""
    return np.array(
        [[one + [fill] * (length - len(one)) for one in texts] for texts in rows], np.int64
    )


def _code() -> str:
    """The source of the installed pandas, without its tests."""
    import pandas as pd

    folder = Path(pd.__file__).parent / "core"
    files = sorted(folder.rglob("*.py"))
    return "\n\n".join(one.read_text(encoding="utf-8") for one in files)


def _french() -> str:
    """The French pages of the handbook, without mark-up."""
    with tempfile.TemporaryDirectory() as place:
        run = {"cwd": place, "check": True, "capture_output": True}
        subprocess.run(["apt-get", "download", HANDBOOK], **run)  # type: ignore[call-overload] # noqa: S607
        package = next(Path(place).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, place], **run)  # type: ignore[call-overload] # noqa: S607
        pages = sorted(Path(place).glob("usr/share/doc/*/html/fr-FR/*.html"))
        return "\n\n".join(_plain(one.read_text(encoding="utf-8")) for one in pages)


def _plain(page: str) -> str:
    """The text of an HTML page; a line of every paragraph."""
    page = re.sub(r"(?s)<(script|style|head|pre)\b.*?</\1>", " ", page)
    page = re.sub(r"</(p|div|li|h\d|dt|dd|tr)>", "\n", page)
    page = html.unescape(re.sub(r"<[^>]*>", "", page))
    lines = (" ".join(line.split()) for line in page.splitlines())
    return "\n".join(line for line in lines if len(line) > 40)


def _records() -> str:
    """Lines of JSON with the same fields."""
    return "\n".join(_lines(20_000))


def _lines(number: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for place in range(number):
        first, second = rng.choice(_WORDS.split(), 2)
        yield (
            f'{{"id": {place}, "customer": "{first}-{rng.integers(1000)}", "item": "{second}", '
            f'"price": {rng.integers(100, 99999) / 100}, "count": {rng.integers(1, 20)}, '
            f'"status": "{rng.choice(["new", "paid", "sent", "returned"])}"}}'
        )
