"""Examples in the documents that call the running demo, run as a reader would run them."""

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
"""Address of the demo in the documents."""
CLIENTS = (f"curl {DEMO}", "atelier generate", "atelier jobs")
ELIDED = "…"
"""Placeholder that the reader has to fill in."""


def examples() -> Iterator[tuple[str, str]]:
    """Yield pages with their Python programs and shell commands that call the demo."""
    for page in PAGES:
        for language, code in BLOCK.findall((ROOT / page).read_text("utf-8")):
            if language == "python":
                yield page, code
            elif language == "sh":
                commands = code.replace("\\\n", " ").splitlines()
                calls = (
                    command
                    for command in commands
                    if command.startswith(CLIENTS) and ELIDED not in command
                )
                yield from ((page, command) for command in calls)


def run_as_written(code: str, address: str, folder: Path) -> str:
    """Run an example against a server in a folder; returns its output.

    Raises:
        AssertionError: the example failed.
    """
    host = address.removeprefix("http://")
    localized = code.replace(DEMO, host)
    if code.startswith("curl"):
        command = ["bash", "-ec", localized.replace("curl ", "curl --fail-with-body --silent ", 1)]
    elif code.startswith("atelier"):
        command = ["bash", "-ec", f"{localized} --server {address}"]
    else:
        command = [sys.executable, "-c", localized]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": tools}, capture_output=True, text=True
    )
    assert process.returncode == 0, f"{code}\n{process.stdout}{process.stderr}"
    return process.stdout
