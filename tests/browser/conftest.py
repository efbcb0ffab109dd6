"""A real Chromium, headless, that cannot reach any network."""

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect, sync_playwright

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.finished_run import FinishedRun
from helpers.added_tables import add_attention, add_drift, add_key_heads, add_roles
from helpers.plain_runs import edit_info, edit_table
from helpers.report_pages import (
    EVIL,
    FEW,
    HOSTILE,
    WARNINGS,
    WITHOUT_ATTENTION,
    open_runs,
    settled,
    show,
    without_errors,
)
from helpers.report_runs import write_baselines, write_run
from waiting import PATIENCE

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@pytest.fixture(scope="package")
def browser():
    """One browser for this folder. Its event loop must end before tests that start their own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = "no Chromium on this machine (Debian: apt-get install chromium)"
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(reason)
    with sync_playwright() as playwright:
        expect.set_options(timeout=1000 * PATIENCE)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    """The runs of the page that most tests share.

    `full` has every table, errors and baselines, and a head without attention. `other` has another
    seed, attention without errors, and no roles. `few` has three texts and roles without words.
    `bucket` has heads and cells alone, with warnings and a value that is missing. `EVIL` has names
    and tokens that try to leave their place. `old` has tables of the original tool.
    """
    folder = tmp_path_factory.mktemp("runs")
    full = add_attention(write_run(folder / "full", position=True))
    layer, head = WITHOUT_ATTENTION
    known = f"layer != {layer} or q_head != {head}"
    edit_table(full, "attention", lambda rows: rows.query(known))
    write_baselines(add_key_heads(add_drift(add_roles(full, bands=True))))
    add_drift(add_attention(write_run(folder / "other", 1, position=True), seed=1, errors=False))
    few = add_roles(
        write_run(folder / "few", position=True), words=False, capture={"tokens": False}
    )
    _forget_errors(few)
    write_run(folder / "bucket", seed=4, warnings=WARNINGS)
    unknown = {"q_R2_scalar": lambda heads: heads["q_R2_scalar"].where(heads.index != 4)}
    edit_table(folder / "bucket", "metrics", lambda heads: heads.assign(**unknown))
    hostile = write_run(folder / "hostile", seed=5, model=f"owner/{EVIL}")
    add_roles(hostile, tokens=HOSTILE)
    _keep_old_columns(write_run(folder / "old", 2, "earlier", min_bucket_size=None))
    names = {name: name for name in ("full", "other", "few", "bucket", "hostile", "old")}
    names["hostile"] = EVIL
    return {label: FinishedRun.open(folder / name) for name, label in names.items()}


def _keep_old_columns(folder):
    """Change a run as if the original tool had made its tables."""
    for name in ("head_metrics", "head_bucket_plasticity"):
        table = pd.read_csv(folder / f"{name}.csv")
        columns = ["layer", "q_head", "ap_overall", "q_bucket", "k_bucket", "plasticity"]
        table[[c for c in columns if c in table]].to_csv(folder / f"{name}.csv", index=False)
    (folder / "head_component_weights.csv").unlink()
    tables = json.loads((folder / "run.json").read_text())["tables"]
    del tables["component_weights"]
    edit_info(folder, tables=tables)


def _forget_errors(folder):
    """Change a run as if its dump had three texts."""
    metrics = pd.read_csv(folder / "head_metrics.csv")
    errors = [name for name in metrics if name.endswith("_se")]
    metrics = metrics.assign(**dict.fromkeys(errors, np.nan), n_text_groups=3)
    metrics.to_csv(folder / "head_metrics.csv", index=False)
    influences = pd.read_csv(folder / "head_influences.csv")
    influences[list(GROUP_COLUMNS)] = np.nan
    influences.assign(n_groups=3).to_csv(folder / "head_influences.csv", index=False, na_rep="nan")
    record = {"table": "head_metrics", "columns": errors, "reason": FEW, "heads": 29}
    edit_info(folder, missing=[{**record, "where": {str(layer): "0-5" for layer in range(5)}}])


@pytest.fixture(scope="package")
def shared(browser, runs, tmp_path_factory):
    """One page for most tests: making and loading it is what takes time."""
    with open_runs(browser, tmp_path_factory.mktemp("page"), runs) as page:
        yield page


@pytest.fixture
def page(shared):
    """The shared page with a head of the run `full`."""
    with without_errors(shared):
        show(shared, "run=full&head=1.2&metric=ap_aligned")
        yield shared
        shared.fill("#search", "")
        shared.emulate_media(color_scheme="light", media="screen")
        settled(shared)
