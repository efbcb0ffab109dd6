"""A real Chromium, headless, that cannot reach any network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for this folder. Its event loop must end before tests that start their own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = "no Chromium on this machine (Debian: apt-get install chromium)"
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS.split())
        yield browser
        browser.close()
