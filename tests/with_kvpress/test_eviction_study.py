"""The whole study of evictions on a tiny random model: values, choice, outcomes, continuing."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("kvpress")

from findings.eviction.__main__ import CHOSEN, TOKENS, VALUES, Work, choose, write_all_values
from findings.eviction.budgets import RULES
from findings.eviction.plan import (
    CHOICE,
    FLAT,
    KVZIP,
    OTHERS,
    PLASTICITY,
    REPLAY,
    REPORT,
    RULER,
    RULER_TASKS,
    SMALL,
    Condition,
    choice_conditions,
    copies_in,
    main_source,
    needles_in,
    report_conditions,
    ruler,
    sources,
)
from findings.eviction.results import Results
from findings.eviction.values import read_values
from tiny_models import ARCHITECTURES, VOCABULARY
from tiny_texts import tiny_tokenizer

LAYERS, HEADS, CONTEXT = 4, 2, 96
PLAN = replace(
    SMALL,
    captured=96,
    captured_texts=4,
    fewer_tokens=64,
    contexts=(CONTEXT,),
    following=4,
    followed_choice=4,
    copied=4,
    needles=2,
    ruler_texts=2,
    generated=1,
    answered=0.0,
    random_orders=2,
    random_windows=2,
    sink=2,
    window=4,
    recent=16,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with random tokens."""
    path, rng = tmp_path_factory.mktemp("study"), np.random.default_rng(0)

    def drawn(*shape):
        return rng.integers(8, VOCABULARY, shape)

    found = {name: drawn(PLAN.texts, CONTEXT + 4) for name in (CHOICE, REPORT, *OTHERS)}
    found[copies_in(REPORT)] = drawn(PLAN.texts, CONTEXT + 4)
    found |= {f"capture/{name}": drawn(4, 96) for name in (CHOICE, *OTHERS)}
    for book in (CHOICE, REPORT):
        name = f"{needles_in(book)}/{CONTEXT}"
        questions = drawn(PLAN.texts, 2, 2)
        answers = np.zeros((PLAN.texts, 2, 2), int)
        answers[:, :, 1] = 1
        found |= {name: drawn(PLAN.texts, CONTEXT)}
        found |= {f"{name}/questions": questions, f"{name}/answers": answers}
    for task in map(ruler, RULER_TASKS):
        found |= {task: drawn(PLAN.ruler_texts, CONTEXT)}
        found |= {f"{task}/questions": drawn(PLAN.ruler_texts, 3)}
    np.savez(path / TOKENS, **found)
    tiny_tokenizer().save_pretrained(path)
    return path


def work(folder, seconds=float("inf")):
    import time

    model = ARCHITECTURES["llama"].model("sdpa")
    with np.load(folder / TOKENS) as file:
        tokens = {name: file[name].astype(np.int64) for name in file.files}
    references = [["a"], ["b", "c"]]
    tokens |= {f"{ruler(task)}/references": references for task in RULER_TASKS}
    model.config.name_or_path = model.name_or_path = str(folder)
    if not (folder / VALUES).exists():
        write_all_values(model, tokens, folder, PLAN, cpus=1)
    return Work(model, tokens, folder, PLAN, time.monotonic() + seconds, "0")


def test_the_study_continues_and_has_all_outcomes(folder, monkeypatch):
    monkeypatch.setattr("kvpress.presses.snapkv_press.SnapKVPress.__init__", _small_window)
    monkeypatch.setattr("findings.eviction.contexts.Contexts.replayed", _random_replay)
    first = work(folder)
    values = read_values(folder / VALUES)
    assert list(values) == [
        "moby-dick/96/4",
        "moby-dick/96/2",
        "moby-dick/64/2",
        *(f"{one}/96/4" for one in OTHERS),
    ]
    assert values[main_source(PLAN)][PLASTICITY].shape == (LAYERS, HEADS)
    assert len(values) == len(sources(PLAN))
    work(folder, seconds=-1.0).run(choice_conditions(PLAN, tuple(RULES)))
    assert not list(folder.glob("outcomes-*.jsonl"))
    first.run(choice_conditions(PLAN, tuple(RULES)))
    choose([folder], PLAN)
    rule = json.loads((folder / CHOSEN).read_text())["all"]
    assert rule in RULES
    first.rule = rule
    first.run(report_conditions(PLAN, (rule,)))
    lines = (folder / "outcomes-0.jsonl").read_text()
    whole = lines.splitlines(keepends=True)
    (folder / "outcomes-0.jsonl").write_text(
        "".join(whole[: len(whole) // 2]) + '{"condition": "ki'
    )
    other = work(folder)
    other.run(choice_conditions(PLAN, tuple(RULES)))  # the first process still has the claims
    assert len((folder / "outcomes-0.jsonl").read_text().splitlines()) == len(whole) // 2
    first.close()
    other.close()
    again = work(folder)
    again.rule = rule
    again.run([*choice_conditions(PLAN, tuple(RULES)), *report_conditions(PLAN, (rule,))])
    assert sorted((folder / "outcomes-0.jsonl").read_text().splitlines()) == sorted(
        lines.splitlines()
    )
    again.close()
    results = Results(folder, PLAN)
    lists = [*choice_conditions(PLAN, tuple(RULES)), *report_conditions(PLAN, (rule,))]
    planned = [one for conditions in lists for one in conditions]
    assert all(one in results for one in planned)
    assert len({one.name for one in planned}) <= lines.count("\n")
    tasks = [one for one in planned if one.texts.startswith(f"{RULER}:")]
    assert len(tasks) > len(RULER_TASKS)
    assert all(set(results.of(one, "right")) <= {0.0, 0.5, 1.0} for one in tasks)
    rest = [one for one in planned if one not in tasks]
    assert all((results.of(one) >= -1e-6).all() for one in rest)  # KL
    own, other = (Condition(REPORT, CONTEXT, "snapkv", 0.5, one) for one in (FLAT, PLASTICITY))
    assert (results.of(own) != results.of(other)).any()
    assert Condition(REPORT, CONTEXT, REPLAY, 0.5, KVZIP) in results


def _small_window(self, compression_ratio=0.0):
    """The default window of 64 tokens needs longer contexts."""
    vars(self).update(compression_ratio=compression_ratio, window_size=8, kernel_size=5)


def _random_replay(self):
    """A model without a tokenizer cannot repeat its context."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.rand(len(self._ids), HEADS, CONTEXT, generator=generator) for _ in range(LAYERS)]
