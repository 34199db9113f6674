"""What `make demo` promises: a running system, its address, and a first picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
from PIL import Image

from tests.e2e.system import DEADLINE_S


def test_the_demo_makes_a_first_picture(tmp_path: Path) -> None:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    with subprocess.Popen(
        [sys.executable, "-m", "deploy.demo", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    ) as demo:
        assert demo.stdout is not None
        printed = []
        for line in demo.stdout:
            printed.append(line)
            if line.startswith("Make more at "):
                address = line.split()[3]
                assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200
                demo.terminate()
        assert demo.wait(DEADLINE_S) == 0, "".join(printed)
    picture = tmp_path / ".atelier" / "first-picture.png"
    assert any(str(picture) in line for line in printed)
    with Image.open(picture) as made:
        assert made.size == (96, 96)
