"""`attention-plasticity plot`, the scripts of the seeds, and the files they write."""

import runpy
import shutil
import sys
from pathlib import Path

import matplotlib.image
import pytest
import yaml
from matplotlib import pyplot
from matplotlib._pylab_helpers import Gcf

from attention_plasticity.cli import main
from attention_plasticity.figures import save_figure
from attention_plasticity.figures.command import _drawn
from attention_plasticity.figures.registry import figures_of, spec_of
from attention_plasticity.figures.settings import FigureOptions, ScriptSettings
from helpers.drawn_runs import legend, panels, title
from helpers.run_tables import bins_table, cells_table, write_run
from qk_toolkit.errors import ConfigError

ROOT = Path(__file__).parents[3]
SCRIPTS = {
    "plot_plasticity.py": "plasticity",
    "plot_bucket_heatmap.py": "heatmap",
    "plot_component_weights.py": "components",
}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def plot(*words):
    return main(["plot", *(str(word) for word in words)])


def run_script(name, words, monkeypatch):
    """The exit code of a script of the seeds."""
    path = str(ROOT / "scripts" / name)
    monkeypatch.setattr(sys, "argv", [path, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(path, run_name="__main__")
    return ended.value.code


def drawn(name, **settings):
    return _drawn(spec_of(name), ScriptSettings(**settings))


def labels(figure):
    return [tick.get_text() for tick in figure.axes[0].get_xticklabels()]


def test_a_figure_is_written_beside_the_run_or_where_it_is_wanted(run, tmp_path, capsys):
    assert plot("map", run) == 0
    assert plot("key_heads", run) == 2  # a run without this table
    assert plot("profile", "--run", run, "--format", "svg") == 0
    assert plot("map", run, "--width=text", "--output", tmp_path / "wide.png") == 0
    assert plot("map", run, "--format", "pdf", "--output", tmp_path / "named") == 0
    told = capsys.readouterr()
    names = [run / "figures" / "map.png", run / "figures" / "profile.svg"]
    names += [tmp_path / "wide.png", tmp_path / "named.pdf"]
    assert told.out.split() == [str(name) for name in names]
    assert all(name.is_file() and name.with_suffix(".txt").is_file() for name in names)
    assert matplotlib.image.imread(tmp_path / "wide.png").shape[1] == round(6.75 * 300)


def test_all_figures_and_the_others_with_reasons(run, tmp_path, capsys):
    words = ("all", run, "--format", "svg", "--layers", "1", "--agg", "median")
    assert plot(*words, "--output", tmp_path / "out") == 0
    told = capsys.readouterr()
    assert {Path(line).name for line in told.out.split()} == {
        *("plasticity.svg", "profile.svg", "depth.svg", "heatmap.svg", "map-plasticity.svg"),
        *("ranks.svg", "components.svg"),
    }
    assert "median over heads" in (tmp_path / "out" / "heatmap.txt").read_text()
    assert "note: not drawn: key-heads (needs the texts" in told.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plasticity"], "--run: is required"),
        (["map", "nowhere"], "nowhere: does not exist; give the output_dir of an analysis, or"),
        (["map", "{run}", "--metric", "drop"], "has no RoPE-aligned plasticity; it needs"),
        (["heatmap", "{run}", "--vmin", "2", "--vmax", "1"], "--vmin: must be below vmax"),
        (["map", "{run}", "--output", "{run}/run.json/x.png"], "run.json/x.png"),
    ],
)
def test_misuse_is_one_short_line(words, told, run, capsys):
    given = [word.replace("{run}", str(run)) for word in words]
    assert plot(*given) in (1, 2)
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert len(message) < 400
    assert told in message
    assert not (run / "figures").exists()


def test_the_help_of_a_figure_has_its_options_only(capsys):
    for spec in figures_of("run"):
        with pytest.raises(SystemExit):
            plot(spec.name, "--help")
        text = capsys.readouterr().out
        for name in FigureOptions.model_fields:
            assert (f"--{name} " in text) == (name in spec.taken), (spec.name, name)
        assert f"attention-plasticity plot {spec.name} results/mine\n" in text


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "plots").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_config_of_a_script_draws(path, run, tmp_path, monkeypatch):
    name = path.stem.rsplit("-", 1)[-1]
    settings = yaml.safe_load(path.read_text())
    field = "component_csv" if name == "components" else "bucket_csv"
    place = tmp_path / Path(settings[field]).parent
    place.parent.mkdir(parents=True)
    shutil.copytree(run, place)
    file = next(script for script, kind in SCRIPTS.items() if kind == name)
    monkeypatch.chdir(tmp_path)
    assert run_script(file, ["--config", str(path)], monkeypatch) == 0
    assert (tmp_path / settings["output"]).is_file()


