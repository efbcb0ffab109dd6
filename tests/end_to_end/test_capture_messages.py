"""Every message of a capture and of the Hub is explained, and every explanation has its message.

Runs that produce the messages are in tests/qk_sniffer and tests/qk_dump. Here a table of phrases is
held against the source and against docs/troubleshooting.md, and the source against the table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "troubleshooting.md"
NOT_OF_THE_CAPTURE = (
    "column_rules",
    "layout",
    "parquet",
    "reader",
    "schema",
)  # the analysis tells these
SOURCES = [
    *sorted((ROOT / "src" / "qk_sniffer").glob("*.py")),
    *sorted(
        path
        for path in (ROOT / "src" / "qk_dump").glob("*.py")
        if not path.stem.startswith(NOT_OF_THE_CAPTURE)
    ),
]
ERRORS = {"ConfigError", "DumpError", "HubError", "OutputError", "ToolkitError"}

SETTINGS = (
    "is required",
    "unknown flag",
    "unknown field",
    "unexpected argument",
    "expected name: value lines",
    "expected 'name: value' lines",
    "is not valid YAML",
    "is given twice",
    "must hold all fields, but beside it",
    "no file can have this name",
    ", which no name or path has",
    "holds the character NUL",
    "which does not fit 64 bits",
    "is nested more than",
    "is larger than",
    "padding_side: expected right, got",
    "neither queries nor keys would be captured",
    "is not installed; pip install 'attention-plasticity[capture]'",
    "this version of transformers has no AttentionInterface.get_interface",
)
TEXTS = (
    "does not exist",
    "holds no texts",
    "holds files of several kinds",
    "has no column",
    ", expected text",
    "cannot be read",
    "texts; set max_samples",
    "is out of range; a dump holds at most",
    "has changed since this capture began",
    "is no dataset of the Hub; leave it out",
    "batches of texts, of which the dataset now has only",
)
MODEL = (
    "is a file; give its folder",
    "holds GGUF files only; add --model.gguf_file",
    "its files changed while they were loaded",
    "neither a folder here nor a model that the Hub gave us",
    "needs code of its own; if you trust it, add --model.trust_remote_code",
    "weights are missing or misshapen in the checkpoint and would be random",
    "has no such field",
    "this model has one set of rope parameters per type of layer; put it under",
    "given, expected one of",
    "given, expected something like",
    "its attention does not go through transformers' attention registry",
    "attention is not causal",
    "has no layer number",
    "the number of attention calls changes with the length of a text",
    "every layer attends to compressed keys",
    "rotary angles of this model depend on the longest sequence of a batch",
    "rotary angles of this model depend on the longest earlier sequence",
    "is an encoder-decoder",
    "model.attn_implementation: ",
    "cannot be used here; expected cpu, cuda, cuda:1 or auto",
    "key heads, which do not divide",
    "the tokenizer belongs to another model",
    "holds no vocabulary",
)
HEADS = (
    ", there are",
    "(it makes no attention call)",
    "(it attends to compressed keys, which are not tokens)",
    "an empty list; leave it out to take all of them",
    "given, but only",
    "none of the selected layers has full attention",
    "the layers differ in their heads",
    "vectors before the rotary embedding cannot be told apart in layers",
)
FOLDER = (
    "cannot be used as a folder",
    "is a file, not a folder",
    "holds another dump",
    "holds a capture that differs in",
    "holds a dump of",
    "another capture is writing here",
    "Choose another output.data_root, or add --overwrite to start anew",
    "is not JSON",
    "Repair or remove the file",
    "expected numbers",
    "given, expected 0 to",
    "expected 1 or more",
    "expected 0 or more",
    "the processes cannot find each other to agree on starting anew",
)
STOPS = (
    "out of memory (",
    "the model failed on text",
    "NaN or infinity in the",
    "The model overflows",
    "They do not fit float16",
    "made no attention call for text",
    "though it did for the probe",
    "cannot be written",
    "What was written before is intact",
    "is damaged (",
    "rows were damaged on disk",
    "no position of any text was kept",
    "batches are not captured yet",
    "Capture or download it again, or remove it",
)
NOTES = (
    "finished texts are kept, the same command continues the capture",
    "is complete already; nothing to do",
    "these settings have no effect",
    "texts are done",
    "this rank is done",
    "have no self-attention and are left out",
)
NOTEBOOK = (
    "is not kept; t.heads lists those that are",
    "sequences must be padded on the right",
    "a tap counts positions from 0",
    "the forward gave no queries and keys of its own length",
    "holds a dump already; choose another folder",
    "two threads run the model at once under one tap",
)
VERIFY = (
    "weights differ from 1 only where a query sees 2 or more",
    "its attention function returns no weights to compare with",
    "the model failed on the text (",
    "Choose fewer tokens (--max_length)",
    "layers differ by more than the tolerance",
    " are not tested",
)
HUB = (
    "expected owner/name@branch, or",
    "repo: expected owner/name, got",
    "main holds the list of branches; name one after the model",
    "cannot name a branch; use letters",
    "the dump does not name its model; add --branch NAME",
    "its capture is not finished; run the same capture again, then push",
    "holds no Parquet file; capture the head again, or remove its folder",
    "the dataset is there already and public; nothing was sent",
    "the token holds characters that no token has",
    "no heads found.",
    "Name the branch of a model",
    "Set model_dir to one of:",
    "Heads lie in the branch's root",
    "none of the selected query heads is in the dump",
    "expected a list of integers such as 0-3,8",
    "--max_workers: expected an integer of at least 1",
    " failed: ",
    "needs a token; set HF_TOKEN or run 'hf auth login'",
    "no such dataset, or no right to it",
    "no such dataset; check the name",
    "there is no branch, tag or commit",
    "the dataset is gated; ask for access on its page",
    "the token may not do this",
    "too many requests; wait a while",
    "the Hub answered",
    "no connection (",
    "the answer was garbled on its way",
    "somebody else changed the branch meanwhile",
    "a file is gone from the commit",
    "arrives with other bytes than commit",
    "as a commit, expected 40 hexadecimal digits",
    "the Hub lists a file named",
    "the Hub lists more than",
    "with a size of",
    "as its hash",
    "nothing of it was used. Is HF_ENDPOINT set right?",
    "the Hub redirects in a circle",
    "bytes are to be fetched",
    "leads out of the cache through a link; remove the link",
    "is a link that leaves the dump",
    "; nothing was sent",
    "; remove it, then run the same command again",
    "is damaged; unset HF_HUB_OFFLINE to fetch the dump again",
    "offline, and the cache holds no checked copy of it",
    "is no checked file of the cache; unset HF_HUB_OFFLINE to fetch it",
    "HF_HUB_OFFLINE is set; unset it, then run the same command again",
    ", offline: the checked copy in the cache",
    "main has a card of its own, which is kept",
    "the Hub's viewer shows",
    "what was sent or fetched is kept, the same command continues",
)
PHRASES = (*SETTINGS, *TEXTS, *MODEL, *HEADS, *FOLDER, *STOPS, *NOTES, *NOTEBOOK, *VERIFY, *HUB)


def pieces(text: ast.expr) -> list[str]:
    """What stands literally in a text: all of it, or the pieces between an f-string's braces."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return [
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def literals(path: Path) -> Iterator[str]:
    """Every literal piece of text in a file; docstrings are none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node not in docs:
            yield from pieces(node)


def errors(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, pieces of its message) of every error meant for a person that says something."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ERRORS:
            said = pieces(node.args[0])
            if any(char.isalpha() for piece in said for char in piece):
                yield node.lineno, said


@pytest.fixture(scope="module")
def source() -> list[str]:
    return [piece for path in SOURCES for piece in literals(path)]


@pytest.fixture(scope="module")
def docs() -> str:
    return " ".join(DOCS.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_said_and_explained(phrase: str, source: list[str], docs: str) -> None:
    assert any(phrase in piece for piece in source), f"{phrase!r} is said no more; {DOCS.name} too?"
    assert phrase in docs, f"{phrase!r} is not explained in {DOCS.name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_error_is_missing_from_the_table(path: Path) -> None:
    for line, said in errors(path):
        known = any(phrase in piece for phrase in PHRASES for piece in said)
        assert known, f"{path.name}:{line}: explain it in {DOCS.name} and add it here: {said}"


def test_the_search_finds_errors() -> None:
    assert sum(1 for path in SOURCES for _ in errors(path)) > 50
