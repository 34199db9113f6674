"""Programs of other people that the tests run, each installed by `make clients`."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
"""LiteLLM alone takes ten seconds to be imported on a busy machine."""


async def output(*command: str | Path, **variables: str) -> Any:
    """What a program prints last, as JSON. Raises: AssertionError: it failed, or took too long."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=PIPE, stderr=PIPE, env=own | variables
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            said, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaint.decode()
    return json.loads(said.decode().splitlines()[-1])
