"""The playground's image lists, and masks painted on the page, in a real browser."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import asked_for, pages
from tests.e2e.standins import MASKED, POSED
from tests.service.standin import MODEL, VIDEO, clip

WIDE = (200, 100)


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with pages(browser, url) as run:
        page = run()
        page.select_option("#model", MODEL)
        yield page


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {colour: tmp_path / f"{colour}.png" for colour in ("red", "blue", "green")}
    for colour, path in paths.items():
        Image.new("RGB", WIDE, colour).save(path)
    return paths


def mask_of(page: Page) -> np.ndarray:
    """The form's mask: [height, width], 0 to 255."""
    source = page.locator("#mask_image-thumb").get_attribute("src") or ""
    return np.asarray(
        Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("L")
    )


def paint(page: Page, *at: tuple[float, float]) -> None:
    """Draw a stroke through points given as shares of the image's width and height."""
    box = page.locator("#painter-canvas").bounding_box()
    assert box
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in at]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()


def test_reference_images_keep_their_order(page: Page, url: str, files: dict[str, Path]) -> None:
    page.set_input_files("#reference_images", [files["red"], files["blue"]])
    page.set_input_files("#reference_images", files["green"])
    entries = page.locator("#reference_images-list .entry")
    expect(entries).to_have_count(3)
    page.get_by_label("Remove blue.png").click()
    expect(entries.locator("span")).to_have_text(["red.png", "green.png"])
    request = asked_for(url, page)
    assert [key.rpartition("/")[2] for key in request["reference_images"]] == [
        "reference_images.0",
        "reference_images.1",
    ]
    page.set_input_files("#reference_images", files["blue"])
    page.click("#generate")
    expect(page.locator("#reference_images-error")).to_contain_text("2 at most")
    page.select_option("#model", VIDEO.name)
    page.select_option("#model", MODEL)
    expect(entries).to_have_count(0)


def test_control_images_for_controlnets(page: Page, url: str, files: dict[str, Path]) -> None:
    page.set_input_files("#control", files["red"])
    expect(page.get_by_label("Name", exact=True)).to_have_value("canny")
    for name, value in (("Scale", "0.7"), ("End", "0.8")):
        page.locator("#control-list").get_by_label(name, exact=True).fill(value)
    (entry,) = asked_for(url, page)["control"]
    assert entry["image"].endswith("/control.0.image")
    expected = {"name": "canny", "scale": 0.7, "start": 0.0, "end": 0.8}
    assert {name: entry[name] for name in expected} == expected


def test_example_includes_its_outline(page: Page, url: str) -> None:
    page.get_by_role("button", name="With an image: a yellow cross on a black background").click()
    expect(page.locator("#prompt")).to_have_value("a yellow cross on a black background")
    source = page.locator("#control-list img").get_attribute("src") or ""
    image = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("L")
    pixels = np.asarray(image)
    assert pixels.shape == (96, 96) and {*np.unique(pixels)} == {0, 255}
    (entry,) = asked_for(url, page)["control"]
    assert entry["name"] == "canny" and entry["preprocess"] == "canny"


def test_control_image_is_sent(page: Page, url: str, files: dict[str, Path]) -> None:
    page.set_input_files("#control_image", files["red"])
    assert asked_for(url, page)["control_image"].endswith("/control_image")


def test_a_video_to_follow_and_its_mask(page: Page, url: str, tmp_path: Path) -> None:
    expect(page.locator("#control_video-drop")).to_be_hidden()
    page.select_option("#model", VIDEO.name)
    expect(page.locator("#mask_video-drop")).to_be_hidden()
    for name in ("control_video", "mask_video"):
        (tmp_path / f"{name}.mp4").write_bytes(clip("mp4", 5))
        page.set_input_files(f"#{name}", tmp_path / f"{name}.mp4")
        expect(page.locator(f"#{name}-name")).to_have_text(f"{name}.mp4")
    request = asked_for(url, page)
    assert request["control_video"].endswith("/control_video")
    assert request["mask_video"].endswith("/mask_video")
    page.get_by_label("Remove: Mask of that video").click()
    assert "mask_video" not in asked_for(url, page)
    page.select_option("#model", MODEL)
    expect(page.locator("#control_video-drop")).to_be_hidden()


def test_mask_is_painted_on_the_image(page: Page, url: str, files: dict[str, Path]) -> None:
    expect(page.locator("#mask_image-paint")).to_be_hidden()
    page.set_input_files("#image", files["red"])
    page.get_by_label("Paint the mask").click()
    paint(page, (0.25, 0.25), (0.25, 0.75))
    page.get_by_text("Use this mask").click()
    expect(page.locator("#mask_image-name")).to_have_text("painted")
    mask = mask_of(page)
    assert mask.shape == WIDE[::-1]
    assert {*np.unique(mask[30:70, 48:53])} == {255}
    assert {*np.unique(mask[:, 90:])} == {0}
    assert asked_for(url, page)["mask_image"].endswith("/mask_image")


def test_strength_is_shown_with_the_required_image(
    page: Page, url: str, files: dict[str, Path]
) -> None:
    page.select_option("#model", MASKED.name)
    page.set_input_files("#image", files["red"])
    expect(page.locator("#strength")).to_be_hidden()
    assert "strength" not in asked_for(url, page)
    page.set_input_files("#mask_image", files["blue"])
    expect(page.locator("#strength")).to_be_visible()
    page.fill("#strength", "0.7")
    assert asked_for(url, page)["strength"] == 0.7


def test_required_images_are_not_optional(page: Page) -> None:
    optional = {name: page.locator(f"[data-field={name}] .optional") for name in POSED.fields}
    page.select_option("#model", POSED.name)
    for name in ("image", "pose_video", "face_video"):
        expect(page.locator(f"#{name}-drop")).to_be_visible()
        expect(optional[name]).to_be_hidden()
    expect(optional["background_video"]).to_be_visible()
    page.select_option("#model", VIDEO.name)
    expect(optional["image"]).to_be_visible()


def test_a_painted_mask_is_opened_again_and_erased(page: Page, files: dict[str, Path]) -> None:
    page.set_input_files("#image", files["red"])
    page.get_by_label("Paint the mask").click()
    page.get_by_label("Brush, percent of the longer side").fill("20")
    paint(page, (0.1, 0.5), (0.9, 0.5))
    page.get_by_text("Use this mask").click()
    full_mask = mask_of(page)
    page.get_by_label("Paint the mask").click()
    page.get_by_text("Erase").click()
    paint(page, (0.9, 0.5), (0.6, 0.5))
    page.get_by_text("Use this mask").click()
    mask = mask_of(page)
    assert (full_mask[50, 40], mask[50, 40]) == (255, 255)
    assert (full_mask[50, 160], mask[50, 160]) == (255, 0)
