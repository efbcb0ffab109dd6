"""Makes docs/images/page.png, the picture of the page in README.md: `make picture`.

The page is that of results/smollm2-135m, in a window as wide as a laptop's. Needs Chromium.
"""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import sync_playwright

import attention_plasticity as ap

RESULTS, PICTURE = "results/smollm2-135m", Path("docs/images/page.png")
WIDTH, HEIGHT = 1440, 1070
READY = "html[data-state=ready]"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Open the page in a browser and save what its window shows."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        ap.open_run(RESULTS).report().save(page)
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        window = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.goto(page.as_uri())
        window.wait_for_selector(READY)
        shot = window.screenshot(animations="disabled")
        opened.close()
    picture = Image.open(BytesIO(shot)).convert("RGB").quantize(256)  # a third of the bytes
    picture.save(PICTURE, optimize=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
