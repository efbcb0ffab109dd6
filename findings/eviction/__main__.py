"""`python -m findings.eviction`: values of key heads, choice of the rule, outcomes, tables.

A folder of a model below OUT has its tokens, values and outcomes. Every step continues where it
was interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from findings.eviction.budgets import RULES
from findings.eviction.choice import answers, preferred
from findings.eviction.plan import (
    NEEDLES,
    NOTHING,
    RULER,
    SMALL,
    SOURCE,
    Condition,
    Plan,
    choice_conditions,
    full,
    main_source,
    report_conditions,
    source_name,
    sources,
)
from findings.eviction.results import Results

TOKENS, RULER_TOKENS, VALUES, CHOSEN, MODEL, CLAIMS = (
    *("tokens.npz", "ruler.npz", "key_heads.csv", "chosen_rule.json", "model.json", "claims"),
)
STEPS = ("tokens", "values", "choice", "report", "tables")
_SECONDS = 30.0  # between two lines about progress


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the steps."""
    given = _given(arguments)
    plan = SMALL if given.small else Plan()
    end = time.monotonic() + given.seconds
    folders = [given.out / path.name for path in given.model]
    if given.worker:
        _work(given.model[0], folders, plan, given, end)
        return
    if "tokens" in given.steps:
        for model, folder in zip(given.model, folders, strict=True):
            write_tokens(model, folder, plan)
    if "values" in given.steps:
        _run_workers("values", given, plan, end)
    if "choice" in given.steps:
        _run_workers("choice", given, plan, end)
        choose(folders, plan)
    if "report" in given.steps:
        _run_workers("report", given, plan, end)
    if "tables" in given.steps:
        from findings.eviction.tables import write_all

        write_all(folders, plan, page=not given.small)


def write_tokens(model: Path, folder: Path, plan: Plan) -> None:
    """Write the texts as tokens of a model, and the tasks of RULER, if they are not there."""
    from transformers import AutoTokenizer

    from findings.eviction.ruler import ruler_tokens
    from findings.eviction.texts import model_tokens

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    if not (folder / TOKENS).exists():
        found = model_tokens(tokenizer, plan)
        small = {name: tokens.astype(np.int32) for name, tokens in found.items()}
        np.savez_compressed(folder / TOKENS, **small)  # type: ignore[arg-type]
    if not (folder / RULER_TOKENS).exists():
        tasks = ruler_tokens(tokenizer, plan)
        np.savez_compressed(folder / RULER_TOKENS, **tasks)  # type: ignore[arg-type]


def choose(folders: Sequence[Path], plan: Plan) -> None:
    """Write the chosen rule, and those that a part of the choice prefers, into every folder."""
    found = preferred([Results(folder, plan) for folder in folders], plan)
    print(f"rules: {found}", file=sys.stderr, flush=True)
    for folder in folders:
        (folder / CHOSEN).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _run_workers(step: str, given: argparse.Namespace, plan: Plan, end: float) -> None:
    """Run processes for a step of all models, and wait for them."""
    own = [sys.executable, "-m", "findings.eviction", "--worker", "--steps", step]
    own += ["--out", str(given.out), "--device", given.device]
    own += ["--small" if given.small else "--no-small", "--cpus", str(given.cpus)]
    started = []
    for model in given.model:
        for number in range(1 if step == "values" else given.workers):
            seconds = f"{end - time.monotonic():.0f}" if np.isfinite(end) else "inf"
            words = ["--model", str(model), "--part", str(number), "--seconds", seconds]
            started.append(subprocess.Popen([*own, *words]))
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"{step}: a process failed")


