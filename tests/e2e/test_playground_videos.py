"""The playground with a video model and an image model in a real browser. Front end, queue and
store are real; the pools are stand-ins, so that every field can be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.browser import Open, make, pages
from tests.e2e.standins import HELD, MASKED, POSED, RETIRED, TWICE
from tests.service.standin import MODEL, VIDEO


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Open]:
    with pages(browser, url) as run:
        yield run


@pytest.fixture
def page(open_page: Open) -> Page:
    """Page with the video model selected."""
    page = open_page()
    page.select_option("#model", VIDEO.name)
    return page


def request_of(url: str, card: Locator) -> dict[str, Any]:
    """The newest job's request after resolution of its defaults."""
    expect(card).to_have_attribute("data-state", "succeeded")
    with httpx.Client(base_url=url, trust_env=False) as http:
        return http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]["request"]


def test_the_first_model_that_is_ready_is_chosen(open_page: Open) -> None:
    """The first model of the list has no pool, so another is selected."""
    models = open_page().locator("#model")
    names = [RETIRED.name, MODEL, HELD.name, MASKED.name, POSED.name, TWICE.name, VIDEO.name]
    expect(models.locator("option")).to_have_text(names)
    expect(models).to_have_value(MODEL)


def test_video_plays_and_downloads(page: Page, tmp_path: Path) -> None:
    card = make(page, num_frames=9, fps=4, seed=7)
    expect(card).to_have_attribute("data-state", "succeeded")
    video = card.locator("video")
    page.wait_for_function("() => document.querySelector('video').readyState >= 2")
    assert video.evaluate("v => [v.videoWidth, v.videoHeight, v.duration]") == [32, 32, 2.25]
    properties = "v => [v.controls, v.loop, v.muted, v.autoplay, v.playsInline]"
    assert video.evaluate(properties) == [True] * 5
    page.wait_for_function("() => document.querySelector('video').currentTime > 0")
    for setting in ("frames9", "fps4", "seed7"):
        expect(card).to_contain_text(setting)
    with page.expect_download() as loaded:
        card.get_by_text("Download").click()
    assert loaded.value.suggested_filename == "atelier-wan-demo-7.mp4"
    loaded.value.save_as(tmp_path / "clip.mp4")
    assert (tmp_path / "clip.mp4").read_bytes()[4:8] == b"ftyp"


def test_player_colours_match_the_video(page: Page) -> None:
    """The tolerance covers the browser's transfer curves and color management."""
    make(page)
    page.wait_for_function("() => document.querySelector('video')?.readyState >= 2")
    colours = page.evaluate("""() => {
      const video = document.querySelector("video"), canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
      const context = canvas.getContext("2d", {willReadFrequently: true});
      context.drawImage(video, 0, 0);
      const at = (x, y) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
      return [at(5, 11), at(28, 28)];
    }""")
    for colour, expected in zip(colours, [(255, 0, 0), (0, 0, 255)], strict=True):
        assert all(abs(a - b) < 24 for a, b in zip(colour, expected, strict=True)), colours


@pytest.mark.parametrize("format", ["gif", "webm"])
def test_other_formats(page: Page, format: str) -> None:
    page.locator("#more summary").click()
    page.select_option("#output", format)
    card = make(page, num_frames=5)
    shown = card.locator("img" if format == "gif" else "video")
    expect(shown).to_have_js_property("complete" if format == "gif" else "readyState",
                                      True if format == "gif" else 4)  # fmt: skip
    expect(card.get_by_text("Download")).to_have_attribute("download", re.compile(rf"\.{format}$"))


def test_frames_are_a_strip(page: Page) -> None:
    page.locator("#more summary").click()
    page.select_option("#output", "png")
    card = make(page, num_frames=5, num_images=2)
    expect(card).to_have_attribute("data-state", "succeeded")
    expect(card.locator(".strip")).to_have_count(2)
    expect(card.locator(".strip img")).to_have_count(10)
    expect(card.locator(".strip img").first).to_have_js_property("naturalWidth", 32)
    card.locator("summary").click()
    expect(card.get_by_label("Download number 10")).to_be_visible()


def test_the_form_has_the_fields_of_the_model(page: Page) -> None:
    """The form shows the selected model's fields; values of the other model are not sent."""
    video_fields = ("num_frames", "fps", "scheduler")
    image_fields = ("eta", "clip_skip", "guidance_rescale")
    page.locator("#more summary").click()
    for name in video_fields:
        expect(page.locator(f"#{name}")).to_be_visible()
    for name in (*image_fields, "guidance_scale_2", "strength"):
        expect(page.locator(f"#{name}")).to_be_hidden()
    expect(page.locator("#num_frames")).to_have_value("5")
    expect(page.locator("#frames-hint")).to_contain_text("multiple of 4")
    page.select_option("#model", MODEL)
    for name in video_fields:
        expect(page.locator(f"#{name}")).to_be_hidden()
    for name in image_fields:
        expect(page.locator(f"#{name}")).to_be_visible()
    card = make(page)
    expect(card.locator("img")).to_have_js_property("complete", True)
    expect(card).to_contain_text(MODEL)


