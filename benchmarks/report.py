"""The page: its size, how long it takes to load and to answer a click, in a headless Chromium.

    python -m benchmarks.report                    # 1,200 heads, 140,400 cells, 128 dimensions
    python -m benchmarks.report --rounds 9
    python -m benchmarks.report --size 36x32x256   # 1,152 heads, each with 16 × 16 cells
    python -m benchmarks.report --run FOLDER       # a finished run

Each also as a ratio to a bare Plotly page with one heatmap of as many cells, timed in turn in the
same run. On a machine that is busy with other things, look at the thread's CPU time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from playwright.sync_api import Browser, sync_playwright

from attention_plasticity.metrics import HEAD_NUMBERS, TABLES
from attention_plasticity.page import make_report
from attention_plasticity.page.html import plotly_bundle
from attention_plasticity.tables.finished_run import FinishedRun

BUCKETS, WIDTH, CONTEXT = 16, 128, 131_072
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
Times = tuple[list[float], list[float]]  # by the clock, and CPU time of the page's thread
_CLICKS = """async (heads) => {
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
_BARE = """<!doctype html><html><meta charset="utf-8"><body><div id="plot"></div>
<script>{plotly}</script><script>
const z = {z};
const draw = () => Plotly.react("plot", [{{ type: "heatmap", z: z.map((row) => [...row]) }}]);
draw().then(() => {{
  performance.mark("ready");
  document.documentElement.dataset.state = "ready";
}});
const redraws = async (count) => {{
  const times = [];
  while (times.length < count) {{
    const began = performance.now();
    z[0][0] = Math.random();
    await draw();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - began);
  }}
  return times;
}};
</script>"""


def main() -> None:
    """Print size and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="loads of each page, in turn")
    parser.add_argument("--size", default="30x40x117", help="layers x heads x cells of a head")
    parser.add_argument("--run", type=Path, help="a finished run, instead of random tables")
    options = parser.parse_args()
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("no Chromium on this machine")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        if options.run is None:
            write_large(folder, *map(int, options.size.split("x")))
        began = time.perf_counter()
        run = FinishedRun.open(options.run or folder)
        ours = make_report([run]).save(folder / "report.html")
        heads, cells = len(run.head_metrics), len(run.bucket_plasticity)
        print(f"written in {time.perf_counter() - began:.1f} s, {ours.stat().st_size / 1e6:.2f} MB")
        bare = folder / "bare.html"
        bare.write_text(_bare_page(heads, cells // heads), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS.split())
        print(f"Chromium {browser.version}, 1366 × 768, {heads:,} heads, {cells:,} cells\n")
        _print(_measured(browser, ours, bare, options.rounds))
        browser.close()


class Timed:
    """A page in a tab of its own: how long things take, and how long they keep its thread busy."""

    def __init__(self, browser: Browser, path: Path) -> None:
        self.page = browser.new_page(viewport={"width": 1366, "height": 768})
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-state=ready]")

    def loaded(self) -> Times:
        """From the start of navigation until everything is drawn."""
        ready = self.page.evaluate("performance.getEntriesByName('ready')[0].startTime")
        return [ready], [self.busy()]

    def repeated(self, code: str, argument: object, count: int) -> Times:
        """What `code` says it took each time; its thread's time is a mean."""
        before = self.busy()
        walls = self.page.evaluate(code, argument)
        return walls, [(self.busy() - before) / count]

    def busy(self) -> float:
        """Milliseconds of CPU time of the page's main thread so far."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return 1000.0 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def _measured(browser: Browser, ours: Path, bare: Path, rounds: int) -> dict[str, Times]:
    rng = np.random.default_rng(0)
    found: dict[str, Times] = {}

    def add(name: str, times: Times) -> None:
        for kept, new in zip(found.setdefault(name, ([], [])), times, strict=True):
            kept += new

    for _ in range(rounds):
        tab = Timed(browser, ours)
        add("load", tab.loaded())
        heads = rng.uniform(0.01, 0.99, (12, 2)).tolist()
        tab.page.evaluate(_CLICKS, heads[:2])
        add("click", tab.repeated(_CLICKS, heads[2:], 10))
        tab.page.close()
        tab = Timed(browser, bare)
        add("bare load", tab.loaded())
        tab.page.evaluate("redraws", 1)
        add("bare redraw", tab.repeated("redraws", 5, 5))
        tab.page.close()
    return found


def _print(found: dict[str, Times]) -> None:
    """Best and median of the clock, median of the thread's time, and its ratio to bare Plotly's."""
    print("                 ms: best   median   CPU of the thread   ratio to bare Plotly")
    for ours, bare in (("load", "bare load"), ("click", "bare redraw")):
        ratio = np.median(found[ours][1]) / np.median(found[bare][1])
        for name, note in ((ours, f"{ratio:19.2f}"), (bare, "")):
            walls, busy = found[name]
            clock = f"{min(walls):12.0f} {np.median(walls):8.0f}"
            print(f"{name:12s} {clock} {np.median(busy):19.0f} {note}")


def _bare_page(heads: int, cells: int) -> str:
    """What Plotly alone takes: its library uncompressed in the page, and one heatmap."""
    plotly = gzip.decompress(plotly_bundle()).decode()
    z = np.random.default_rng(0).random((heads, cells)).round(4)
    return _BARE.format(plotly=plotly.replace("</script", "<\\/script"), z=json.dumps(z.tolist()))


def write_large(folder: Path, layers: int, heads: int, cells_per_head: int) -> None:
    """Tables of a run with so many layers, heads per layer, and cells per head."""
    rng = np.random.default_rng(0)
    layer, head = (part.ravel() for part in np.indices((layers, heads)))
    profile = np.clip(
        rng.normal(0.7, 0.15, (len(layer), 1))
        - rng.normal(0.1, 0.15, (len(layer), 1)) * np.linspace(-0.3, 0.7, BUCKETS),
        0.0,
        1.0,
    )  # (heads, buckets)
    ids = {"layer": layer, "q_head": head, "k_head": head // 4}
    metrics = pd.DataFrame({name: rng.random(len(layer)) for name in HEAD_NUMBERS}).assign(
        **ids, n_q_tokens=50_000, n_k_tokens=50_000, d_model=WIDTH, q_position_max=CONTEXT - 1
    )
    metrics["ap_overall"] = profile.mean(axis=1)
    metrics["ap_aligned_drop"] = profile[:, 0] - profile[:, -1]
    metrics.to_csv(folder / "head_metrics.csv", index=False)

    pairs = sorted(np.ndindex(BUCKETS, BUCKETS), key=lambda pair: pair[1] >= pair[0])
    query, key = np.array(pairs[:cells_per_head]).T  # earlier keys first
    size = CONTEXT // BUCKETS
    cells = pd.DataFrame(
        {name: np.repeat(values, cells_per_head) for name, values in ids.items()}
    ).assign(q_bucket=np.tile(query, len(layer)), k_bucket=np.tile(key, len(layer)))
    cells["plasticity"] = np.clip(profile[:, query].ravel() + rng.normal(0, 0.02, len(cells)), 0, 1)
    cells["n_pairs"] = 256
    drift = rng.normal(0, 20, (len(layer), BUCKETS)) + (np.arange(BUCKETS) + 0.5) * size
    cells["q_position"], cells["k_position"] = drift[:, query].ravel(), drift[:, key].ravel()
    cells["n_queries"], cells["n_texts"] = 3_000, 64 - 3 * cells["q_bucket"]
    cells.to_csv(folder / "head_bucket_plasticity.csv", index=False)

    weight = rng.random((len(layer), WIDTH)) ** 4
    weight /= weight.sum(axis=1, keepdims=True)
    parts = pd.DataFrame({name: np.repeat(values, WIDTH) for name, values in ids.items()}).assign(
        component=np.tile(np.arange(WIDTH), len(layer)), weight=weight.ravel()
    )
    parts["r2"] = rng.random(len(parts))
    parts.to_csv(folder / "head_component_weights.csv", index=False)
    dump = {"model": "owner/large", "bucket_type": "uniform", "min_bucket_size": size}
    tables = {kind: one.file for kind, one in TABLES.items() if (folder / one.file).exists()}
    info = {"input": {"dump": dump}, "tables": tables}
    (folder / "run.json").write_text(json.dumps(info))


if __name__ == "__main__":
    main()
