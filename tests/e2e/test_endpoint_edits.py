"""An edit has the same pixels through every compatible endpoint, with and without a mask. Add a new
endpoint to the tables to have it tested."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from PIL import Image, ImageDraw
from replicate.client import Client as Replicate

from tests.e2e.conftest import Demo
from tests.e2e.endpoints import (
    END_S,
    EndpointCall,
    call_tool,
    default_guidance,
    digest_of_pixels,
    generated,
    openai,
    webui,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),  # image variations
    pytest.mark.timeout(900),  # seconds, for the demo's start
]

MODEL, PROMPT, SIDE = "sdxl-demo", "a yellow star on a blue background", 64
DRAWN = {"num_inference_steps": 4, "seed": 11, "strength": 0.6}
SIZE = {"width": SIDE, "height": SIDE}
BODY = {"model": MODEL, "prompt": PROMPT, **SIZE, **DRAWN}


@pytest.fixture(scope="module")
def http(demo: Demo) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo.url, timeout=END_S, trust_env=False) as client:
        yield client


def picture() -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "navy")
    ImageDraw.Draw(image).ellipse((8, 8, 40, 40), fill="crimson")
    return image


def mask() -> Image.Image:
    """Mask that is white where the image is redrawn."""
    image = Image.new("L", (SIDE, SIDE), 0)
    ImageDraw.Draw(image).rectangle((0, 0, 31, 63), fill=255)
    return image


def file(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def in_base64(image: Image.Image) -> str:
    return base64.b64encode(file(image)).decode()


def link(image: Image.Image) -> str:
    return f"data:image/png;base64,{in_base64(image)}"


def clear_where_anew() -> bytes:
    """The mask in OpenAI's format, transparent where the image is redrawn."""
    image = picture().convert("RGBA")
    image.putalpha(mask().point(lambda level: 255 - level))
    return file(image)


def images_edit(http: httpx.Client, **further: Any) -> bytes:
    with openai(http) as client:
        response = client.images.edit(
            model=MODEL,
            image=file(picture()),
            prompt=PROMPT,
            size=f"{SIDE}x{SIDE}",  # its service had other sizes
            extra_body=DRAWN,
            **further,
        )
    assert response.data is not None and response.data[0].b64_json is not None
    return base64.b64decode(response.data[0].b64_json)


def images_masked(http: httpx.Client) -> bytes:
    return images_edit(http, mask=clear_where_anew())


def images_varied(http: httpx.Client) -> bytes:
    with openai(http) as client:
        response = client.images.create_variation(
            model=MODEL,
            image=file(picture()),
            size=f"{SIDE}x{SIDE}",
            extra_body=DRAWN | {"prompt": PROMPT},
        )
    assert response.data is not None and response.data[0].b64_json is not None
    return base64.b64decode(response.data[0].b64_json)


def images_batch(http: httpx.Client) -> bytes:
    """Send the edit as a line of a batch file; returns the batch's result."""
    line = {"custom_id": "one", "method": "POST", "url": "/v1/generate"}
    body = BODY | {"image": in_base64(picture())}
    with openai(http) as client:
        sent = client.files.create(
            file=("lines.jsonl", json.dumps(line | {"body": body}).encode()), purpose="batch"
        )
        batch = client.batches.create(
            input_file_id=sent.id,
            endpoint="/v1/generate",  # which its service has not
            completion_window="24h",
        )
        results = ended(http, batch.id)["output_file_id"]
        (result,) = client.files.content(results).text.splitlines()
    (output,) = json.loads(result)["response"]["body"]["outputs"]
    return http.get(output["url"]).raise_for_status().content


def ended(http: httpx.Client, batch_id: str) -> dict[str, Any]:
    """Poll a batch until it ends; batches have no events."""
    batch: dict[str, Any] = {}
    while batch.get("status") != "completed":
        batch = http.get(f"/v1/batches/{batch_id}").raise_for_status().json()
        assert batch["status"] in ("validating", "in_progress", "finalizing", "completed"), batch
        time.sleep(0.05)
    return batch