def test_fields_without_an_input_are_made_from_the_schema(page: Page, url: str) -> None:
    """Text, number-list and choice inputs are sent, show errors and are restored from a job. Every
    field that the model serves has an input."""
    page.select_option("#model", MODEL)
    page.locator("#more summary").click()
    (model,) = (
        entry for entry in httpx.get(f"{url}/v1/models").json()["data"] if entry["name"] == MODEL
    )
    for name in model["fields"]:
        expect(page.locator(f"[data-field={name}]")).to_have_count(1)
    expect(page.get_by_label("Max sequence length")).to_have_value("64")
    page.fill("#prompt_2", "a blue star")
    page.fill("#sigmas", "0.9, words")
    page.select_option("#priority", "high")
    page.select_option("#prompt_syntax", "weighted")
    page.fill("#prompt", "a star")
    page.click("#generate")
    expect(page.locator("#sigmas-error")).to_contain_text("Numbers")
    page.fill("#sigmas", "0.9, 0.5, 0.2, 0.1")
    card = make(page)
    sent = request_of(url, card)
    assert (sent["prompt_2"], sent["sigmas"]) == ("a blue star", [0.9, 0.5, 0.2, 0.1])
    assert sent["prompt_syntax"] == "weighted"
    page.fill("#sigmas", "")
    card.get_by_text("Use settings").click()
    expect(page.locator("#sigmas")).to_have_value("0.9, 0.5, 0.2, 0.1")


def test_a_scheduler_with_its_options(page: Page, url: str) -> None:
    page.locator("#more summary").click()
    page.select_option("#scheduler", "euler")
    expect(page.locator("#scheduler-options label")).to_have_count(0)
    page.select_option("#scheduler", "unipc")
    page.get_by_label("flow shift").fill("3.5")
    page.get_by_label("solver type").select_option("bh2")
    page.get_by_label("lower order final").select_option("false")
    card = make(page)
    chosen = {"name": "unipc", "flow_shift": 3.5, "solver_type": "bh2", "lower_order_final": False}
    assert request_of(url, card)["scheduler"] == chosen
    page.select_option("#scheduler", "")
    card.get_by_text("Use settings").click()
    expect(page.locator("#scheduler")).to_have_value("unipc")
    expect(page.get_by_label("flow shift")).to_have_value("3.5")


def test_error_is_shown_at_its_field(page: Page) -> None:
    page.fill("#prompt", "a star")
    page.fill("#num_frames", "6")
    page.click("#generate")
    expect(page.locator("#num_frames-error")).to_contain_text("5 or 9")
    page.fill("#num_frames", "5")
    page.locator("#more summary").click()
    page.select_option("#scheduler", "unipc")
    page.get_by_label("solver order").fill("9")
    page.locator("#more summary").click()
    page.click("#generate")
    expect(page.locator("#scheduler-error")).to_contain_text("at most 3")


def test_first_and_last_image(page: Page, url: str, tmp_path: Path) -> None:
    for colour in ("red", "blue"):
        Image.new("RGB", (32, 32), colour).save(tmp_path / f"{colour}.png")
    expect(page.locator("#last_image-drop")).to_be_hidden()
    page.set_input_files("#image", tmp_path / "red.png")
    expect(page.locator("#last_image-drop")).to_be_visible()
    page.set_input_files("#last_image", tmp_path / "blue.png")
    request = request_of(url, make(page))
    assert request["image"].endswith("/image")
    assert request["last_image"].endswith("/last_image")
    assert "mask_image" not in json.dumps(request)
    page.get_by_label("Remove: End with an image").click()
    page.get_by_label("Remove: Start from an image").click()
    assert "image" not in request_of(url, make(page, "another star"))


def test_a_mask(page: Page, url: str, tmp_path: Path) -> None:
    page.select_option("#model", MODEL)
    Image.new("RGB", (32, 32), "white").save(tmp_path / "white.png")
    expect(page.locator("#mask_image-drop")).to_be_hidden()
    for name in ("image", "mask_image"):
        page.set_input_files(f"#{name}", tmp_path / "white.png")
    expect(page.locator("#strength")).to_have_value("0.6")
    assert request_of(url, make(page))["mask_image"].endswith("/mask_image")
