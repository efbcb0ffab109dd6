"""The card "Drift with position": numbers of the selected head, and its place among all heads."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from attention_plasticity.tables.finished_run import FinishedRun
from report_pages import of_head


def headings(page: Page) -> list[str]:
    return page.locator("#drift-tables th[scope=col]").all_text_contents()


def test_the_numbers_of_the_head_are_those_of_the_table(
    page: Page, runs: dict[str, FinishedRun]
) -> None:
    row = of_head(runs["full"].table("drift"), 1, 2).iloc[0]
    cell = page.locator("[data-drift=q_drift_r_unrotated]")
    expect(cell).to_have_text(f"{row['q_drift_r_unrotated']:.3f} ± 0.009")
    for name in ("k_pc1_share", "k_pc1_r"):
        expect(page.locator(f"[data-drift={name}]")).to_have_text(f"{row[name]:.3f}")
    assert page.locator("[data-drift]").count() == 2 * 2 * 6
    expect(page.locator("#drift-note")).to_contain_text("±: half of the 95 % interval over texts")
    frames = ("after RoPE", "before RoPE")
    assert headings(page) == ["Queries", *frames, "Keys", *frames]
