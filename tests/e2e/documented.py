"""Examples in the documents that ask the running demo, as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.test_arrows import ROOT

PAGES = ("README.md", "docs/quickstart.md", "docs/guides/requests.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
DEMO = "localhost:8000"
"""Where the documents have the demo."""
CLIENTS = (f"curl {DEMO}", "atelier generate", "atelier jobs")
ELIDED = "…"
"""Stands for what the reader has to fill in."""


def examples() -> Iterator[tuple[str, str]]:
    """Pages, and Python programs or shell commands of theirs that ask the demo."""
    for page in PAGES:
        for language, code in BLOCK.findall((ROOT / page).read_text("utf-8")):
            if language == "python":
                yield page, code
            elif language == "sh":
                commands = code.replace("\\\n", " ").splitlines()
                asks = (one for one in commands if one.startswith(CLIENTS) and ELIDED not in one)
                yield from ((page, one) for one in asks)


def run_as_written(code: str, address: str, folder: Path) -> str:
    """Run an example against that server, in that folder; what it has printed.

    Raises:
        AssertionError: it failed.
    """
    host = address.removeprefix("http://")
    here = code.replace(DEMO, host)
    if code.startswith("curl"):
        command = ["bash", "-ec", here.replace("curl ", "curl --fail-with-body --silent ", 1)]
    elif code.startswith("atelier"):
        command = ["bash", "-ec", f"{here} --server {address}"]
    else:
        command = [sys.executable, "-c", here]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": tools}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
    return done.stdout
