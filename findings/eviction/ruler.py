"""Eleven tasks of RULER as tokens of a model, made by lm-eval without a network.

lm-eval's haystack is a data set of essays; here it is the book of the report, and sentences are
split after their last mark. The questions of the other two tasks are data sets, so they are left
out. A sample is cut in two before its question; only the part before it is compressed.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from findings.eviction.plan import REPORT, RULER_TASKS, Plan, ruler
from findings.eviction.texts import text_of

_SAMPLES = 400  # of which those are taken whose lengths differ least
_PADDING = -1
_QUESTION = re.compile(r"\n(?=What (?:is|are all) the special magic |Question: )")
_NEEDLES: dict[str, dict[str, Any]] = {
    "niah_single_1": {"type_haystack": "repeat", "type_needle_v": "numbers"},
    "niah_single_2": {"type_haystack": "essay", "type_needle_v": "numbers"},
    "niah_single_3": {"type_haystack": "essay", "type_needle_v": "uuids"},
    "niah_multikey_1": {
        "type_haystack": "essay",
        "type_needle_v": "numbers",
        "num_needle_k": 4,
    },
    "niah_multikey_2": {"type_haystack": "needle", "type_needle_v": "numbers"},
    "niah_multikey_3": {
        "type_haystack": "needle",
        "type_needle_k": "uuids",
        "type_needle_v": "uuids",
    },
    "niah_multivalue": {
        "type_haystack": "essay",
        "type_needle_v": "numbers",
        "num_needle_v": 4,
    },
    "niah_multiquery": {
        "type_haystack": "essay",
        "type_needle_v": "numbers",
        "num_needle_q": 4,
    },
}
"""The arguments that lm-eval gives for its tasks."""


def ruler_tokens(tokenizer: Any, plan: Plan) -> dict[str, npt.NDArray[Any]]:
    """Arrays of every task.

    `ruler:TASK` (texts, context) has the contexts, `…/questions` (texts, m) the question
    and the beginning of the answer, with -1 before them, and `…/references` (texts, answers) what
    the answer must contain.
    """
    os.environ["LOCAL_RANK"] = "1"  # lm-eval then downloads no rules for sentences
    makers = _makers(tokenizer, plan)
    found: dict[str, npt.NDArray[Any]] = {}
    for name in RULER_TASKS:
        random.seed(plan.seed)
        np.random.seed(plan.seed)  # noqa: NPY002 lm-eval draws from it
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            samples = makers[name]()
        contexts, questions, references = _equally_long(tokenizer, samples, plan.ruler_texts)
        length = max(map(len, questions))
        padded = [[_PADDING] * (length - len(one)) + one for one in questions]
        found[ruler(name)] = np.array(contexts, np.int32)
        found[f"{ruler(name)}/questions"] = np.array(padded, np.int32)
        found[f"{ruler(name)}/references"] = np.array(references)
    return found


def _makers(tokenizer: Any, plan: Plan) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """The function of every task that makes its samples."""
    from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, prepare_niah, vt_utils

    prepare_niah.sent_tokenize = _sentences
    essay = re.sub(r"\s+", " ", text_of(REPORT)).split(" ")

    def needles(how: dict[str, Any]) -> list[dict[str, Any]]:
        kind = how["type_haystack"]
        haystack = essay if kind == "essay" else prepare_niah.get_haystack(kind)
        made: list[dict[str, Any]] = prepare_niah.generate_samples(
            haystack,
            max_seq_length=plan.main,
            template=niah_utils.TEMPLATE,
            num_samples=_SAMPLES,
            TOKENIZER=tokenizer,
            **{"type_needle_k": "words", **how},
        )
        return made

    found: dict[str, Callable[[], list[dict[str, Any]]]] = {
        name: lambda how=how: needles(how)  # type: ignore[misc]
        for name, how in _NEEDLES.items()
    }
    found["vt"] = lambda: vt_utils.sys_vartrack_w_noise_random(
        tokenizer,
        _SAMPLES,
        plan.main,
        icl_example=vt_utils.sys_vartrack_w_noise_random(tokenizer, 1, 500, incremental=5)[0],
    )
    found["cwe"] = lambda: cwe_utils.sys_word_pair_random(_SAMPLES, plan.main, tokenizer)
    found["fwe"] = lambda: fwe_utils.sys_kwext(tokenizer, plan.main, _SAMPLES)
    return found


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?]) ", text)


def _equally_long(
    tokenizer: Any, samples: list[dict[str, Any]], number: int
) -> tuple[list[list[int]], list[list[int]], list[list[str]]]:
    """Contexts, questions and references of the samples whose lengths differ least.

    Line breaks before the shorter contexts make them equally long.
    """

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    parts = []
    for sample in samples:
        context, question = _split(sample["input"])
        asked = ids(f"\n{question} {sample['gen_prefix']}")
        parts.append((ids(context), asked, list(sample["outputs"])))
    parts.sort(key=lambda one: len(one[0]))
    lengths = np.array([len(context) for context, _, _ in parts])
    first = int(np.argmin(lengths[number - 1 :] - lengths[: len(parts) - number + 1]))
    contexts, questions, references = zip(*parts[first : first + number], strict=True)
    (line_break,) = ids("\n")
    longest = len(contexts[-1])
    filled = [[line_break] * (longest - len(one)) + one for one in contexts]
    return filled, list(questions), list(references)


def _split(text: str) -> tuple[str, str]:
    """Before the last question, and the question."""
    place = [one.end() for one in _QUESTION.finditer(text)][-1]
    return text[: place - 1], text[place:]
