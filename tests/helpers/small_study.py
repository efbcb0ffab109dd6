"""A study of three tiny models: one is captured, one is a dump, one is a finished run."""

from contextlib import chdir

import yaml

from commands_here import analyze_here
from qk_sniffer.cli import main as sniff_qk
from qk_study.command import study
from tiny_texts import save_texts, save_tiny_model

STUDY_IN = "helpers.small_study:study_in"
"""The command for processes of their own; its first word is a folder."""
CAPTURE = {
    "sampler": {"type": "all"},
    "min_bucket_size": 32,
    "layers": "0-1",
    "heads": "0",
    "attended_keys": 0,
}
MODELS = (
    {"label": "tiny", "model": "model", "family": "A", "size": 1e5, "checkpoint": 1},
    {"label": "Dump ü/../x", "dump": "dump", "family": "A", "checkpoint": 2},
    {"label": "C", "run": "finished", "family": "A", "checkpoint": 1000, "phase": "late"},
)
FOLDERS = ("tiny", "dump-u-x", "c")
TEXTS = 5


def make_inputs(folder):
    """A folder with a model, texts, a dump and a finished run, and study.yaml."""
    save_tiny_model(folder / "model")
    save_texts(folder / "texts", [150] * TEXTS)
    save_texts(folder / "others", [150, 140, 150, 150])
    with chdir(folder):
        _sniff("texts", "dump", "--model.random_weights", "true")
        _sniff("others", "other-dump")
        assert analyze_here("other-dump", "--output_dir", "finished").returncode == 0
    write_study(folder)
    return folder


def _sniff(texts, dump, *more):
    words = ["--model.name", "model", "--dataset.path", texts, "--output.data_root", dump, *more]
    for name, value in CAPTURE.items():
        if isinstance(value, dict):
            name, value = f"{name}.type", value["type"]
        words += [f"--capture.{name}", str(value)]
    assert sniff_qk(words) == 0


def write_study(folder, name="study.yaml", **changes):
    """The YAML file of the study, with other fields. A field that is None is left out."""
    content = {
        "texts": {"path": "texts"},
        "capture": {"capture": CAPTURE},
        "analysis": {"max_workers": 1},
        "models": [dict(model) for model in MODELS],
        "repeated_texts": 0,
        "figures": ["profiles", "map-plasticity"],
        **changes,
    }
    path = folder / name
    kept = {name: value for name, value in content.items() if value is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))
    return path


def study_in(arguments):
    """`attention-plasticity study` in a folder, the first word."""
    with chdir(arguments[0]):
        return study(arguments[1:])


def made_files(study):
    """The files that must have the same bytes: all except records of heads, and times."""
    return {str(path.relative_to(study)): path.read_bytes() for path in _kept(study)}


def _kept(study):
    for path in sorted(study.rglob("*")):
        parts = path.relative_to(study).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not hidden and path.name != "run.json":
            yield path
