"""An image from a running system by each kind of request: job, wait, events, shell."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.e2e.endpoints import END_S
from tests.e2e.system import ATELIER, System, until

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start

BODY = {"model": "tiny", "prompt": "a red circle", "width": 64, "height": 48, "seed": 7}
BODY |= {"num_inference_steps": 3}


def pixels(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (64, 48)
        return image.convert("RGB").tobytes()


@pytest.fixture(scope="module")
def expected(http: httpx.Client) -> bytes:
    """Pixels of BODY, requested as bytes in the response."""
    response = http.post("/v1/generate", json=BODY, headers={"Accept": "image/png"})
    assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    assert response.headers["x-job-id"].startswith("job_")
    return pixels(response.content)


def test_accepted_job_can_be_polled(http: httpx.Client, expected: bytes) -> None:
    accepted = http.post("/v1/generate", json=BODY)
    assert accepted.status_code == 202
    address = accepted.headers["location"]
    until(lambda: http.get(address).json()["state"] == "succeeded", "the job's success", END_S)
    job = http.get(address).json()
    assert job["request"]["seed"] == 7
    assert job["progress"] == {"step": 3, "steps": 3}
    assert pixels(http.get(job["outputs"][0]["url"]).content) == expected


def test_the_finished_job_at_once(http: httpx.Client, expected: bytes) -> None:
    answer = http.post("/v1/generate", json=BODY, headers={"Prefer": "wait"})
    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
    assert pixels(http.get(answer.json()["outputs"][0]["url"]).content) == expected


def test_events_are_streamed(http: httpx.Client) -> None:
    headers = {"Accept": "text/event-stream"}
    with http.stream("POST", "/v1/generate", json=BODY, headers=headers) as answer:
        lines = [line.partition(": ") for line in answer.iter_lines()]
    names = [value for field, _, value in lines if field == "event"]
    assert names[:2] == ["queued", "running"]
    assert names[-1] == "succeeded"
    data = [json.loads(value) for field, _, value in lines if field == "data"]
    steps = [event["step"] for event, name in zip(data, names, strict=True) if name == "progress"]
    assert steps == sorted(steps)
    assert steps[-1] == 3


def generate(system: System, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `atelier generate` without a terminal."""
    return subprocess.run(
        [*ATELIER, "generate", "--server", system.url, "--model", "tiny", *arguments],
        capture_output=True,
        text=True,
        timeout=END_S,
    )


SIZE = ("--width", "64", "--height", "48")


def test_the_shell(system: System, tmp_path: Path, expected: bytes) -> None:
    file = tmp_path / "circle.png"
    process = generate(system, "a red circle", "-o", file, *SIZE, "--seed", "7", "--steps", "3")
    assert (process.returncode, process.stdout) == (0, f"{file}\n"), process.stderr
    assert "step 3 of 3" in process.stderr
    assert pixels(file.read_bytes()) == expected


def test_two_images_from_an_input_image(system: System, tmp_path: Path) -> None:
    source, file = tmp_path / "source.png", tmp_path / "made.webp"
    Image.new("RGB", (80, 60), "red").save(source)
    options = ("--image", source, "--strength", "0.5", "--steps", "4", "--num-images", "2")
    process = generate(system, "a star", "-o", file, *SIZE, *options)
    assert process.returncode == 0, process.stderr
    outputs = [tmp_path / "made-0.webp", tmp_path / "made-1.webp"]
    assert process.stdout.split() == [str(path) for path in outputs]
    assert all(path.read_bytes()[8:12] == b"WEBP" for path in outputs)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--width", "50"], 1, "width"),
        (["--model", "other"], 1, "other"),
        (["-o", "image.bmp"], 2, "image.bmp"),
        (["--image", "nowhere.png"], 2, "nowhere.png"),
    ],
)
def test_shell_reports_errors(system: System, arguments: list[str], code: int, said: str) -> None:
    process = generate(system, "a star", *arguments)
    assert (process.returncode, process.stdout) == (code, "")
    assert said in process.stderr
    assert "Traceback" not in process.stderr
