"""README.md of a dump: a dataset card. With it, `datasets` loads its parts by name."""

from __future__ import annotations

import html
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from qk_dump.columns import TABLE
from qk_dump.heads import EXAMPLES_FILE, TOKENS_FILE, HeadId
from qk_dump.manifest import DumpManifest
from qk_toolkit.files import read_bounded

MOST_CARD_BYTES = 64 << 20
MOST_CONFIGS = 3000
"""Maximum number of configs in the viewer of the Hub. It shows the first hundred."""

_OTHER_CONFIGS = 5  # heads, queries, keys, examples, tokens

ANALYSIS_FOLDER = "analysis"
"""Folder of a branch with the tables and the page of an analysis."""

HEADS_TABLE = f"{ANALYSIS_FOLDER}/head_metrics.csv"
_MARKER = "<!-- made by attention-plasticity; a new capture replaces this file -->"

_TEXT = """{marker}

# Queries and keys of {model}

Attention queries and keys of a transformer, sampled over the positions of many texts. One folder
per head: `{head}` is layer, head, and `q` for queries or `k` for keys.

{facts}

Every row is one token. Files may lack some of these columns:

| column | rows | meaning |
|---|---|---|
{columns}

`dump.json` holds the settings of the capture{texts}.{attended}

## Load

```python
from datasets import load_dataset

{load}
```
{note}
## Analyse

```bash
attention-plasticity analyze path/to/this/folder results
```
"""

_CONTENT = {
    EXAMPLES_FILE: "tells which text each `example_id` was",
    TOKENS_FILE: "has the text of each `token_id`",
}
_ATTENDED = """ The folder `attended` has further keys, drawn in proportion to the attention they
receive"""
_ATTENDED_CONFIG = "; `attended-l00h00k` is the config of such a file."

_LOAD = """head = load_dataset("path/to/this/folder", {choice}, split="train")"""
_PARTS = """
`queries` has the rows of all query heads and `keys` those of all key heads, one head after the
other.
"""
_ANALYSIS = """`heads` is the table of an analysis, with a row per query head. The folder
`{folder}` has all its tables, and its page if there is one.
"""

_TAGS = ["attention", "interpretability", "queries-and-keys"]
_OVERVIEW = """---
{front}---

{marker}

# Queries and keys

Attention queries and keys of transformers, one branch per model. This branch holds the list alone.

| branch | model | texts |
|---|---|---|
{lines}

```bash
attention-plasticity analyze {path}
```

```python
from datasets import load_dataset

head = load_dataset("{repo}", "l00h00q", revision={revision}, split="train")
```
"""


def card(
    manifest: DumpManifest,
    heads: Sequence[HeadId],
    examples: bool,
    tokens: bool = False,
    analysis: bool = False,
) -> str:
    """The text of the card.

    `heads` are the heads, then the keys drawn by attention. `examples` and `tokens` are whether the
    dump has an `examples.parquet` and a `tokens.parquet`, `analysis` whether tables of an analysis
    are published with it.
    """
    files = [EXAMPLES_FILE] * examples + [TOKENS_FILE] * tokens
    configs = ([_config("heads", HEADS_TABLE)] if analysis else []) + _whole(manifest, heads)
    configs += [_config(Path(name).stem, name) for name in files]
    by_name = lists_heads(len(heads))
    if by_name:  # after the others: the viewer shows the first hundred
        configs += [_config(head.config_name, f"{head.folder}/*.parquet") for head in heads]
    front = _front_matter(manifest, configs)
    return f"---\n{front}---\n\n{_text(manifest, heads, files, by_name, analysis)}"


def lists_heads(count: int) -> bool:
    """Whether the card of a dump with this number of heads has a config for each of them."""
    return count + _OTHER_CONFIGS <= MOST_CONFIGS


def overview_card(repo: str, branches: Mapping[str, DumpManifest | None]) -> str:
    """The card of the main branch: a table of branches and models, and how to load one."""
    lines = [
        f"| {_cell(name)} | {_cell(manifest and manifest.model)} "
        f"| {_cell(manifest and manifest.num_examples)} |"
        for name, manifest in sorted(branches.items())
    ]
    front = {"pretty_name": "Queries and keys", "tags": _TAGS}
    example = min((name for name in branches if branches[name]), default=min(branches, default="…"))
    return _OVERVIEW.format(
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
        marker=_MARKER,
        repo=_one_line(repo),
        path=shlex.quote(f"hf://datasets/{_one_line(repo)}@{example.replace('/', '%2F')}"),
        revision=json.dumps(example, ensure_ascii=False),
        lines="\n".join(lines),
    )


