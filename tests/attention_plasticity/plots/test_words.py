"""Texts around figures: titles, footnotes, captions and legends."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attention_plasticity import ConfigError, open_run
from attention_plasticity.cli import main
from attention_plasticity.plots import map_figure, plasticity_figure, save_figure
from attention_plasticity.plots.all_figures import FIGURES
from attention_plasticity.plots.captions import caption_of
from attention_runs import add_attention
from band_tables import add_bands
from drift_runs import add_drift
from fidelity_runs import add_fidelity
from key_head_runs import add_key_heads
from role_runs import add_roles
from run_tables import (
    add_bins,
    add_windows,
    aligned_metrics,
    cells_table,
    metrics_table,
    write_run,
)

MORE = {
    "trend": ("plasticity", {"color_trend": True}),
    "plain": ("plasticity", {}),
    "positions": ("attention", {"by_position": True}),
    "head": ("attention", {"layer": 1, "head": 0}),
    "limit": ("components", {"limit": 5}),
    "bucket-heatmap": ("heatmap", {"plasticity": "bucket"}),
    "bucket-profile": ("profile", {"plasticity": "bucket"}),
}


def test_legends_cover_no_data_and_texts_stay_in_the_figure(tmp_path: Path) -> None:
    run = add_bins(add_attention(add_windows(write_run(tmp_path / "run"))))
    run = open_run(add_drift(add_fidelity(add_key_heads(add_roles(add_bands(run))))))
    for name, (kind, options) in (FIGURES | MORE).items():
        figure = run.plot(kind, **options)
        figure.draw_without_rendering()
        axes = figure.axes[0]
        legend = axes.get_legend()
        if legend is not None:
            box, data = legend.get_window_extent(), axes.get_window_extent()
            assert box.y0 >= data.y1 - 1 or box.y1 <= data.y0, name
        drawn = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        allowed = figure.bbox.padded(2)
        assert allowed.containsx(drawn.x0), name
        assert allowed.containsx(drawn.x1), name
        assert allowed.containsy(drawn.y0), name
        assert allowed.containsy(drawn.y1), name
        require_room(figure, name)
        require_readable(figure, name)


def require_readable(figure: Figure, name: str) -> None:
    """In a column of 3.3 inches every text has at least 6 points."""
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    assert texts
    for text in texts:
        assert text.get_fontsize() * 3.3 / figure.get_figwidth() > 5.99, (name, text.get_text())


def require_room(figure: Figure, name: str) -> None:
    """Labels are not longer than their axes."""
    for axes in figure.axes:
        label, extent = axes.yaxis.label.get_window_extent(), axes.get_window_extent()
        assert label.height <= 1.05 * extent.height, (name, axes.get_ylabel())


def test_title_and_footnote_can_be_replaced_or_left_out(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run"))
    empty = run.plot("map", title="", footnote="")
    assert empty.axes[0].get_title(loc="left") == ""
    assert empty._supxlabel is None  # type: ignore[attr-defined]
    own = run.plot("map", footnote="costs $5 and $6, " + "and more " * 20)
    lines = own._supxlabel.get_text().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith(r"costs \$5 and \$6, and more")
    assert len(lines) == 3
    assert caption_of(empty) == caption_of(run.plot("map"))


def test_a_caption_has_what_a_paper_needs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_pairs_per_bucket=256, query_model="diagonal", seed=3)
    caption = caption_of(open_run(folder).plot("heatmap", color_range="unit"))
    assert caption == (
        "Plasticity over a bucket, by query position and key position, mean over heads. 12 query "
        "heads of Tiny-1B; context of 768 tokens. Queries are compared as captured, so rotary "
        "phase counts. Colours range from 0 to 1. Keys after their query have no cell. The first "
        "bucket has no value, because no bucket of keys comes before it. The run has no "
        "plasticity at one position. Key pairs: two keys of one text and one key bucket, 256 per "
        "key bucket; query_model: diagonal; seed: 3."
    )
    tested = aligned_metrics(metrics_table()).assign(n_text_groups=12)
    marked = caption_of(map_figure(tested, metric="drop", model_name="tiny"))
    assert marked is not None
    assert marked.startswith(
        "Drop of plasticity at one position of every query head, by layer and head (plasticity at "
        "one position in the first fifth of the longest text minus the last fifth; positive: "
        "plasticity falls with position; 0: no change from start to end)."
    )
    assert "12 query heads of tiny." in marked
    assert "(12 of 12 tested heads)" in marked
    assert "from the variation over texts (12 groups of texts, Student's t)" in marked
    assert caption_of(Figure()) is None


def test_captions_are_written_beside_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = plasticity_figure(cells_table())
    save_figure(figure, str(tmp_path / "one.svg"))
    save_figure(figure, tmp_path / "one.pdf")  # replaces its own caption
    text = (tmp_path / "one.txt").read_text()
    assert text.startswith(f"{caption_of(figure)}\n\nFigure made with attention-plasticity ")
    save_figure(Figure(), tmp_path / "bare.png")
    assert not (tmp_path / "bare.txt").exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt: exists and is not the caption of a figure"):
        save_figure(figure, tmp_path / "notes.png")
    assert not (tmp_path / "notes.png").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match=r"^one\.bmp: expected a name ending in \.png"):
        save_figure(figure, "one.bmp")
    run = write_run(tmp_path / "run")
    words = ["--title", "", "--footnote", "mine", "--output", str(tmp_path / "new" / "map.svg")]
    assert main(["plot", "map", str(run), *words]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'map.svg'}\n"
    assert "<!-- mine -->" in (tmp_path / "new" / "map.svg").read_text()
    assert "of Tiny-1B" in (tmp_path / "new" / "map.txt").read_text()


def test_run_plot_has_the_options_of_the_command(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run"))
    figure = run.plot("heatmap", agg="median", layers="0-1", bucket_min_size=10, model_name="mine")
    assert isinstance(figure, Figure)
    assert figure.axes[0].get_title(loc="left").endswith("\nmine")
    assert str(run.select("2").plot("profile").get_supxlabel()).startswith(
        "4 heads of layer 2 (full attention)"
    )
    for kind, options, told in (
        ("maps", {}, "'maps': unknown kind of figure; did you mean map?"),
        ("zzz", {}, "'zzz': unknown kind of figure; there are plasticity, heatmap, "),
        ("map", {"metrics": 1}, "metrics: unknown option of 'map'; did you mean metric?"),
        ("map", {"output": "x.png"}, "output: unknown option of 'map'; there are layers, "),
        ("map", {"vmin": "a"}, "vmin: expected a number, got 'a'"),
        ("heatmap", {"vmin": 2.0, "vmax": 1.0}, "vmin: must be below vmax, got 2.0 and 1.0"),
        ("map", {"layer_type": "sliding"}, "layer_type: 'sliding': no layer has this type"),
        ("attention", {}, "has no attention by distance; it needs a dump with"),
        ("drift", {}, "has no table of drift; it needs the texts"),
    ):
        with pytest.raises(ConfigError) as caught:
            run.plot(kind, **options)
        assert told in str(caught.value)
        assert "--" not in str(caught.value)
