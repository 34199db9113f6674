"""`make demo` starts a system, prints its address, makes an output of each model within a memory
limit, and runs the documents' examples."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import av
import httpx
import pytest
from PIL import Image

from deploy.local.demo import FIRST_OUTPUTS, FOLDER
from deploy.local.supervisor import DEMO_FOLDER, demo_models
from tests.e2e.conftest import Demo
from tests.e2e.documented import PAGES, examples, run_as_written
from tests.e2e.system import children

pytestmark = pytest.mark.timeout(900)  # seconds, for the demo's start

END_S = 300
"""Time-out of a job on a busy machine."""
MAX_MIB = 4096
"""MiB for the front end, Redis and one pool of each demo model together."""


def family(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for child in children(pid):
        yield from family(child)


def used_mib(pids: Iterator[int]) -> float:
    """Memory of processes in MiB, shared pages counted once (PSS)."""
    reports = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", text, re.M)[1]) for text in reports) / 1024


def test_the_demo_makes_something_of_each_model(demo: Demo) -> None:
    for model in demo_models(DEMO_FOLDER):
        file = demo.folder / FOLDER / FIRST_OUTPUTS[model].file
        demo.wait_for(f"^A first .* is in {re.escape(str(file.resolve()))}$")
        check(file)
    address = demo.wait_for(r"^Make more at (\S+)")[1]
    assert address == demo.url
    assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200
    assert demo.process.poll() is None
    assert used_mib(family(demo.process.pid)) < MAX_MIB


def test_every_example_works(demo: Demo, tmp_path: Path) -> None:
    """Each example leaves its named image for the examples after it."""
    pages = set()
    for page, code in examples():
        pages.add(page)
        name = re.search(r'(?:-o |Path\(")(\w+\.png)', code)
        if name:
            (tmp_path / name[1]).unlink(missing_ok=True)
        printed = run_as_written(code, demo.url, tmp_path)
        drafts = re.search(r"-o (\w+)$", code)
        if name:
            check(tmp_path / name[1])
        elif drafts:
            assert len(list((tmp_path / drafts[1]).glob("*.png"))) == 4
        else:
            assert re.search("succeeded|queued|paused|accepted", printed), f"{code}\n{printed}"
    assert pages == set(PAGES)


def test_stream_of_a_fast_job_has_previews(demo: Demo) -> None:
    """The stream takes less time than the pool's `preview_every_s`."""
    body = {
        "model": "sdxl-demo",
        "prompt": "a red circle on a blue background",
        "stream": True,
        "partial_images": 1,
        "num_inference_steps": 50,
    }
    answer = httpx.post(
        f"{demo.url}/v1/images/generations", json=body, timeout=END_S, trust_env=False
    )
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    partial, last = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert partial["type"] == "image_generation.partial_image"
    assert Image.open(io.BytesIO(base64.b64decode(partial["b64_json"]))).format == "WEBP"
    assert last["type"] == "image_generation.completed"


def check(file: Path) -> None:
    """Check that a file has the format of its suffix and can be decoded."""
    if file.suffix == ".png":
        with Image.open(file) as image:
            assert min(image.size) >= 64
        return
    with av.open(file) as video:
        assert len(list(video.decode(video=0))) >= 17
