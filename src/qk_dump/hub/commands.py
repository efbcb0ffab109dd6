"""The verbs `push` and `pull`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from qk_toolkit.command_line import command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_switch, is_on, parse_flags

_PUSH_STORY = """\
Publish a dump on the Hugging Face Hub: one dataset, one branch per model. The branch changes in one
commit: readers see the old dump or the new one, never a mixture. Publishing the same dump again
changes nothing. With --run, the tables and the page of an analysis of the dump are published with
it, in the folder analysis. The token comes from HF_TOKEN or from 'hf auth login'.
"""
_PUSH_EXAMPLES = """\
commands to paste:
  attention-plasticity push data/qwen3-8b my-name/sniffed-qk@qwen3-8b
  attention-plasticity push data/qwen3-8b my-name/sniffed-qk --run results/qwen3-8b
  attention-plasticity push data/qwen3-8b my-name/sniffed-qk --private

After a failure the same command sends what is missing.
Exit codes: 0 success, 1 the push failed, 2 wrong usage, 130 interrupted.
"""
_PULL_STORY = """\
Fetch a dump from the Hugging Face Hub into a folder, or without DUMP into the client's cache. Every
file is checked against the branch's commit. An interrupted download continues.
"""
_PULL_EXAMPLES = """\
commands to paste:
  attention-plasticity pull my-name/sniffed-qk@qwen3-8b data/qwen3-8b
  attention-plasticity pull my-name/sniffed-qk@qwen3-8b data/qwen3-8b --layers 0-3 --heads 0,5
  attention-plasticity analyze hf://datasets/my-name/sniffed-qk@qwen3-8b

Exit codes: 0 success, 1 the download failed, 2 wrong usage, 130 interrupted.
"""


def push(arguments: Sequence[str]) -> int:
    """`attention-plasticity push DUMP owner/name[@branch] [--run …] [--private]`."""
    program = "attention-plasticity push"
    parser = command_parser(program, _PUSH_STORY, _PUSH_EXAMPLES)
    parser.usage = f"{program} DUMP OWNER/NAME[@BRANCH] [--run RUN] [--private]"
    parser.add_argument("dump", metavar="DUMP", help="folder of a dump")
    parser.add_argument(
        "name",
        metavar="OWNER/NAME[@BRANCH]",
        nargs="?",
        help="dataset on the Hub, and its branch (default: after the dump's model)",
    )
    parser.add_argument("--repo", metavar="OWNER/NAME", help="the dataset, in place of its name")
    parser.add_argument("--branch", metavar="NAME", help="the branch, in place of @BRANCH")
    parser.add_argument("--run", metavar="RUN", help="folder of an analysis of this dump")
    add_switch(parser, "private", "create it as a private dataset")
    given = parse_flags(parser, arguments)
    private = is_on(given, "private")
    repo, branch = _target(given)
    from qk_dump.hub.publish import push_dump
    from qk_toolkit.terminal import TerminalWatcher

    with TerminalWatcher() as watcher:
        done = push_dump(
            Path(given["dump"]),
            repo,
            branch,
            run=Path(given["run"]) if given["run"] else None,
            private=private,
            on_bytes=partial(watcher.show, "sending", in_bytes=True),
        )
        for note in done.notes:
            watcher.note(note)
    print(done.describe())
    return 0


def _target(given: Mapping[str, str | None]) -> tuple[str, str | None]:
    """The dataset and the branch, from `OWNER/NAME@BRANCH` or from flags."""
    name, repo, branch = (given[field] for field in ("name", "repo", "branch"))
    if (name is None) == (repo is None):
        raise ConfigError("push takes DUMP OWNER/NAME: give the dataset on the Hub once")
    repo, at, own = str(name or repo).partition("@")
    if at and branch is not None:
        raise ConfigError(f"--branch: the branch is given twice, {own} and {branch}; leave one out")
    return repo, own.replace("%2F", "/") if at else branch


def pull(arguments: Sequence[str]) -> int:
    """`attention-plasticity pull owner/name[@branch] [DUMP] [--layers …] [--heads …]`."""
    program = "attention-plasticity pull"
    parser = command_parser(program, _PULL_STORY, _PULL_EXAMPLES)
    parser.usage = f"{program} OWNER/NAME[@BRANCH] [DUMP] [--layers LIST] [--heads LIST]"
    parser.add_argument("place", metavar="OWNER/NAME[@BRANCH]", help="a dump on the Hub")
    parser.add_argument("dump", metavar="DUMP", nargs="?", help="folder: new, empty or begun")
    parser.add_argument("--layers", metavar="LIST", help="layers to fetch, such as 0-3,8")
    parser.add_argument("--heads", metavar="LIST", help="query heads, with their key heads")
    parser.add_argument("--cache_dir", metavar="FOLDER", help="default: the Hub client's cache")
    parser.add_argument("--max_workers", type=int, metavar="N", help="parallel downloads [8]")
    given = parse_flags(parser, arguments)
    from qk_dump.hub.fetch import HeadChoice, fetch_dump
    from qk_dump.hub.place import parse_place
    from qk_toolkit.terminal import TerminalWatcher

    workers: object = given["max_workers"]
    if isinstance(workers, int) and workers < 1:
        raise ConfigError(f"--max_workers: expected an integer of at least 1, got {workers}")
    choice = HeadChoice(_indices(given["layers"], "layers"), _indices(given["heads"], "heads"))
    with TerminalWatcher() as watcher:
        fetched = fetch_dump(
            parse_place(given["place"]),
            choice=choice,
            into=given["dump"],
            cache_dir=given["cache_dir"],
            max_workers=workers if isinstance(workers, int) else None,
            on_bytes=partial(watcher.show, "fetching", in_bytes=True),
        )
    print(fetched.describe())
    print(fetched.folder)
    return 0


def _indices(text: str | None, name: str) -> list[int] | None:
    from qk_toolkit.settings import index_list

    try:
        return None if text is None else index_list(text)
    except ValueError as error:
        raise ConfigError(
            f"--{name}: expected a list of integers such as 0-3,8 ({error})"
        ) from error
