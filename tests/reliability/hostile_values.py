"""Settings, run.json and answers of a Hub that are meant to break the program."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from captures import content
from dumps import make_dump
from hub_server import HubServer, changed_json, endless, running_hub, status, with_headers
from hubs import REPO, client_of, upload
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump
from qk_toolkit.errors import ToolkitError
from reliability.outcomes import Cases, Outcome, command
from run_tables import write_run

OTHERS: tuple[Any, ...] = (None, -3, 10**30, True, "text", [], [1], {"a": 1})
"""Values of every kind, to stand where another kind is expected."""


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in nested mappings and lists; of a list, its first member."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, member in value.items():
            yield from places(member, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def exchanged(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """The value with another one at a place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = exchanged(value[path[0]], path[1:], new)  # type: ignore[index]
    return copy


def strange_run_json(folder: Path, step: int) -> Cases:
    """Every member of run.json of another type, for the verbs that open a run."""
    run, other = write_run(folder / "run"), write_run(folder / "other")
    whole = json.loads((run / "run.json").read_text())
    page = folder / "page.html"
    verbs: dict[str, tuple[object, ...]] = {
        "plot": ("plot", "map", run, "--output", folder / "map.svg"),
        "compare": ("compare", run, other, "--format", "csv"),
        "report": ("report", run, "--output", page),
    }
    variants = [("all of it", value) for value in OTHERS]
    variants += [
        (f"{path} = {value!r:.20}", exchanged(whole, path, value))
        for path in places(whole)
        for value in OTHERS
    ]
    cases = [(verb, name, variant) for name, variant in variants for verb in verbs]
    for verb, name, variant in cases[::step]:
        (run / "run.json").write_text(json.dumps(variant))
        ended = command(*verbs[verb])
        outcome = Outcome.UNHARMED if ended.code == 0 else Outcome.REFUSED
        if ended.traceback or ended.code not in (0, 1, 2):
            outcome = Outcome.TRACEBACK
        yield f"{verb}: {name}", outcome


def _laughs() -> str:
    lines = ["a0: &a0 [lol]"]
    for level in range(12):
        lines.append(f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 9)}]")
    return "\n".join([*lines, "seed: *a12"])


_YAML: dict[str, bytes] = {
    name: text if isinstance(text, bytes) else text.encode()
    for name, text in {
        "empty": "",
        "a list": "- a",
        "a number": "5",
        "nested lists": "seed: " + "[" * 5000 + "]" * 5000,
        "open lists": "[" * 100_000,
        "nested mappings": "seed: " + "{a: " * 5000,
        "a list in itself": "seed: &a [*a]",
        "a mapping in itself": "model: {config_overrides: &a {b: *a}}",
        "billion laughs": _laughs(),
        "unknown key": "sead: 3",
        "a key twice": "seed: 3\nseed: 4",
        "a tag of Python": "seed: !!python/object/apply:os.system ['true']",
        "a timestamp": "seed: !!timestamp x",
        "30 digits": "seed: " + "9" * 30,
        "5,000 digits": "seed: " + "9" * 5000,
        "a NaN": "seed: .nan",
        "infinity": "max_rel_dist: .inf",
        "NUL": b"seed: \0",
        "NUL in text": 'dataset_local_root: "a\\0b"',
        "not UTF-8": b"dataset_local_root: \xe9",
        "UTF-16": "seed: 3".encode("utf-16"),
        "tabs": "seed:\n\t3",
        "a list as key": "? [a]\n: b",
        "a large file": "# " + "x" * 2_000_000,
        "a mapping for text": "dataset_local_root: {a: 1}",
        "a section twice": "analysis: {seed: 1}\nseed: 2",
        "negative": "seed: -1",
        "a word": "seed: soon",
        "many indices": "layers: 0-99999999999",
        "odd indices": "layers: 3-1,,x",
    }.items()
}


def hostile_settings(folder: Path, step: int) -> Cases:
    """YAML files and flags that no setting can hold, for four verbs."""
    dump = make_dump(folder / "dump", layers=1, q_heads=1, k_heads=1, n=60)
    file = folder / "settings.yaml"
    verbs = {
        "analyze": ("analyze", "--dry_run", "--config", file, "--dataset_local_root", dump),
        "capture": ("capture", "--dry_run", "--config", file),
        "plot": ("plot", "map", "--config", file, "--output", folder / "a.png"),
    }
    cases = [(verb, name) for name in _YAML for verb in verbs]
    for verb, name in cases[::step]:
        file.write_bytes(_YAML[name])
        ended = command(*verbs[verb])
        outcome = Outcome.REFUSED if ended.code == 2 else Outcome.UNHARMED
        if ended.traceback or ended.code not in (0, 2) or len(ended.told) > 20_000:
            outcome = Outcome.TRACEBACK
        yield f"{verb}: {name}", outcome


