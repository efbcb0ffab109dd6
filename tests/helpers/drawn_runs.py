"""Runs with every table, and what is read back from a drawn figure."""

import numpy as np
from matplotlib.collections import LineCollection, PathCollection, PolyCollection

from helpers.added_tables import add_attention, add_drift, add_key_heads, add_roles
from helpers.run_tables import add_bins, add_errors, write_run


def whole_run(folder):
    """A run with every table, and with errors of all columns that can have them."""
    run = add_attention(write_run(folder, num_pairs_per_bin=256))
    run = add_drift(add_key_heads(add_roles(add_bins(run), bands=True)))
    return add_errors(run)


def title(figure):
    """The title, in one line."""
    return _text(figure, "title")


def notes(figure):
    """The small text below the panels, in one line."""
    return _text(figure, "notes")


def _text(figure, name):
    found = [text.get_text() for text in figure.texts if text.get_gid() == name]
    return " ".join(found[0].split()) if found else ""


def legend(figure):
    """The words of the legend."""
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def panels(figure):
    """The axes without those of colour bars."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def bars(figure):
    """The labels of the colour bars."""
    colour_bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    return [" ".join((one.get_ylabel() or one.get_xlabel()).split()) for one in colour_bars]


def points(axes, number=0):
    """(n, 2) of the points of a scatter."""
    found = [one for one in axes.collections if isinstance(one, PathCollection)]
    return np.asarray(found[number].get_offsets())


def segments(axes):
    """(lines, 2 ends, xy) of intervals."""
    found = [one for one in axes.collections if isinstance(one, LineCollection)]
    return np.array(found[0].get_segments())


def band_ends(axes):
    """Lower and upper ends of a band."""
    found = [one for one in axes.collections if isinstance(one, PolyCollection)]
    path = found[-1].get_paths()[0].vertices
    xs = np.unique(path[:, 0])
    low = np.array([path[path[:, 0] == x, 1].min() for x in xs])
    return low, np.array([path[path[:, 0] == x, 1].max() for x in xs])


def picture(axes):
    """(rows, columns) of a grid; masked cells are NaN."""
    return np.ma.filled(axes.images[0].get_array(), np.nan)