def test_the_keys_of_the_original_tool(run, tmp_path):
    table = str(run / "head_bucket_plasticity.csv")
    figure = drawn("heatmap", bucket_csv=table)
    assert title(figure) == "Plasticity over a bucket, query × key"
    assert labels(figure)[:3] == ["128", "256", "384"]  # the first bucket has no cell
    alone = tmp_path / "elsewhere.csv"
    cells_table().to_csv(alone, index=False)
    assert title(drawn("heatmap", bucket_csv=str(alone))) == "Plasticity over a bucket, query × key"
    assert labels(drawn("heatmap", bucket_csv=str(alone)))[:3] == ["1", "2", "3"]
    sized = drawn("heatmap", bucket_csv=str(alone), bucket_min_size=10)
    assert labels(sized)[:3] == ["10", "20", "30"]
    log = drawn("heatmap", run=str(run), bucket_type="log", bucket_min_size=2)
    assert labels(log)[:3] == ["0", "3", "7"]
    line = panels(drawn("plasticity", run=str(run), bucket_min_size=10))[0].lines[0]
    assert list(line.get_xdata()) == [10, 20, 30, 40, 50]
    coloured = drawn("plasticity", bucket_csv=table, color_by_layer=True)
    assert {"layer 0", "layer 1"} <= set(legend(coloured))
    ranged = drawn("heatmap", bucket_csv=table, color_range="unit", vmax=0.9)
    assert ranged.axes[0].images[0].get_clim() == (0.0, 0.9)


def test_tables_of_the_original_tool_and_of_bins_are_drawn(tmp_path):
    old = cells_table()[["layer", "q_head", "q_bucket", "k_bucket", "plasticity"]]
    old.rename(columns={"plasticity": "ap_bucket"}).to_csv(tmp_path / "old.csv", index=False)
    figure = drawn("plasticity", bucket_csv=str(tmp_path / "old.csv"))
    assert panels(figure)[0].get_xlabel() == "query bucket"
    bins_table().to_csv(tmp_path / "bins.csv", index=False)
    figure = drawn("plasticity", bucket_csv=str(tmp_path / "bins.csv"))
    assert panels(figure)[0].get_ylabel() == "RoPE-aligned plasticity"
    weights = tmp_path / "weights.csv"
    weights.write_text("layer,q_head,component,component_weight\n0,0,0,0.25\n0,0,1,0.75\n")
    figure = drawn("components", component_csv=str(weights), limit=1)
    assert len(panels(figure)[0].patches) == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"bucket_csv": "{run}"}, "is a folder; give a table"),
        ({"bucket_csv": "nowhere.csv"}, "nowhere.csv: does not exist"),
        ({"bucket_csv": "{cells}", "bucket_type": "log"}, "bucket_min_size: is required with"),
        (
            {"run": "{run}", "bucket_type": "uniform", "plasticity": "position"},
            "bucket_type: is of buckets, not of bins",
        ),
    ],
)
def test_misuse_of_a_script(settings, told, run, tmp_path):
    cells_table().to_csv(tmp_path / "cells.csv", index=False)
    places = {"{run}": str(run), "{cells}": str(tmp_path / "cells.csv")}
    given = {name: places.get(value, value) for name, value in settings.items()}
    with pytest.raises(ConfigError) as error:
        drawn("heatmap", **given)
    assert told in str(error.value)


def test_without_an_output_a_script_opens_a_window(run, monkeypatch, capsys):
    words = ["--bucket_csv", str(run / "head_bucket_plasticity.csv")]
    assert run_script("plot_plasticity.py", words, monkeypatch) == 2
    told = "there is no display to show a figure on; add --output FILE.png"
    assert told in capsys.readouterr().err
    assert run_script("plot_plasticity.py", [], monkeypatch) == 2
    assert "--bucket_csv: give one table, or the folder of a run" in capsys.readouterr().err
    assert run_script("plot_plasticity.py", ["--color_by_layer", "--color_trend"], monkeypatch) == 2
    shown = []
    monkeypatch.setattr(pyplot, "get_backend", lambda: "windows")
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(title(Gcf.get_active().canvas.figure)))
    assert run_script("plot_plasticity.py", words, monkeypatch) == 0
    assert shown == ["Plasticity over a bucket"]
    pyplot.close("all")


def test_a_file_that_is_no_caption_is_kept(run, tmp_path):
    (tmp_path / "map.txt").write_text("my notes")
    with pytest.raises(ConfigError, match="exists and is not the caption of a figure"):
        save_figure(_map(run), tmp_path / "map.png")
    save_figure(_map(run), tmp_path / "new" / "map.PNG")
    assert (tmp_path / "new" / "map.PNG").read_bytes().startswith(b"\x89PNG")


def _map(run):
    from attention_plasticity import open_run

    return open_run(run).plot("map")
