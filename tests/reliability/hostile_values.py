"""Settings that are meant to break the program."""

from __future__ import annotations

from pathlib import Path

from dumps import make_dump
from reliability.outcomes import Cases, Outcome, command


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
