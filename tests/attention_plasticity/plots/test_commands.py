"""`attention-plasticity plot`, the scripts of the seeds, and the files they write."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import matplotlib.pyplot
import numpy as np
import pytest
import yaml

from attention_plasticity.cli import main
from attention_plasticity.plots import all_figures, save_figure
from attention_plasticity.plots.all_figures import FIGURES, figures_of, left_out
from attention_plasticity.plots.drawing import draw, plot_run
from attention_plasticity.plots.settings import (
    KINDS,
    ComponentsPlot,
    HeatmapPlot,
    MapPlot,
    PlasticityPlot,
)
from attention_plasticity.tables.finished_run import FinishedRun
from attention_runs import add_attention
from band_tables import add_bands
from drift_runs import add_drift
from fidelity_runs import add_fidelity
from key_head_runs import add_key_heads
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_toolkit.errors import ConfigError
from role_runs import add_roles
from run_tables import add_bins, cells_table, write_run

ROOT = Path(__file__).parents[3]
SCRIPTS = {
    "plot_plasticity.py": PlasticityPlot,
    "plot_bucket_heatmap.py": HeatmapPlot,
    "plot_component_weights.py": ComponentsPlot,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def plot(*words: object) -> int:
    return main(["plot", *(str(word) for word in words)])


def labels(figure: Any) -> list[str]:
    return [tick.get_text() for tick in figure.axes[0].get_xticklabels()]


def test_every_figure_of_a_run_is_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = figures_of(FinishedRun.open(run))
    assert plain == [name for name in FIGURES if name in plain]
    attention = {"attention", "map-sink-mass", "map-far-mass", "attended"}
    bands, roles = {"bands", "kernel", "frequencies"}, {"roles", "by-role"}
    assert set(FIGURES) - set(plain) == {
        *("map-drop", "phase", "key-heads", "fidelity", "drift"),
        *attention,
        *bands,
        *roles,
    }
    add_drift(add_fidelity(add_key_heads(add_roles(add_bands(add_bins(add_attention(run)))))))
    assert plot("all", run) == 0
    paths = [run / "figures" / f"{name}.png" for name in FIGURES]
    printed = capsys.readouterr()
    assert printed.out.split() == [str(path) for path in paths]
    assert printed.err == ""
    for path in paths:
        picture = matplotlib.image.imread(path)  # (height, width, rgba)
        assert picture.shape[1] > 1000
        assert np.ptp(picture[..., :3]) > 0.5


def test_figures_that_are_left_out_are_named_with_the_reason(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_figures, "save_all", lambda *given, **options: iter(()))  # faster
    assert plot("all", run) == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: not drawn: map-drop, phase (needs plasticity at one position: attention-plasticity "
        "add-rotary, and analyze again)",
        "note: not drawn: attention, map-sink-mass, map-far-mass, attended, roles, by-role (needs "
        "a dump with attention columns: capture.attention)",
        "note: not drawn: bands, kernel, frequencies (needs the rotary embedding and the texts: "
        "attention-plasticity add-rotary, and analyze again)",
        "note: not drawn: key-heads, drift (needs the texts of queries and keys: analyze again)",
        "note: not drawn: fidelity (needs attention-plasticity analyze … --fidelity)",
    ]


def test_a_run_without_roles_has_no_figures_of_them(run: Path) -> None:
    without = FinishedRun.open(add_bins(add_attention(run)))
    reason = "needs a dump with attention columns: capture.attention"
    assert left_out(without)["roles"] == left_out(without)["by-role"] == reason
    assert not {"roles", "by-role"} & set(figures_of(without))
    for kind in ("by_role", "roles"):
        with pytest.raises(ConfigError, match="has no roles; they need a dump with attention"):
            plot_run(without, kind, {})
    with_roles = FinishedRun.open(add_roles(run))
    assert {"roles", "by-role"} <= set(figures_of(with_roles))


def test_plasticity_by_role_needs_roles_that_are_sure(run: Path) -> None:
    unsure = FinishedRun.open(add_roles(add_bins(run), scores={"role": "unsure"}))
    assert left_out(unsure)["by-role"] == "the roles of all heads are unsure"
    with pytest.raises(ConfigError, match="no head has a role that is sure"):
        plot_run(unsure, "by_role", {})


def test_attended_plasticity_needs_plasticity_at_one_position(run: Path) -> None:
    reasons = left_out(FinishedRun.open(add_attention(run)))
    assert reasons["attended"].startswith("needs plasticity at one position")
    assert "attention" not in reasons


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_figure_gives_the_same_bytes(run: Path, tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        assert (
            plot("map", run, "--metric", "q_R2_total", "--output", tmp_path / f"{name}.{kind}") == 0
        )
    content = (tmp_path / f"a.{kind}").read_bytes()
    assert content == (tmp_path / f"b.{kind}").read_bytes()
    assert content.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])


def test_a_table_in_its_runs_folder_knows_model_and_positions(run: Path) -> None:
    figure = draw(HeatmapPlot(bucket_csv=str(run / "head_bucket_plasticity.csv")))
    assert figure.axes[0].get_title(loc="left").endswith("Tiny-1B")
    assert labels(figure)[:3] == ["0", "128", "256"]


def test_flags_say_where_buckets_begin(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere.csv"
    cells_table().to_csv(alone, index=False)
    assert labels(draw(HeatmapPlot(bucket_csv=str(alone))))[:3] == ["64", "192", "320"]
    sized = HeatmapPlot(bucket_csv=str(alone), bucket_min_size=10)
    assert labels(draw(sized))[:3] == ["0", "10", "20"]
    log = HeatmapPlot(run=str(run), bucket_type="log", bucket_min_size=2)
    assert labels(draw(log))[:4] == ["0", "0", "3", "7"]
    x = draw(PlasticityPlot(run=str(run), bucket_min_size=10)).axes[0].lines[-1].get_xdata()
    assert list(x) == [10, 20, 30, 40, 50]


def test_a_table_of_the_original_tool_is_drawn(tmp_path: Path) -> None:
    old = cells_table()[["layer", "q_head", "q_bucket", "k_bucket", "plasticity"]]
    old.rename(columns={"plasticity": "ap_bucket"}).to_csv(tmp_path / "old.csv", index=False)
    output = tmp_path / "old.png"
    assert plot("plasticity", "--bucket_csv", tmp_path / "old.csv", "--output", output) == 0
    assert output.exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_of_the_seeds_work(
    name: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    field = "component_csv" if "component" in name else "bucket_csv"
    table = {"component_csv": "head_component_weights", "bucket_csv": "head_bucket_plasticity"}
    config = tmp_path / "plot.yaml"
    config.write_text(yaml.safe_dump({field: str(run / f"{table[field]}.csv"), "title": "yes"}))
    script = str(ROOT / "scripts" / name)
    words = ["--config", str(config), "--output", str(tmp_path / "out.svg")]
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert told.out.strip() == str(tmp_path / "out.svg")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "plots").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_plot_config_draws(path: Path, run: Path, tmp_path: Path) -> None:
    kind = path.stem.rsplit("-", 1)[-1]
    settings = yaml.safe_load(path.read_text())
    table = next(settings[name] for name in ("bucket_csv", "component_csv") if name in settings)
    place = tmp_path / Path(table).parent
    place.parent.mkdir(parents=True)
    shutil.copytree(run, place)
    given = f"--{'component' if kind == 'components' else 'bucket'}_csv"
    output = tmp_path / settings["output"]
    assert plot(kind, "--config", path, given, tmp_path / table, "--output", output) == 0
    assert output.is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plasticity"], "--bucket_csv: give the folder of a run or bucket_csv"),
        (
            ["plasticity", "{run}", "--bucket_csv", "x"],
            "give the folder of a run or bucket_csv, not both",
        ),
        (["heatmap", "--bucket_csv", "{run}"], "is a folder; give a table"),
        (["heatmap", "--bucket_csv", "nowhere.csv"], "nowhere.csv: does not exist"),
        (["map", "nowhere"], "nowhere: does not exist; give the output_dir of an analysis, or"),
        (["maps", "{run}"], "'maps': unknown kind of figure; did you mean map?"),
        (["map", "{run}", "--metric", "ap_drp"], "has no column 'ap_drp'"),
        (["map", "{run}", "--metric", "drop"], "has no plasticity at one position; it needs"),
        (["heatmap", "{run}", "--cmap", "virids"], "did you mean viridis?"),
        (["heatmap", "{run}", "--agg", "max"], "expected one of mean, median"),
        (["heatmap", "{run}", "--vmin", "2", "--vmax", "1"], "--vmin: must be below vmax"),
        (["plasticity", "{run}", "--bucket_min_size", "-4"], "an integer of at least 1, got -4"),
        (["plasticity", "{run}", "--line_width", "-1"], "a number above 0, got -1"),
        (["plasticity", "{run}", "--alpha", "2"], "a number above 0 and of at most 1"),
        (["plasticity", "{run}", "--color_by_layer", "--color_trend"], "choose one"),
        (["components", "{run}", "--limit", "0"], "an integer of at least 1, got 0"),
        (["map", "{run}", "--output", "{run}/figure.bmp"], "ending in .png, .svg or .pdf"),
        (["map", "{run}", "--output", "{run}/run.json/x.png"], "run.json/x.png"),
        (["map", "{run}", "--colour", "red"], "--colour: unknown flag"),
        (["all", "{run}/nothing"], "does not exist"),
        (["attention", "{run}"], "run: has no attention by distance; it needs a dump with"),
        (["attention", "{run}", "--layer", "1"], "--layer: give layer and head together"),
        (["attended", "{run}"], "the table of heads: has no attended plasticity; it needs"),
        (["map", "{run}", "--metric", "attn_sink_mass"], "has no column 'attn_sink_mass'"),
    ],
)
def test_misuse_is_one_line(
    words: list[str], told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("{run}", str(run)) for word in words]
    if "--output" not in given and given[0] != "all":
        given += ["--output", str(run / "figure.png")]
    assert plot(*given) in (1, 2)
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert told in message
    assert not (run / "figure.png").exists()


def test_bucket_type_without_size_is_refused_where_the_run_does_not_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells_table().to_csv(tmp_path / "cells.csv", index=False)
    words = ("--bucket_csv", tmp_path / "cells.csv", "--output", tmp_path / "x.png")
    assert plot("heatmap", *words, "--bucket_type", "log") == 2
    assert "bucket_min_size: is required with bucket_type log" in capsys.readouterr().err


def test_without_an_output_a_window_shows_the_figure(run: Path) -> None:
    command = [sys.executable, "-m", "attention_plasticity", "plot", "map", str(run)]
    given = {"MPLBACKEND": "module://window_backend", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "shown: Plasticity over a bucket by head: Tiny-1B\n"


def test_without_a_display_a_file_must_be_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.pyplot.switch_backend("agg")
    assert plot("map", run) == 2
    assert capsys.readouterr().err == (
        "error: output: there is no display to show a figure on; add --output FILE.png\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_display_a_missing_run_is_reported_first(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.pyplot.switch_backend("agg")
    assert plot(kind, tmp_path / "nowhere") == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path / 'nowhere'}: ")
    assert "does not exist" in message


def test_a_full_disk_leaves_no_half_figure(run: Path, small_disk: Path) -> None:
    path = small_disk / "figure.png"
    path.write_bytes(b"earlier")
    (small_disk / "filler").write_bytes(bytes(124 * 1024))
    assert plot("map", run, "--output", path) == 1
    assert path.read_bytes() == b"earlier"
    assert sorted(file.name for file in small_disk.iterdir()) == ["figure.png", "filler"]


def test_help_and_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert plot() == 2
    assert plot("--help") == 0
    assert "predictability" in capsys.readouterr().out


def test_a_figure_can_be_saved_from_the_library(run: Path, tmp_path: Path) -> None:
    save_figure(draw(MapPlot(run=str(run))), tmp_path / "new" / "map.PNG")
    assert (tmp_path / "new" / "map.PNG").read_bytes().startswith(b"\x89PNG")