def _work(
    path: Path, folders: Sequence[Path], plan: Plan, given: argparse.Namespace, end: float
) -> None:
    """One process of a step, for one model."""
    from findings.eviction.contexts import load_model

    folder, (step,) = folders[0], given.steps
    model = load_model(path, given.device)
    tokens: dict[str, Any] = {}
    for name in (TOKENS, RULER_TOKENS):
        with np.load(folder / name) as file:
            tokens |= {key: file[key] for key in file.files}
    for key, one in tokens.items():
        tokens[key] = one.tolist() if one.dtype.kind == "U" else one.astype(np.int64)
    if step == "values":
        write_all_values(model, tokens, folder, plan, given.cpus)
        _describe(path, model, folder)
        return
    with closing(Work(model, tokens, folder, plan, end, given.part)) as work:
        if step == "choice":
            work.run(choice_conditions(plan, tuple(RULES)))
        else:
            found = json.loads((folder / CHOSEN).read_text(encoding="utf-8"))
            work.rule = found.pop("all")
            others = tuple(dict.fromkeys(one for one in found.values() if one != work.rule))
            work.run(report_conditions(plan, others))


def write_all_values(
    model: Any, tokens: dict[str, Any], folder: Path, plan: Plan, cpus: int
) -> None:
    """The values of key heads from every capture that is missing."""
    from findings.eviction.values import captured_values, read_values, workers, write_values

    found = read_values(folder / VALUES)
    missing = [one for one in sources(plan) if source_name(*one) not in found]
    with workers(cpus) as apply:
        for book, length, texts in missing:
            name, began = source_name(book, length, texts), time.monotonic()
            found[name] = captured_values(
                model,
                tokens[f"capture/{book}"][:texts, :length],
                folder / "dump",
                apply,
                attention=name == main_source(plan),
            )
            write_values(folder / VALUES, found)
            _say(f"{folder.name}: values of {name}, {time.monotonic() - began:.0f} s")


