"""A dump whose capture was killed while it wrote the heads is refused by every reader."""

import shutil
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from qk_dump.hub.publish import push_dump
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError
from sniffing import sniff

LENGTHS = [100, 520]  # characters
PLAN = ".capture/plan.json"


@pytest.fixture(scope="module")
def unfinished(model, texts, tmp_path_factory):
    """All heads are there; nothing that is written after them."""

    def killed(*_):
        raise KeyboardInterrupt

    dump = tmp_path_factory.mktemp("unfinished") / "dump"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qk_sniffer.capture.finish.write_side_files", killed)
        assert sniff(model, texts, dump) == 130
    assert (dump / "l00h00q" / "data.parquet").is_file()
    assert not (dump / MANIFEST_NAME).exists()
    return dump


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "DUMP", "--output_dir", "OUT"),
        ("verify", "MODEL", "--dump", "DUMP"),
        ("export", "DUMP", "OUT", "--to", "q-filters"),
        ("add-rotary", "DUMP", "MODEL", "OUT"),
        ("study", "DUMP", "--output_dir", "OUT"),
        ("push", "DUMP", "--repo", "me/dump"),
    ],
    ids=lambda words: words[0],
)
def test_every_verb_refuses_it(unfinished, model, texts, tmp_path, words, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "none")
    places = {"DUMP": unfinished, "MODEL": model, "OUT": tmp_path / "out"}
    code = 1 if words[0] == "study" else 2  # a study goes on with its other models
    assert main([str(places.get(word, word)) for word in words]) == code
    message = capsys.readouterr().err
    assert f"{unfinished}: its capture is not finished" in message
    assert f"attention-plasticity capture {model} {texts} {unfinished}" in message


def test_the_library_refuses_it(unfinished, tmp_path):
    with pytest.raises(ConfigError, match="its capture is not finished"):
        open_dump(unfinished)
    with pytest.raises(ConfigError, match="its capture is not finished"):
        push_dump(unfinished, "me/dump", token="none")
    shutil.copytree(unfinished, tmp_path / "models" / "mine")
    for place in ((tmp_path / "models",), (tmp_path / "models", "mine")):
        with pytest.raises(ConfigError, match="mine: its capture is not finished"):
            open_dump(*place)


def test_a_url_refuses_it(unfinished, s3):
    s3.put_folder(unfinished, "dump")
    with pytest.raises(ConfigError, match=r"dump: its capture is not finished"):
        open_dump(s3.url("dump"))


def test_the_plan_of_a_dump_that_is_complete_does_not_matter(unfinished, model, texts, tmp_path):
    """As after a process that was killed between dump.json and the end."""
    dump = shutil.copytree(unfinished, tmp_path / "dump")
    plan = (dump / PLAN).read_bytes()
    assert sniff(model, texts, dump) == 0
    (dump / ".capture").mkdir()
    (dump / PLAN).write_bytes(plan)
    assert len(open_dump(dump).query_heads) == 16
    (dump / PLAN).write_text("{}")
    with pytest.raises(ConfigError, match="capture MODEL TEXTS"):
        open_dump(dump)


def test_a_dump_that_is_discarded_in_part_keeps_its_manifest(
    unfinished, model, texts, tmp_path, monkeypatch
):
    dump = shutil.copytree(unfinished, tmp_path / "dump")
    assert sniff(model, texts, dump) == 0
    unlink = Path.unlink

    def killed(path, **options):
        if path.name == "data.parquet" and path.parent.name == "l02h00q":
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        assert sniff(model, texts, dump, overwrite="true") == 130
    assert not (dump / "l00h00q").exists()
    assert (dump / MANIFEST_NAME).is_file()
