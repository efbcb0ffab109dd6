"""Every figure of the registry is drawn, or says why not; the same run gives the same bytes."""

import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.text import Text

import attention_plasticity as ap
from attention_plasticity.config import RunnerConfig
from attention_plasticity.figures import FIGURES, caption_of, save_all, save_figure
from attention_plasticity.figures.draw import draw_figure
from attention_plasticity.figures.registry import figures_of, file_names, left_out, left_out_lines
from attention_plasticity.figures.settings import FigureOptions
from attention_plasticity.metrics import TABLES
from helpers.added_tables import add_attention, add_roles
from helpers.drawn_runs import notes, panels, title, whole_run
from helpers.run_tables import add_bins, write_run
from qk_toolkit.errors import ConfigError
from tools.write_figures import with_figures

ROOT = Path(__file__).parents[3]
WIDTHS = {"column": 3.3, "text": 6.75}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ap.open_run(whole_run(tmp_path_factory.mktemp("runs") / "whole"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return ap.open_run(write_run(tmp_path_factory.mktemp("runs") / "plain"))


@pytest.fixture(scope="module")
def drawn(run):
    """Every figure of the registry in the width of a column."""
    return drawn_in("column", run)


def drawn_in(width, run):
    found = []
    for spec in figures_of("run"):
        for own in spec.files.values():
            figure = draw_figure(spec, run, {**own, "width": width})
            figure.draw_without_rendering()
            found.append((spec, figure))
    return found


@pytest.mark.parametrize("width", ["column", pytest.param("text", marks=pytest.mark.long)])
def test_every_figure_has_the_width_of_a_paper_and_readable_text(run, drawn, width):
    for spec, figure in drawn if width == "column" else drawn_in(width, run):
        assert figure.get_figwidth() == WIDTHS[width], spec.name
        ends = figure.bbox.x1 + 1.0, figure.bbox.y1 + 1.0
        for text in figure.findobj(Text):
            if not text.get_text().strip() or not text.get_visible():
                continue
            assert text.get_fontsize() >= 6.0, (spec.name, text)
        for text in (*figure.texts, *(one for box in figure.legends for one in box.get_texts())):
            box = text.get_window_extent()
            inside = min(box.x0, box.y0) >= -1.0 and box.x1 <= ends[0] and box.y1 <= ends[1]
            assert inside, (spec.name, text.get_text())


def test_title_legend_and_notes_are_outside_the_panels(drawn):
    for spec, figure in drawn:
        tops = max(axes.get_tightbbox().y1 for axes in panels(figure))
        bottoms = min(axes.get_tightbbox().y0 for axes in figure.axes)
        for text in figure.texts:
            box = text.get_window_extent()
            if text.get_gid() == "title":
                assert box.y0 >= tops - 1.0, spec.name
            else:
                assert box.y1 <= bottoms + 1.0, spec.name
        for one in figure.legends:
            assert one.get_window_extent().y0 >= tops - 1.0, spec.name


def test_every_figure_has_title_labels_and_a_caption_without_names_of_settings(drawn):
    settings = {name for name in RunnerConfig.model_fields if "_" in name}
    columns = {name for table in TABLES.values() for name in table.names if "_" in name}
    for spec, figure in drawn:
        assert title(figure), spec.name
        assert "Tiny-1B" not in title(figure), spec.name
        assert notes(figure), spec.name
        for axes in panels(figure):
            assert axes.get_xlabel() or len(panels(figure)) > 1, spec.name
        caption = caption_of(figure)
        assert str(caption).endswith("."), spec.name
        assert caption is not None
        assert "Tiny-1B" in caption
        used = set(re.findall(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+", caption))
        assert not used & (settings | columns), (spec.name, used)
        assert ".csv" not in caption


def test_every_option_is_taken_by_a_figure():
    assert len(file_names()) == len(set(file_names()))
    taken = {name for spec in figures_of("run") for name in spec.taken}
    assert taken == set(FigureOptions.model_fields)


def test_the_page_of_figures_has_a_row_per_entry():
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert with_figures(page) == page
    assert page.count("\n| `") == len(FIGURES)
    for name in FigureOptions.everywhere:
        assert f"`{name}`" in page


def test_figures_are_saved_with_captions(run, tmp_path):
    assert left_out(run) == {}
    names = ["map-plasticity", "heatmap", "ranks"]
    paths = list(save_all(run, tmp_path, only=names, footnote=""))
    assert {path.stem for path in paths} == set(names)
    for path in paths:
        image = matplotlib.image.imread(path)  # (height, width, rgba)
        assert image.shape[1] == round(3.3 * 300)
        assert np.ptp(image[..., :3]) > 0.5
        assert "Figure made with attention-plasticity" in path.with_suffix(".txt").read_text()
    only = list(save_all(run, tmp_path / "two", "svg", ["map-drop", "roles"], layers=[1]))
    assert [path.name for path in only] == ["map-drop.svg", "roles.svg"]
    assert "layer 1" in only[0].with_suffix(".txt").read_text()


def test_a_run_says_what_the_other_figures_need(plain):
    lines = left_out_lines(plain)
    assert [re.findall(r"not drawn: (.*) \(needs", line)[0] for line in lines] == [
        "distance, map-drop, phase, attended",
        "key-heads",
        "roles, by-role, attention",
    ]
    for name in ("phase", "roles", "attention"):
        with pytest.raises(ConfigError, match=f"{name}: cannot be drawn; it needs"):
            plain.plot(name)


def test_needs_follow_the_values_of_a_run(tmp_path):
    run = ap.open_run(add_bins(add_attention(write_run(tmp_path / "run"))))
    assert "attention" not in left_out(run)
    assert left_out(run)["by-role"].startswith("a dump with attention columns")
    unsure = ap.open_run(add_roles(run.folder, scores={"role": "unsure"}))
    assert left_out(unsure)["by-role"] == "at least 3 heads whose role is sure"
    assert "roles" not in left_out(unsure)
    with pytest.raises(ConfigError, match="3 heads whose role is sure"):
        unsure.plot("by_role")


@pytest.mark.parametrize("kind", ["svg", "png", pytest.param("pdf", marks=pytest.mark.long)])
def test_the_same_run_gives_the_same_bytes(run, tmp_path, kind):
    for name in ("map", "by-role") if kind == "svg" else ("map",):
        files = [tmp_path / f"{name}-{part}.{kind}" for part in "ab"]
        for file in files:
            save_figure(run.plot(name), file)
        first, second = (file.read_bytes() for file in files)
        assert first == second
        assert first.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])


def test_title_and_footnote_can_be_left_out(run):
    figure = run.plot("profile", title="", footnote="", model_name="Mine")
    assert (title(figure), notes(figure)) == ("", "")
    assert "of Mine;" in str(caption_of(figure))
    assert title(run.plot("profile", title="Mine $x$")) == r"Mine \$x\$"
    taller = run.plot("profile").get_figheight()
    assert figure.get_figheight() < taller


def test_a_selection_is_named(run):
    figure = run.plot("map", layers="0,2", heads=[0, 1])
    assert notes(figure).startswith("4 heads of layers 0,2, heads 0-1")
    assert "layers 0,2, heads 0-1" in str(caption_of(figure))
    assert "Dashed lines mark layers that are left out (1)." in str(caption_of(figure))
    with pytest.raises(ConfigError, match="heads: 9 given; the table has heads 0-3"):
        run.plot("map", heads=9)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("maps", {}, "'maps': unknown figure; did you mean map?"),
        ("map", {"metrc": "x"}, "metrc: is no option of map; did you mean metric?"),
        ("map", {"metric": "ap_alined"}, "did you mean ap_aligned?"),
        ("heatmap", {"cmap": "virids"}, "did you mean viridis?"),
        ("map", {"layers": "7"}, "layers: 7 given; the table has layers 0-2"),
        ("plasticity", {"width": 3.3}, "width: expected one of column, text"),
    ],
)
def test_wrong_names_and_values_are_refused(run, name, options, told):
    with pytest.raises(ConfigError) as error:
        run.plot(name, **options)
    assert told in str(error.value)
    assert len(str(error.value)) < 300
