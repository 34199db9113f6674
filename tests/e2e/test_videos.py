"""Videos from a running system that also makes images, by command line and HTTP."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import av
import httpx
import pytest
from PIL import Image

from tests.e2e.conftest import Files
from tests.e2e.endpoints import END_S
from tests.e2e.system import ATELIER, System

pytestmark = pytest.mark.timeout(900)  # seconds, for the system's start


def generate(system: System, *arguments: str) -> list[Path]:
    """Run `atelier generate`; returns the files that it wrote."""
    process = subprocess.run(
        [*ATELIER, "generate", "a star", "--server", system.url, *arguments],
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert process.returncode == 0, process.stderr
    return [Path(line) for line in process.stdout.splitlines()]


def test_each_model_logs_its_readiness(system: System, folders: Files) -> None:
    assert system.url
    models = [line.split()[0] for line in system.lines if " is ready at " in line]
    assert sorted(models[:-1]) == sorted(folders)
    assert models[-1] == "Atelier"


def test_cli_saves_videos_in_each_format(system: System, tmp_path: Path) -> None:
    options = ("--model", "videos", "--seed", "3")
    for name, codec in (("clip.mp4", "h264"), ("clip.webm", "vp9"), ("clip.gif", "gif")):
        assert generate(system, *options, "-o", str(tmp_path / name)) == [tmp_path / name]
        with av.open(tmp_path / name) as file:
            stream = file.streams.video[0]
            assert stream.codec_context.codec.canonical_name == codec
            assert len(list(file.decode(stream))) == 5
    frames = generate(system, *options, "--num-frames", "9", "-o", str(tmp_path / "frames"))
    assert frames == [tmp_path / "frames" / f"{number}.png" for number in range(9)]
    with Image.open(frames[0]) as frame:
        assert frame.size == (32, 48)


def test_curl_gets_a_video_and_byte_ranges(system: System) -> None:
    with httpx.Client(base_url=system.url, trust_env=False, timeout=END_S) as http:
        body = {"model": "videos", "prompt": "a star", "seed": 3}
        response = http.post("/v1/generate", json=body, headers={"Accept": "video/mp4"})
        assert response.headers["content-type"] == "video/mp4"
        with av.open(io.BytesIO(response.content)) as file:
            assert file.streams.video[0].average_rate == 8
        url = f"/v1/jobs/{response.headers['x-job-id']}/outputs/0"
        part = http.get(url, headers={"Range": "bytes=4-7"})
        assert (part.status_code, part.content) == (206, b"ftyp")
        other = http.post("/v1/generate", json=body | {"model": "tiny"}, headers={"Prefer": "wait"})
        assert other.json()["outputs"][0]["content_type"] == "image/png"
        refused = http.post("/v1/generate", json=body | {"num_frames": 6})
        assert "5 or 9" in refused.json()["errors"][0]["message"]
