"""A matplotlib backend whose windows say what they show: no screen is needed."""

from __future__ import annotations

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *, block: bool | None = None) -> None:
        for manager in Gcf.get_all_fig_managers():
            manager.canvas.draw()
            print("shown:", " ".join(manager.canvas.figure.texts[0].get_text().split()))


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
