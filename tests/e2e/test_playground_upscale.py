"""The playground's upscaler choice in a real browser, with stand-in pools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import make, pages
from tests.e2e.standins import TWICE
from tests.service.standin import MODEL, VIDEO, picture


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with pages(browser, url) as run:
        page = run()
        page.select_option("#model", MODEL)
        page.locator("#more > summary").click()
        yield page


def asked_for(url: str, page: Page) -> dict[str, Any]:
    """The request of a new job after resolution of its defaults."""
    card = make(page)
    expect(card).to_have_attribute("data-state", "succeeded")
    with httpx.Client(base_url=url, trust_env=False) as http:
        request: dict[str, Any] = http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]
    return dict(request["request"])


def test_an_upscaler_is_chosen_with_its_scale(page: Page, url: str) -> None:
    expect(page.locator("#upscale-scale")).to_be_hidden()
    assert "upscale" not in asked_for(url, page)
    page.select_option("#upscale", "photo")
    expect(page.locator("#upscale-scale")).to_have_value("4")
    assert asked_for(url, page)["upscale"] == {"name": "photo", "scale": 4}
    page.fill("#upscale-scale", "2.5")
    assert asked_for(url, page)["upscale"] == {"name": "photo", "scale": 2.5}
    page.select_option("#upscale", "anime")
    expect(page.locator("#upscale-scale")).to_have_value("2")


def test_hires_fix_is_ticked_and_filled_in(page: Page, url: str) -> None:
    """Inputs are made from the schema, as for any field that is a plain object."""
    expect(page.locator("#hires-members")).to_be_hidden()
    assert "hires" not in asked_for(url, page)
    page.check("#hires")
    page.fill("#hires-scale", "1")
    assert asked_for(url, page)["hires"]["upscaler"] == "latent"
    page.fill("#hires-scale", "1.5")
    page.fill("#hires-upscaler", "photo")
    page.fill("#hires-num_inference_steps", "3")
    hires = asked_for(url, page)["hires"]
    assert (hires["width"], hires["height"], hires["upscaler"]) == (144, 96, "photo")
    assert hires["num_inference_steps"] == 3
    expect(page.locator("#refiner")).to_be_hidden()
    page.select_option("#model", VIDEO.name)
    expect(page.locator("#hires")).to_be_hidden()


def test_a_models_default_hires_fix_is_switched_off(page: Page, url: str) -> None:
    """The option stays off when the form loads that job's settings."""
    page.select_option("#model", TWICE.name)
    expect(page.locator("#hires")).to_be_checked()
    expect(page.locator("#hires-scale")).to_have_value("1.5")
    assert asked_for(url, page)["hires"]["width"] == 144
    page.fill("#hires-scale", "1")
    assert asked_for(url, page)["hires"]["width"] == 96
    page.uncheck("#hires")
    assert asked_for(url, page)["hires"] is None
    page.check("#hires")
    page.locator(".card").first.get_by_role("button", name="Use settings").click()
    expect(page.locator("#hires")).not_to_be_checked()
    assert asked_for(url, page)["hires"] is None


def test_mask_disables_the_default_hires_fix(page: Page, url: str, tmp_path: Path) -> None:
    page.select_option("#model", TWICE.name)
    (tmp_path / "a.png").write_bytes(picture())
    for name in ("image", "mask_image"):
        page.set_input_files(f"#{name}", tmp_path / "a.png")
    request = asked_for(url, page)
    assert "mask_image" in request and "hires" not in request


def test_a_model_of_videos_has_no_choice_of_it(page: Page) -> None:
    expect(page.locator("#upscale")).to_be_visible()
    page.select_option("#model", VIDEO.name)
    expect(page.locator("#upscale")).to_be_hidden()
