"""`png-info`, tested by webuiapi."""

from __future__ import annotations

import asyncio
import base64
import io

import httpx
from PIL import Image, PngImagePlugin
from webuiapi import WebUIApi

from tests.service.standin import StandIn, picture

TEXT = (
    "a cat, (ink:1.2)\nNegative prompt: a dog\n"
    "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 42, Size: 512x768, Model: sd"
)


def marked() -> Image.Image:
    """An image with a text of parameters, which webuiapi sends too."""
    text = PngImagePlugin.PngInfo()
    text.add_text("parameters", TEXT)
    file = io.BytesIO()
    Image.open(io.BytesIO(picture())).save(file, "PNG", pnginfo=text)
    return Image.open(file)


async def test_parameters_are_read(api: WebUIApi) -> None:
    result = await asyncio.to_thread(api.png_info, marked())
    assert result.info == TEXT
    read = result.parameters
    assert (read["Prompt"], read["Negative prompt"]) == ("a cat, (ink:1.2)", "a dog")
    assert (read["Seed"], read["Size-1"], read["Size-2"]) == ("42", "512", "768")


async def test_png_info_of_a_file_without_parameters_is_empty(api: WebUIApi) -> None:
    result = await asyncio.to_thread(api.png_info, Image.open(io.BytesIO(picture())))
    assert (result.info, result.parameters) == ("", {})


async def test_invalid_image_is_rejected(wire: httpx.AsyncClient) -> None:
    for image in ("%", "", base64.b64encode(b"no image").decode()):
        answer = await wire.post("/sdapi/v1/png-info", json={"image": image})
        assert answer.status_code == 422 and answer.json()["errors"].startswith("image: ")


async def test_png_info_returns_the_request(api: WebUIApi, sdxl: StandIn) -> None:
    made = await asyncio.to_thread(api.txt2img, prompt="a cat", seed=7, width=64, height=64)
    (text,) = made.info["infotexts"]
    image = Image.open(io.BytesIO(picture()))
    image.info["parameters"] = text
    result = await asyncio.to_thread(api.png_info, image)
    assert result.parameters["Seed"] == "7" and result.parameters["Prompt"] == "a cat"
