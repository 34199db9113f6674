"""The playground's contact sheet in a real browser, with stand-in pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import make, pages
from tests.service.standin import MODEL


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with pages(browser, url) as run:
        page = run()
        page.select_option("#model", MODEL)
        yield page


def newest(url: str) -> dict[str, Any]:
    with httpx.Client(base_url=url, trust_env=False) as http:
        job: dict[str, Any] = http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]
    return job


def test_a_draft_that_is_clicked_is_finished(page: Page, url: str) -> None:
    page.fill("#num_images", "3")
    page.fill("#stop_at_step", "2")
    page.fill("#seed", "20")
    expect(make(page)).to_have_attribute("data-state", "paused")
    card = page.locator(".card[data-state=paused]")
    expect(card).to_contain_text("Stopped at step 2 of 4")
    paused = newest(url)
    card.get_by_role("button", name="Finish number 2").click()
    finished = page.locator(".card").first
    expect(finished).to_have_attribute("data-state", "succeeded")
    job = newest(url)
    assert job["continues"] == paused["id"]
    assert [output["seed"] for output in job["outputs"]] == [21]
    assert "stop_at_step" not in job["request"]
    expect(card.get_by_role("button", name="Finish number 3")).to_be_enabled()
    card.get_by_role("button", name="Finish all").click()
    expect(page.locator(".card")).to_have_count(3)
    expect(page.locator(".card").first).to_have_attribute("data-state", "succeeded")
    assert len(newest(url)["outputs"]) == 3


def test_sheet_survives_a_reload(page: Page, url: str) -> None:
    page.fill("#num_images", "2")
    page.fill("#stop_at_step", "1")
    expect(make(page)).to_have_attribute("data-state", "paused")
    page.reload()
    card = page.locator(".card[data-state=paused]").first
    card.get_by_role("button", name="Finish number 1").click()
    expect(page.locator(".card").first).to_have_attribute("data-state", "succeeded")