def hugging_face(http: httpx.Client) -> bytes:
    parameters = {"prompt": PROMPT, "target_size": SIZE, **DRAWN}
    body = {"inputs": in_base64(picture()), "parameters": parameters}
    return http.post(f"/hf/{MODEL}", json=body).raise_for_status().content


def automatic1111(http: httpx.Client, **further: Any) -> bytes:
    client = webui(http)
    try:
        response = client.img2img(
            images=[picture()],
            prompt=PROMPT,
            **SIZE,
            steps=DRAWN["num_inference_steps"],
            seed=DRAWN["seed"],
            denoising_strength=DRAWN["strength"],
            cfg_scale=default_guidance(http, MODEL),
            override_settings={"sd_model_checkpoint": MODEL},
            **further,
        )
    finally:
        client.session.close()
    return base64.b64decode(response.json["images"][0])


def automatic1111_masked(http: httpx.Client) -> bytes:
    """Redraw by a mask, with this API's default changes to masks turned off."""
    off = {"mask_blur": 0, "inpainting_fill": 1, "inpaint_full_res": False}
    return automatic1111(http, mask_image=mask(), **off)


def replicate(http: httpx.Client, **further: Any) -> bytes:
    client = Replicate(api_token="none", base_url=str(http.base_url), trust_env=False)
    parameters = {"prompt": PROMPT, "image": link(picture()), **SIZE, **DRAWN, **further}
    try:
        (address,) = client.run(f"anybody/{MODEL}", input=parameters)
    finally:
        client._client.close()  # the client has no public way to close
    return http.get(address).raise_for_status().content


def replicate_masked(http: httpx.Client) -> bytes:
    return replicate(http, mask=link(mask()))


def fal(http: httpx.Client, **further: Any) -> bytes:
    """Send fal's request with httpx, because fal's own client requires TLS."""
    parameters = {"prompt": PROMPT, "image_url": link(picture()), "image_size": SIZE, **DRAWN}
    response = http.post(f"/fal/run/anybody/{MODEL}", json=parameters | further).raise_for_status()
    return http.get(response.json()["images"][0]["url"]).raise_for_status().content


def fal_masked(http: httpx.Client) -> bytes:
    return fal(http, mask_url=link(mask()))


def mcp(http: httpx.Client) -> bytes:
    return call_tool(http, "edit_image", BODY | {"image": in_base64(picture())})


def mcp_masked(http: httpx.Client) -> bytes:
    images = {"image": in_base64(picture()), "mask_image": in_base64(mask())}
    return call_tool(http, "edit_image", BODY | images)


DOORS: Mapping[str, EndpointCall] = {
    "openai": images_edit,
    "openai, variation": images_varied,
    "openai, batch": images_batch,
    "hugging face": hugging_face,
    "automatic1111": automatic1111,
    "replicate": replicate,
    "fal": fal,
    "mcp": mcp,
}
MASKED_DOORS: Mapping[str, EndpointCall] = {
    "openai": images_masked,
    "automatic1111": automatic1111_masked,
    "replicate": replicate_masked,
    "fal": fal_masked,
    "mcp": mcp_masked,
}


@pytest.fixture(scope="module")
def edited(http: httpx.Client) -> str:
    return generated(http, BODY | {"image": in_base64(picture())})[1]


@pytest.fixture(scope="module")
def edited_in_part(http: httpx.Client, edited: str) -> str:
    images = {"image": in_base64(picture()), "mask_image": in_base64(mask())}
    digest = generated(http, BODY | images)[1]
    assert digest != edited
    return digest


@pytest.mark.parametrize("door", DOORS)
def test_edit_has_equal_pixels_at_every_endpoint(
    http: httpx.Client, edited: str, door: str
) -> None:
    assert digest_of_pixels(DOORS[door](http)) == edited


@pytest.mark.parametrize("door", MASKED_DOORS)
def test_masked_edit_has_equal_pixels_at_every_endpoint(
    http: httpx.Client, edited_in_part: str, door: str
) -> None:
    assert digest_of_pixels(MASKED_DOORS[door](http)) == edited_in_part
