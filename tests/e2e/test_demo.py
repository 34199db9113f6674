"""What `make demo` promises: a running system, its address, something of each model, and memory;
and what the documents promise of it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import av
import httpx
import pytest
from PIL import Image

from deploy.local.demo import FIRST
from deploy.local.supervisor import DEMO_FOLDER, demo_models
from tests.e2e.documented import PAGES, examples, run_as_written
from tests.e2e.system import DEADLINE_S, children, environment

MOST_MIB = 4096
"""Of memory, for the front end, Redis and a pool of each demo model together."""


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for child in children(pid):
        yield from family(child)


def used_mib(pids: Iterator[int]) -> float:
    """Their memory, shared pages counted once (PSS)."""
    told = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", text, re.M)[1]) for text in told) / 1024


@pytest.mark.timeout(900)  # seconds: every demo model, one after the other, nothing compiled yet
def test_the_demo_makes_something_of_each_model(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "deploy.local.demo", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    ) as demo:
        assert demo.stdout is not None
        printed: list[str] = []
        for line in demo.stdout:
            printed.append(line)
            told = [said.split(" at ")[0] for said in printed]
            if {"Make more", "Atelier is ready"} <= set(told) and demo.poll() is None:
                address = printed[told.index("Make more")].split()[3]
                assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200
                assert used_mib(family(demo.pid)) < MOST_MIB
                check_examples(address, tmp_path)
                demo.terminate()
                break
        printed += demo.stdout
        assert demo.wait(DEADLINE_S) == 0, "".join(printed)
    for model in demo_models(DEMO_FOLDER):
        file = tmp_path / ".atelier" / FIRST[model].file
        assert any(str(file) in line for line in printed)
        check(file)


def check_examples(address: str, folder: Path) -> None:
    """Every example works, and leaves the image that it names, for those behind it."""
    pages = set()
    for page, code in examples():
        pages.add(page)
        name = re.search(r'(?:-o |Path\(")(\w+\.png)', code)
        if name:
            (folder / name[1]).unlink(missing_ok=True)
        printed = run_as_written(code, address, folder)
        drafts = re.search(r"-o (\w+)$", code)
        if name:
            check(folder / name[1])
        elif drafts:
            assert len(list((folder / drafts[1]).glob("*.png"))) == 4
        else:
            assert re.search("succeeded|queued|paused", printed), f"{code}\n{printed}"
    assert pages == set(PAGES)


def check(file: Path) -> None:
    """It is what its name says, and can be read."""
    if file.suffix == ".png":
        with Image.open(file) as picture:
            assert min(picture.size) >= 64
        return
    with av.open(file) as clip:
        assert len(list(clip.decode(video=0))) >= 17