def _describe(path: Path, model: Any, folder: Path) -> None:
    """Record what the model is."""
    import torch
    import transformers

    config, origin = model.config, path / "origin.json"
    facts = {
        "layers": config.num_hidden_layers,
        "key_heads": config.num_key_value_heads,
        "query_heads": config.num_attention_heads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU",
        "weights_sha256": weights_hash(path),
        **(json.loads(origin.read_text(encoding="utf-8")) if origin.exists() else {}),
    }
    (folder / MODEL).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def weights_hash(folder: Path) -> str:
    """The sha256 of the files of the weights, in the order of their names."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


class Work:
    """Runs conditions that have no outcome and that no other process has claimed."""

    def __init__(
        self, model: Any, tokens: dict[str, Any], folder: Path, plan: Plan, end: float, part: str
    ) -> None:
        self.rule, self._end = "", end
        self._model, self._tokens, self._folder, self._plan = model, tokens, folder, plan
        self._results, self._part = Results(folder, plan, part), part
        self._claims = ExitStack()  # locked files
        self._values: dict[str, Any] = {}
        self._budget = folder / f"budget-{part}.npy"
        self._contexts: tuple[tuple[str, int], Any] | None = None

    def close(self) -> None:
        """Give back what this process has claimed."""
        self._claims.close()

    def run(self, lists: Iterable[list[Condition]]) -> None:
        """Run all conditions until the time is over; those of a list have the same texts."""
        for number, conditions in enumerate(lists):
            first = conditions[0]
            for scorer in dict.fromkeys(one.scorer for one in conditions):
                own = [one for one in conditions if one.scorer == scorer]
                if scorer == NOTHING or all(one in self._results for one in own):
                    continue  # `_contexts_of` makes the outcomes of nothing
                if time.monotonic() > self._end:
                    return
                if self._claim(f"{first.texts}-{first.context}-{number}-{scorer}"):
                    self._results = Results(self._folder, self._plan, self._part)
                    self._run_scorer([one for one in own if one not in self._results])

    def _claim(self, name: str) -> bool:
        """Whether this process is the first that wants to do this. A dead process has no claims."""
        folder = self._folder / CLAIMS
        folder.mkdir(exist_ok=True)
        claim = (folder / name.replace(":", "-")).open("w")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claim.close()
            return False
        self._claims.enter_context(claim)
        return True

    def _run_scorer(self, conditions: list[Condition]) -> None:
        """Conditions of one scorer, whose scores are computed once."""
        from findings.eviction.presses import press_of, scores_of
        from findings.eviction.values import read_values

        if not conditions:
            return
        first, began, said = conditions[0], time.monotonic(), time.monotonic()
        if self._is_unanswered(first.texts, first.context):
            return
        contexts = self._contexts_of(first.texts, first.context)
        if self._is_unanswered(first.texts, first.context):
            return
        self._values = read_values(self._folder / VALUES)
        conditions = [one for one in conditions if self._has_values(one)]
        scores = scores_of(first.scorer, contexts, first.context, self._plan)
        done = 0
        for condition in conditions:
            if time.monotonic() > self._end:
                break
            press = press_of(condition, scores, self._values, self.rule, self._budget, self._plan)
            self._results.add(condition, contexts.outcomes(press))
            done += 1
            if time.monotonic() - said > _SECONDS:
                said = time.monotonic()
                _say(f"  {first.texts}, {first.scorer}: {done} of {len(conditions)} conditions")
        where = f"{self._folder.name}: {first.texts}, {first.context} tokens, {first.scorer}"
        _say(f"{where}: {done} conditions, {time.monotonic() - began:.1f} s")

    def _has_values(self, condition: Condition) -> bool:
        """Whether the capture that the budgets come from is done."""
        kind, _, source = condition.allocation.partition(":")
        return kind != SOURCE or source in self._values

    def _contexts_of(self, texts: str, context: int) -> Any:
        """The contexts of some texts; the last ones are kept."""
        place = texts, context
        if self._contexts is None or self._contexts[0] != place:
            self._contexts = None  # free the memory
            self._contexts = place, self._make_contexts(texts, context)
            whole = full(texts, context)
            if whole not in self._results:
                self._results.add(whole, self._contexts[1].outcomes(None))
        return self._contexts[1]

    def _is_unanswered(self, texts: str, context: int) -> bool:
        """Whether it is known that the model answers too little with a full cache."""
        is_task = texts.startswith((f"{NEEDLES}:", f"{RULER}:"))
        known = is_task and full(texts, context) in self._results
        return known and not answers(self._results, self._plan, texts, context)

    def _make_contexts(self, texts: str, context: int) -> Any:
        from findings.eviction.contexts import Answers, Contexts, Questions
        from findings.eviction.plan import CHOICE, COPIES

        plan = self._plan
        if texts.startswith(f"{NEEDLES}:"):
            name = f"{texts}/{context}"
            parts = (self._tokens[f"{name}/{part}"] for part in ("questions", "answers"))
            return Questions(self._model, self._tokens[name], *parts)
        if texts.startswith(f"{RULER}:"):
            questions, right = (
                self._tokens[f"{texts}/{part}"] for part in ("questions", "references")
            )
            return Answers(self._model, self._tokens[texts], questions, right, plan.generated)
        following = plan.followed_choice if texts == CHOICE else plan.following
        following = plan.copied if texts.startswith(f"{COPIES}:") else following
        return Contexts(self._model, self._tokens[texts][:, : context + following], context)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _given(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m findings.eviction", description=__doc__)
    add: Callable[..., Any] = parser.add_argument
    add("--model", type=Path, nargs="+", help="names or folders (default: the model of the demo)")
    add("--out", type=Path, default=Path("eviction"), help="folder of texts, values and outcomes")
    add("--device", choices=["cuda", "cpu"], default="cuda" if _has_gpu() else "cpu")
    small = argparse.BooleanOptionalAction
    add("--small", action=small, help="a smaller table; default on a CPU")
    add("--seconds", type=float, default=float("inf"), help="of all steps; outcomes are kept")
    add("--steps", nargs="+", choices=STEPS, default=STEPS)
    add("--workers", type=int, default=1, help="processes per model that share the device")
    add("--cpus", type=int, default=os.cpu_count() or 1, help="processes that analyse a capture")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    add("--part", default="0", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.small is None:
        given.small = given.device == "cpu"
    if given.model is None:
        from qk_sniffer.demo.weights import demo_model

        given.model = [demo_model(Path("demo-smollm2") / "model", None, _say)]
    return given


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
