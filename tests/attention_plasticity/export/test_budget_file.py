"""A budget file is compared with its PROVENANCE.json, and its model with the one that runs."""

import json
import random
import warnings

import numpy as np
import pytest

from attention_plasticity.export.budget_file import read_curves, read_provenance, require_model
from helpers.export_runs import VALUES, exported, make_run
from qk_toolkit.errors import ConfigError
from qk_toolkit.model_files import files_hash

HEADER = 128  # bytes


@pytest.fixture
def file(tmp_path):
    run = make_run(tmp_path / "run", static_error=VALUES)
    exported(run, tmp_path / "out", "kvpress-budget", "--order", "static_error")
    return tmp_path / "out" / "budget.npy"


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_flipped_bit_is_refused(file):
    content, facts = file.read_bytes(), read_provenance(file)
    assert read_curves(file, facts).shape[0] == 99
    for bit in random.Random(0).sample(range(8 * len(content)), 400):
        file.write_bytes(flipped(content, bit))
        with pytest.raises(ConfigError, match="is damaged or was changed: its sha256 is not"):
            read_curves(file, facts)


def test_a_broken_header_without_provenance_is_told(file):
    content = file.read_bytes()
    (file.parent / "PROVENANCE.json").unlink()
    assert read_provenance(file) == {}
    messages = []
    for bit in range(8 * HEADER):
        file.write_bytes(flipped(content, bit))
        try:
            read_curves(file, {})  # with other spaces, another byte order, or fewer heads
        except ConfigError as error:
            messages.append(str(error))
    assert len(messages) > 8 * HEADER - 16
    assert all(one.startswith(f"{file}: ") and "\n" not in one for one in messages)


def test_models_are_compared_by_their_whole_names(tmp_path):
    def compare(made_for, name):
        require_model(tmp_path / "budget.npy", {"model": made_for}, name, None)

    mirror = tmp_path / "owner" / "Tiny"
    mirror.mkdir(parents=True)
    compare("owner/Tiny", "Owner/tiny")
    compare("owner/Tiny", str(mirror))  # a copy of the Hub
    compare("", "owner/Tiny")
    for made_for, name in (
        ("a/final", "b/final"),
        ("final", "a/final"),
        ("other/Tiny", str(mirror)),
    ):
        message = f"has budgets of {made_for}, the model is {name}.*any_model=True"
        with pytest.raises(ConfigError, match=message):
            compare(made_for, name)


def test_a_folder_is_compared_by_its_files(tmp_path):
    folder = tmp_path / "final"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"first")
    facts = {"model": "some/where/else", "model_files": files_hash(folder)}
    require_model(tmp_path / "budget.npy", facts, str(folder), None)
    (folder / "model.safetensors").write_bytes(b"other")
    facts["model"] = str(folder)
    with pytest.raises(ConfigError, match="whose files are others"):
        require_model(tmp_path / "budget.npy", facts, str(folder), None)


def test_another_commit_is_a_warning(tmp_path):
    facts = {"model": "owner/Tiny", "revision": "a" * 40}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_model(tmp_path / "budget.npy", facts, "owner/Tiny", "a" * 40)
        require_model(tmp_path / "budget.npy", facts, "owner/Tiny", None)
    with pytest.warns(UserWarning, match=f"of the revision {'a' * 40}, not {'b' * 40}"):
        require_model(tmp_path / "budget.npy", facts, "owner/Tiny", "b" * 40)


def test_an_own_file_without_hashes_is_read(tmp_path):
    np.save(tmp_path / "mine.npy", np.zeros((99, 1, 2)))
    (tmp_path / "PROVENANCE.json").write_text(json.dumps({"model": "owner/Tiny"}))
    facts = read_provenance(tmp_path / "mine.npy")
    assert read_curves(tmp_path / "mine.npy", facts).shape == (99, 1, 2)
