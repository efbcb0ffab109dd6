"""The page of a large run in headless Chromium: size, load and click, against bare Plotly.

The run is that of results/smollm2-135m, four times below each other. Bare Plotly is a page with one
heatmap of as many cells as the run has cells of buckets.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
from playwright.sync_api import Browser, Page, sync_playwright

import attention_plasticity as ap
from attention_plasticity.page.html import plotly_bundle
from benchmarks.timing import show

RESULTS, COPIES, LAYERS = Path("results/smollm2-135m"), 4, 30
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
READY = "html[data-state=ready]"
CLICK = """async (heads) => {
  const plot = document.querySelector(".map-plot"), times = [];
  const area = plot.querySelector(".nsewdrag").getBoundingClientRect();
  const root = document.documentElement;
  for (const [x, y] of heads) {
    const began = performance.now();
    const at = { clientX: area.left + x * area.width, clientY: area.top + y * area.height };
    plot.dispatchEvent(new MouseEvent("click", { ...at, bubbles: true }));
    while (root.dataset.state !== "ready") await new Promise((done) => setTimeout(done));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - began);
  }
  return times;
}"""
REDRAW = """async () => {
  const began = performance.now();
  z[0][0] = Math.random();
  await draw();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [performance.now() - began];
}"""
BARE = """<!doctype html><html><meta charset="utf-8"><body><div id="plot"></div>
<script>{plotly}</script><script>
const z = {z};
const draw = () => Plotly.react("plot", [{{ type: "heatmap", z: z.map((row) => [...row]) }}]);
draw().then(() => {{
  performance.mark("ready");
  document.documentElement.dataset.state = "ready";
}});
</script>"""


def benchmark(options: Namespace) -> None:
    """Print sizes and times of both pages."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("no Chromium on this machine")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        cells = write_copies(folder / "run")
        pages = {"the page": folder / "page.html", "bare Plotly": folder / "bare.html"}
        ap.open_run(folder / "run").report().save(pages["the page"])
        pages["bare Plotly"].write_text(_bare(cells), encoding="utf-8")
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in pages}
        for _ in range(options.rounds):
            for page, found in times.items():
                found.append(_times(opened, pages[page]))
        rows = []
        for page, found in times.items():
            load, click = np.min(found, axis=0)
            size = f"{pages[page].stat().st_size / 1e6:.1f} MB"
            rows.append([page, size, f"{load / 1e3:.1f} s", f"{click:.0f} ms"])
        print(f"Chromium {opened.version}, without a GPU")
        show([f"{COPIES * 270:,} heads, {cells.size:,} cells", "size", "load", "click"], rows)
        opened.close()


def write_copies(folder: Path) -> np.ndarray:
    """Write the run with more layers; returns its cells (heads, cells of a head)."""
    folder.mkdir()
    info = json.loads((RESULTS / "run.json").read_text())
    del info["sha256"]  # of tables with fewer layers
    for name in info["tables"].values():
        table = pd.read_csv(RESULTS / name)
        copies = [table.assign(layer=table["layer"] + LAYERS * copy) for copy in range(COPIES)]
        pd.concat(copies).to_csv(folder / name, index=False)
    (folder / "run.json").write_text(json.dumps(info))
    cells = pd.read_csv(folder / "head_bucket_plasticity.csv")
    plasticity: np.ndarray = cells["plasticity"].to_numpy().reshape(COPIES * 270, -1)
    return plasticity


def _times(browser: Browser, path: Path) -> tuple[float, float]:
    """Milliseconds of a load, and of the fastest click or redraw of five."""
    page: Page = browser.new_page(viewport={"width": 1366, "height": 768})
    page.goto(path.as_uri())
    page.wait_for_selector(READY)
    load = page.evaluate("performance.getEntriesByName('ready')[0].startTime")
    heads = np.random.default_rng(0).uniform(0.01, 0.99, (5, 2)).tolist()
    if page.query_selector(".map-plot"):
        clicks = page.evaluate(CLICK, heads)
    else:
        clicks = [page.evaluate(REDRAW)[0] for _ in heads]
    page.close()
    return float(load), float(min(clicks))


def _bare(cells: np.ndarray) -> str:
    plotly = gzip.decompress(plotly_bundle()).decode().replace("</script", "<\\/script")
    return BARE.format(plotly=plotly, z=json.dumps(cells.round(4).tolist()))