def _cell(value: object) -> str:
    return "" if value is None else _code(value).replace("|", "\\|")


def is_card(path: Path) -> bool:
    """Whether this toolkit wrote the file."""
    try:
        return _MARKER.encode() in read_bounded(path, MOST_CARD_BYTES)
    except OSError:
        return False


def _config(name: str, files: str | list[str]) -> dict[str, Any]:
    return {"config_name": name, "data_files": files}


def _whole(manifest: DumpManifest, heads: Sequence[HeadId]) -> list[dict[str, Any]]:
    """A config of all query heads and one of all key heads.

    Files with vectors of different widths cannot be one table. Then the heads of the most frequent
    width are listed.
    """
    widths = {one.layer: one.head_dim for one in manifest.layers or ()}
    found = []
    for name, kind in (("queries", "q"), ("keys", "k")):
        own = [head for head in heads if head.kind == kind and not head.attended]
        if not own:
            continue
        count = Counter(widths.get(head.layer) for head in own)
        if len(count) == 1:
            found.append(_config(name, f"l*h*{kind}/*.parquet"))
            continue
        width = count.most_common(1)[0][0]
        chosen = sorted({one.layer for one in own if widths.get(one.layer) == width})
        found.append(_config(name, [f"l{layer:02d}h*{kind}/*.parquet" for layer in chosen]))
    return found


def _front_matter(manifest: DumpManifest, configs: Sequence[dict[str, Any]]) -> str:
    front = {
        "pretty_name": f"Queries and keys of {_one_line(manifest.model or 'a model')}",
        "tags": _TAGS,
        "configs": list(configs),
    }
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)


def _text(
    manifest: DumpManifest,
    heads: Sequence[HeadId],
    files: Sequence[str],
    by_name: bool,
    analysis: bool,
) -> str:
    head = heads[0].folder if heads else "l00h00q"
    choice = f'"{head}"' if by_name else f'data_files="{head}/*.parquet"'
    attended = _ATTENDED + (_ATTENDED_CONFIG if by_name else ".")
    return _TEXT.format(
        marker=_MARKER,
        model=_code(manifest.model or "a model"),
        head=head,
        facts="\n".join(f"- {name}: {_code(value)}" for name, value in _facts(manifest, heads)),
        columns="\n".join(_columns()),
        attended=attended if any(one.attended for one in heads) else "",
        texts="".join(f"; `{name}` {_CONTENT[name]}" for name in files),
        load=_LOAD.format(choice=choice),
        note=_PARTS + (_ANALYSIS.format(folder=ANALYSIS_FOLDER) if analysis else ""),
    )


def _columns() -> Iterator[str]:
    """A row of the table of columns for each of them."""
    rows = {"q": "queries", "k": "keys", "qk": "all"}
    for column in TABLE:
        null = f"; null: {column.null}" if column.null else ""
        yield f"| `{column.name}` | {rows[column.kind]} | {column.meaning}{null} |"


def _facts(manifest: DumpManifest, heads: Sequence[HeadId]) -> list[tuple[str, object]]:
    """Names and values for the list at the top of the card; missing values are left out."""
    queries = sum(head.kind == "q" for head in heads)
    keys = sum(head.kind == "k" and not head.attended for head in heads)
    kind, size = manifest.bucket_type, manifest.min_bucket_size
    facts = [
        ("model", manifest.model),
        ("revision", manifest.revision),
        ("heads", f"{queries} of queries, {keys} of keys"),
        ("weights", {True: "random"}.get(bool(manifest.random_weights))),
        ("texts", manifest.num_examples),
        ("made texts", _settings(manifest.synthetic)),
        ("sampler", _settings(manifest.sampler)),
        ("buckets", _settings({"type": kind, "min_bucket_size": size}) if kind else None),
        ("vectors", {True: "before the rotary embedding"}.get(bool(manifest.pre_rope))),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _settings(values: dict[str, Any] | None) -> str | None:
    if values is None:
        return None
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _code(value: object) -> str:
    """The value as inline code, with backticks and HTML escaped."""
    return f"`{html.escape(_one_line(str(value)), quote=False).replace('`', chr(39))}`"


def _one_line(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())
