"""Runs third-party programs that `make clients` installs."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
"""Importing LiteLLM takes ten seconds on a busy machine."""


async def output(*command: str | Path, **variables: str) -> Any:
    """Last line that a program prints, as JSON. Raises: AssertionError: it failed or took too
    long."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=PIPE, stderr=PIPE, env=inherited | variables
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, stderr.decode()
    return json.loads(stdout.decode().splitlines()[-1])