def _last(**facts: Any) -> Callable[[Any], Any]:
    """A change of what a listing says of its last file."""

    def change(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
        last = {**tree[-1], **{name: value for name, value in facts.items() if name != "lfs"}}
        last["lfs"] = {**last["lfs"], **facts.get("lfs", {})}
        return [*tree[:-1], last]

    return change


_COMMITS = ("/tmp/evil", "../../../evil", "..", "", None, 5, ["a"], "a" * 39, "A" * 40, "/" * 9999)
_NAMES = (
    *("/etc/l00h00q/data.parquet", "../l00h00q/data.parquet", "l00h00q/../../x.parquet"),
    *("l00h00q//data.parquet", "./l00h00q/data.parquet", "", "l00h00q\\data.parquet"),
    *("C:/l00h00q/data.parquet", "l00h00q/\0.parquet", "l00h00q/a\nb.parquet", None, 5, ["a"]),
)
_SIZES = (-1, "5", None, 1.5, 10**30, 2**62)
_HASHES = ("../../evil", "", None, 5, "a" * 40, "g" * 64)
_BODIES = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"5",
    b'"x"',
    b'{"sha',
    b"\xff\xfe",
    b"<html>",
    b"[" * 99_999,
)
_HEADERS = (
    {"ETag": '"../../../../evil"', "X_Linked_Etag": '"../../../../evil"'},
    {"X_Repo_Commit": "../../../evil"},
    {"Content_Disposition": 'attachment; filename="../../evil"'},
)


def _answers() -> Iterator[tuple[str, str, Any]]:
    """(name, endpoint, fault) of every answer."""
    for told in _COMMITS:
        yield f"commit {told!r:.30}", "info", changed_json(lambda info, t=told: {**info, "sha": t})
    for name in _NAMES:
        change = changed_json(lambda tree, n=name: [*tree, {**tree[-1], "path": n}])
        yield f"name {name!r:.30}", "tree", change
    for size in _SIZES:
        yield f"size {size!r}", "tree", changed_json(_last(size=size))
    for digest in _HASHES:
        yield f"hash {digest!r:.20}", "tree", changed_json(_last(lfs={"oid": digest}))
    for body in _BODIES:
        for endpoint in ("info", "tree"):
            yield f"{endpoint} {body!r:.20}", endpoint, status(200, body=body)
    for headers in _HEADERS:
        yield f"headers {headers}", "resolve_get", with_headers(**headers)
    for endpoint in ("info", "tree", "resolve_get"):
        yield f"circle at {endpoint}", endpoint, status(302, {"Location": "?round"})
    yield "a body without end", "resolve_get", endless
    yield "a body of other bytes", "resolve_get", status(200, body=b"other bytes")
    yield "a file of this machine", "resolve_get", status(302, {"Location": "file:///etc/passwd"})


def malicious_hub(folder: Path, step: int) -> Cases:
    """Answers of a Hub that become file names, fill disks or are no answers at all."""
    local = make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, n=40)
    expected = content(local)
    with running_hub() as hub:
        cache = folder / "cache"
        with client_of(hub, cache):
            upload(hub, local)
            for name, endpoint, fault in list(_answers())[::step]:
                shutil.rmtree(cache, ignore_errors=True)
                hub.fail(endpoint, fault, times=None)
                yield name, _fetched(hub, folder, expected)
                hub.heal()


def _fetched(hub: HubServer, folder: Path, expected: dict[str, bytes]) -> Outcome:
    before = set(folder.iterdir())
    try:
        found = content(fetch_dump(HubPlace(REPO, "tiny")).folder)
    except ToolkitError as error:
        outcome = Outcome.REFUSED if "\n" not in str(error) else Outcome.TRACEBACK
    except Exception:
        outcome = Outcome.TRACEBACK
    else:
        outcome = Outcome.UNHARMED if found == expected else Outcome.WRONG
    outside = set(folder.iterdir()) - before - {folder / "cache"}
    return Outcome.LOST if outside or Path("/tmp/evil").exists() else outcome
