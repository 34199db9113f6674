"""Whole system with a diffusers worker: endpoints, and a job whose worker is killed."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from tests.e2e.endpoints import END_S, openai
from tests.e2e.system import START_S, System, until
from tests.workers.diffusers.direct import called
from tests.workers.diffusers.test_adapters import write

pytestmark = pytest.mark.filterwarnings("ignore:::diffusers", "ignore:::transformers")
STEPS = 150
"""Steps of a job that runs long enough to be killed."""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def adapter(stable_diffusion: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pipeline = DiffusionPipeline.from_pretrained(stable_diffusion)
    return write(tmp_path_factory.mktemp("adapter") / "style.safetensors", pipeline, 1)


@pytest.fixture(scope="module")
def system(stable_diffusion: Path, adapter: Path, state: Path) -> Iterator[System]:
    model = ("--model", f"sd={stable_diffusion}", "--dtype", "float32")
    loras = json.dumps({"style": {"source": str(adapter), "model": "sd"}})
    running = System(state, *model, ATELIER_QUEUE__LEASE_S="3600", ATELIER_LORAS=loras)
    yield running
    running.close()


@pytest.fixture
def http(system: System) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=system.url, timeout=END_S, trust_env=False) as client:
        yield client


def pixels(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def direct(folder: Path, fields: dict[str, Any], adapter: Path | None = None) -> np.ndarray:
    """Return the pixels of a direct call with the defaults of the request's other fields."""
    pipeline = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    if adapter:
        pipeline.load_lora_weights(str(adapter), adapter_name="style")
    return called(pipeline, {"width": 16, "height": 16, **fields})


def test_endpoints_answer(http: httpx.Client, stable_diffusion: Path) -> None:
    """`POST /v1/generate` returns the image of a direct call, and OpenAI's client an image."""

    def is_ready() -> bool:
        return any(model["ready"] for model in http.get("/v1/models").json()["data"])

    until(is_ready, "the model is ready", START_S)
    (model,) = http.get("/v1/models").raise_for_status().json()["data"]
    assert (model["name"], model["backend"], model["ready"]) == ("sd", "diffusers", True)
    fields = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 7}
    answer = http.post("/v1/generate", json=fields, headers={"Prefer": f"wait={END_S}"})
    (output,) = answer.raise_for_status().json()["outputs"]
    image = pixels(http.get(output["url"]).raise_for_status().content)
    assert np.array_equal(image, direct(stable_diffusion, fields))
    refused = http.post("/v1/generate", json={**fields, "scheduler": {"name": "euler"}})
    assert refused.status_code == 422 and "scheduler" in refused.text
    images = openai(http).images.generate(model="sd", prompt="a star", size="16x16").data
    assert images and images[0].b64_json
    assert pixels(base64.b64decode(images[0].b64_json)).shape == (16, 16, 3)


def test_adapter_of_the_settings(http: httpx.Client, stable_diffusion: Path, adapter: Path) -> None:
    fields = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 7}
    body = {**fields, "loras": [{"name": "style"}]}
    answer = http.post("/v1/generate", json=body, headers={"Prefer": f"wait={END_S}"})
    (output,) = answer.raise_for_status().json()["outputs"]
    image = pixels(http.get(output["url"]).raise_for_status().content)
    assert np.array_equal(image, direct(stable_diffusion, fields, adapter))


def test_killed_worker_starts_again_with_its_job(
    system: System, http: httpx.Client, state: Path, stable_diffusion: Path
) -> None:
    """The image equals a direct call: nothing of the interrupted steps remains."""
    fields = {"prompt": "a star", "num_inference_steps": STEPS, "seed": 3}
    job = http.post("/v1/generate", json=fields).raise_for_status().json()

    def current() -> dict[str, Any]:
        answer = http.get(f"/v1/jobs/{job['id']}").raise_for_status()
        return dict(answer.json())

    until(lambda: current()["progress"]["step"] > 0, "the job has done a step")
    assert system.kill_pool(state, job["id"]), "the job must still run"
    until(lambda: current()["state"] == "succeeded", "the job ends", START_S)
    (output,) = current()["outputs"]
    image = pixels(http.get(output["url"]).raise_for_status().content)
    assert np.array_equal(image, direct(stable_diffusion, fields))
    assert system.lines and any("sd ended (killed by SIGKILL)" in line for line in system.lines)
