"""A dump of repeated tokens is used for its own model only."""

import pytest

from attention_plasticity.read.repeated import with_repeated
from dumps import make_dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError


def dump_of(root, model, *, repeated=False, **recorded):
    """A dump whose capture records the model."""
    made = {"type": "repeated"} if repeated else None
    capture = {"model": {"name": model, **recorded}}
    manifest = DumpManifest(model=model, num_layers=1, synthetic=made, capture=capture)
    write_manifest(make_dump(root, layers=1, n=20), manifest)
    return root


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (("a/final", {"files": "1"}), ("b/final", {"files": "1"}), None),
        (("a/final", {"files": "1"}), ("b/end", {"files": "1"}), None),
        (("a/final", {"files": "1"}), ("a/final", {"files": "2"}), "files is 2 there and 1"),
        (("a/final", {"files": "1"}), ("b/final", {"files": "2"}), "files is 2 there and 1"),
        (("a/final", {}), ("b/final", {"files": "2"}), None),
        (("a/final", {}), ("a/other", {}), "model is other there and final"),
        (("a/b", {"commit": "1"}), ("a/b", {"commit": "2"}), "commit is 2 there and 1"),
    ],
)
def test_files_are_compared_before_names(tmp_path, ours, theirs, told):
    dump = open_dump(dump_of(tmp_path / "dump", ours[0], **ours[1]))
    repeated = dump_of(tmp_path / "repeated", theirs[0], repeated=True, **theirs[1])
    if told is None:
        assert with_repeated(dump, str(repeated)).repeated is not None
        return
    with pytest.raises(ConfigError, match=told):
        with_repeated(dump, str(repeated))
