"""The verbs `push` and `pull`, and what a person sees while bytes travel."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qk_toolkit.command_line import command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

INTERRUPTED = "what was sent or fetched is kept, the same command continues"

_PUSH_STORY = """\
Publish a dump on the Hugging Face Hub: one dataset, one branch per model. The branch changes in one
step: readers see the dump that was there or the new one, whole. Sent again, nothing happens.
The token is taken from HF_TOKEN, or from 'hf auth login'.
"""
_PUSH_EXAMPLES = """\
commands to paste:
  attention-plasticity push data/qwen3-8b --repo my-name/sniffed-qk --branch qwen3-8b
  attention-plasticity push data/qwen3-8b --repo my-name/sniffed-qk --private
"""
_PULL_STORY = """\
Fetch a dump from the Hugging Face Hub into the client's cache: the branch is resolved to a commit,
and every file is checked against it. An interrupted download continues.
"""
_PULL_EXAMPLES = """\
commands to paste:
  attention-plasticity pull my-name/sniffed-qk@qwen3-8b
  attention-plasticity pull my-name/sniffed-qk@qwen3-8b --layers 0-3 --heads 0,5
  attention-plasticity analyze --dataset_local_root hf://datasets/my-name/sniffed-qk@qwen3-8b
"""


def push(words: Sequence[str]) -> int:
    """`attention-plasticity push DUMP --repo owner/name [--branch name] [--private]`."""
    program = "attention-plasticity push"
    parser = command_parser(program, _PUSH_STORY, _PUSH_EXAMPLES)
    parser.usage = f"{program} DUMP --repo OWNER/NAME [--branch NAME] [--private]"
    parser.add_argument("dump", metavar="DUMP", help="folder of a dump")
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME", help="dataset on the Hub")
    parser.add_argument("--branch", metavar="NAME", help="default: after the dump's model")
    parser.add_argument("--private", action="store_true", help="create it as a private dataset")
    given = parse_flags(parser, words)
    publish(Path(given["dump"]), given["repo"], given["branch"], private=bool(given["private"]))
    return 0


def publish(folder: Path, repo: str, branch: str | None, *, private: bool) -> None:
    """Push a dump, with a bar, and say where it is."""
    from qk_dump.hub.push import push_dump

    repo = require_target(repo, branch)
    with byte_bar("sending") as on_bytes:
        done = push_dump(
            folder, repo, branch or _branch_of(folder), private=private, on_bytes=on_bytes
        )
    for note in done.notes:
        print(note, file=sys.stderr)
    news = "published" if done.changed else "was there already"
    print(f"{done.place}: {news}, commit {done.commit}")
    print(f"next: attention-plasticity pull {shlex.quote(str(done.place))}")


def require_target(repo: str, branch: str | None) -> str:
    """The dataset's name, `owner/name`; one that cannot be pushed to is better known early."""
    from qk_dump.hub.place import HubPlace, parse_place

    try:
        place = parse_place(repo)
    except ConfigError:
        place = None
    if place is None or place != HubPlace(place.repo) or "@" in repo:
        raise ConfigError(
            f"repo: expected owner/name, got {repo!r}; the branch has its own setting"
        )
    if branch == "main":
        raise ConfigError("branch: main holds the list of branches; name one after the model")
    return place.repo


def pull(words: Sequence[str]) -> int:
    """`attention-plasticity pull owner/name[@branch] [--layers …] [--heads …]`."""
    program = "attention-plasticity pull"
    parser = command_parser(program, _PULL_STORY, _PULL_EXAMPLES)
    parser.usage = f"{program} OWNER/NAME[@BRANCH] [--layers LIST] [--heads LIST]"
    parser.add_argument("place", metavar="OWNER/NAME[@BRANCH]", help="a dump on the Hub")
    parser.add_argument("--layers", metavar="LIST", help="layers to fetch, such as 0-3,8")
    parser.add_argument("--heads", metavar="LIST", help="query heads, with their key heads")
    parser.add_argument("--cache_dir", metavar="FOLDER", help="default: the Hub client's cache")
    parser.add_argument("--max_workers", type=int, metavar="N", help="parallel downloads [8]")
    given = parse_flags(parser, words)
    from qk_dump.hub.place import parse_place
    from qk_dump.hub.pull import HeadChoice, fetch_dump

    workers: object = given["max_workers"]
    if isinstance(workers, int) and workers < 1:
        raise ConfigError(f"--max_workers: expected an integer of at least 1, got {workers}")
    choice = HeadChoice(_indices(given["layers"], "layers"), _indices(given["heads"], "heads"))
    with byte_bar("fetching") as on_bytes:
        fetched = fetch_dump(
            parse_place(given["place"]),
            choice=choice,
            cache_dir=given["cache_dir"],
            max_workers=workers if isinstance(workers, int) else None,
            on_bytes=on_bytes,
        )
    print(fetched.describe())
    print(fetched.folder)
    return 0


@contextmanager
def byte_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar by bytes on a terminal, silence in a pipe."""
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils
    if not client.are_progress_bars_disabled():
        client.disable_progress_bars()  # ours tells of the whole, not of each file
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _branch_of(folder: Path) -> str:
    from qk_dump.layout import open_folder

    manifest = open_folder(folder).manifest
    model = (manifest.model if manifest else None) or ""
    name = re.sub(r"[^a-z0-9.]+", "-", model.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-.")
    if not name:
        raise ConfigError("branch: the dump does not name its model; add --branch NAME")
    return name


def _indices(text: str | None, name: str) -> list[int] | None:
    from qk_toolkit.settings import parse_indices

    if text is None:
        return None
    try:
        found = parse_indices(text)
    except ValueError as error:
        raise ConfigError(
            f"--{name}: expected a list of integers such as 0-3,8 ({error})"
        ) from error
    return [int(number) for number in found] if isinstance(found, list) else None
