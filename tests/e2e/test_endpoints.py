"""A request has the same pixels through every compatible endpoint of a real system. Add a new
endpoint to the tables to have it tested."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping

import httpx
import pytest
from PIL import Image
from replicate.client import Client as Replicate

from tests.e2e.endpoints import (
    EndpointCall,
    call_tool,
    default_guidance,
    digest_of_pixels,
    generated,
    openai,
    webui,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),  # raised in openai
    pytest.mark.timeout(900),  # seconds, for the system's start
]

IMAGE = {
    "model": "tiny",
    "prompt": "a red circle on a blue background",
    "width": 64,
    "height": 64,
    "num_inference_steps": 2,
    "seed": 7,
}
VIDEO = {
    "model": "videos",
    "prompt": "a red circle that moves to the right",
    "width": 32,
    "height": 48,
    "num_frames": 5,
    "fps": 8,
    "num_inference_steps": 2,
    "seed": 7,
}
SIZE, VIDEO_SIZE = "64x64", "32x48"
DRAWN = {name: IMAGE[name] for name in ("num_inference_steps", "seed")}
MOVED = {name: VIDEO[name] for name in ("num_frames", "fps", "num_inference_steps", "seed")}


def images_generate(http: httpx.Client) -> bytes:
    with openai(http) as client:
        response = client.images.generate(
            model="tiny", prompt=str(IMAGE["prompt"]), size=SIZE, extra_body=DRAWN
        )
    assert response.data is not None and response.data[0].b64_json is not None
    return base64.b64decode(response.data[0].b64_json)


def images_by_link(http: httpx.Client) -> bytes:
    with openai(http) as client:
        response = client.images.generate(
            model="tiny",
            prompt=str(IMAGE["prompt"]),
            size=SIZE,
            response_format="url",
            extra_body=DRAWN,
        )
    assert response.data is not None and response.data[0].url is not None
    return http.get(response.data[0].url).raise_for_status().content


def images_streamed(http: httpx.Client) -> bytes:
    with openai(http) as client:
        *_, last = client.images.generate(
            model="tiny",
            prompt=str(IMAGE["prompt"]),
            size=SIZE,
            stream=True,
            partial_images=2,
            extra_body=DRAWN,
        )
    return base64.b64decode(last.b64_json)


def hugging_face(http: httpx.Client) -> bytes:
    parameters = {name: IMAGE[name] for name in ("width", "height")} | DRAWN
    body = {"inputs": IMAGE["prompt"], "parameters": parameters}
    return http.post("/hf/tiny", json=body).raise_for_status().content


def automatic1111(http: httpx.Client) -> bytes:
    client = webui(http)
    try:
        response = client.txt2img(
            prompt=str(IMAGE["prompt"]),
            width=64,
            height=64,
            steps=DRAWN["num_inference_steps"],
            seed=DRAWN["seed"],
            cfg_scale=default_guidance(http, "tiny"),
            override_settings={"sd_model_checkpoint": "tiny"},
        )
    finally:
        client.session.close()
    return base64.b64decode(response.json["images"][0])


def replicate(http: httpx.Client) -> bytes:
    client = Replicate(api_token="none", base_url=str(http.base_url), trust_env=False)
    parameters = {name: value for name, value in IMAGE.items() if name != "model"}
    try:
        (link,) = client.run("anybody/tiny", input=parameters)
    finally:
        client._client.close()  # the client has no public way to close
    return http.get(link).raise_for_status().content


def fal(http: httpx.Client) -> bytes:
    """Send fal's request with httpx, because fal's own client requires TLS."""
    parameters = {"prompt": IMAGE["prompt"], "image_size": {"width": 64, "height": 64}} | DRAWN
    response = http.post("/fal/run/anybody/tiny", json=parameters).raise_for_status().json()
    return http.get(response["images"][0]["url"]).raise_for_status().content


def mcp(http: httpx.Client) -> bytes:
    return call_tool(http, "generate_image", IMAGE)


IMAGE_DOORS: Mapping[str, EndpointCall] = {
    "openai": images_generate,
    "openai, link": images_by_link,
    "openai, stream": images_streamed,
    "hugging face": hugging_face,
    "automatic1111": automatic1111,
    "replicate": replicate,
    "fal": fal,
    "mcp": mcp,
}


def videos_create(http: httpx.Client) -> bytes:
    with openai(http) as client:
        video = client.videos.create_and_poll(
            model="videos",
            prompt=str(VIDEO["prompt"]),
            size=VIDEO_SIZE,  # its service had other sizes
            extra_body=MOVED,
        )
        assert video.status == "completed", video
        return client.videos.download_content(video.id).content


def videos_remixed(http: httpx.Client) -> bytes:
    """Make a video of another prompt, then remix it with this prompt."""
    with openai(http) as client:
        first = client.videos.create_and_poll(
            model="videos",
            prompt="a green square",
            size=VIDEO_SIZE,
            extra_body=MOVED,
        )
        video = client.videos.remix(first.id, prompt=str(VIDEO["prompt"]))
        assert client.videos.poll(video.id).status == "completed"
        return client.videos.download_content(video.id).content


def mlperf(http: httpx.Client) -> bytes:
    body = {name: VIDEO[name] for name in ("model", "prompt", "fps", "num_inference_steps", "seed")}
    body |= {"size": VIDEO_SIZE, "seconds": 5 / 8, "response_format": "video_bytes"}
    answer = http.post("/v1/videos/generations", json=body).raise_for_status()
    return base64.b64decode(answer.json()["video_bytes"])


VIDEO_DOORS: Mapping[str, EndpointCall] = {
    "openai": videos_create,
    "openai, remix": videos_remixed,
    "mlperf": mlperf,
}


@pytest.fixture(scope="module")
def image(http: httpx.Client) -> tuple[bytes, str]:
    return generated(http, IMAGE)


@pytest.fixture(scope="module")
def video(http: httpx.Client) -> tuple[bytes, str]:
    return generated(http, VIDEO)


@pytest.mark.parametrize("door", IMAGE_DOORS)
def test_image_has_equal_pixels_at_every_endpoint(
    http: httpx.Client, image: tuple[bytes, str], door: str
) -> None:
    assert digest_of_pixels(IMAGE_DOORS[door](http)) == image[1]


@pytest.mark.parametrize("door", VIDEO_DOORS)
def test_video_has_equal_bytes_at_every_endpoint(
    http: httpx.Client, video: tuple[bytes, str], door: str
) -> None:
    """MP4 is lossy, so pixels are compared by the digest of the newest job."""
    data = VIDEO_DOORS[door](http)
    (job, *_) = http.get("/v1/jobs", params={"limit": 1}).raise_for_status().json()["data"]
    assert job["outputs"][0]["pixels_sha256"] == video[1]
    assert hashlib.sha256(data).hexdigest() == job["outputs"][0]["sha256"]
    assert data == video[0]


def test_links_of_a_real_system_have_full_urls(
    http: httpx.Client, image: tuple[bytes, str]
) -> None:
    assert images_by_link(http) == image[0]


def test_a_video_has_small_images_of_itself(http: httpx.Client) -> None:
    videos_create(http)
    (job, *_) = http.get("/v1/jobs", params={"limit": 1}).json()["data"]
    for variant, size in (("thumbnail", (32, 48)), ("spritesheet", (4 * 32, 2 * 48))):
        address = f"/v1/videos/{job['id']}/content"
        data = http.get(address, params={"variant": variant}).raise_for_status().content
        assert Image.open(io.BytesIO(data)).size == size
