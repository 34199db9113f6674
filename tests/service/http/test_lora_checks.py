"""Answers of the process that checks adapters, as a hostile file could forge them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from service.http import lora_checks
from service.http.lora_checks import ANSWER_BYTES, LoraFileError, ModelLayers, check_lora

FORGED = f"""
import sys
sys.stdin.read()
print("x" * {10 * ANSWER_BYTES})
"""


async def test_an_endless_answer_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is confined, and cannot fill the memory of the front end either."""
    program = tmp_path / "program.py"
    program.write_text(FORGED)
    monkeypatch.setattr(lora_checks, "PROGRAM", program)
    with tempfile.TemporaryFile() as file, pytest.raises(LoraFileError, match="crashes the reader"):
        await check_lora(file, ModelLayers("", {}), None, 64)
