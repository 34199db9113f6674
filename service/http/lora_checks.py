"""Checks of adapters' files in child processes, which isolate hostile files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from models.spec.lora import Expert
from service.confined.confinement import environment
from service.settings.installation import IMPORT_ROOT

PROGRAM = Path(__file__).with_name("lora_check_process.py")
CPU_S = 60
"""Processor time limit of one check."""
WALL_S = 600.0
"""Wall time limit of one check, for busy machines with slow disks."""
ANSWER_BYTES = 2**18
"""Maximum size of an answer: the facts of 64 embeddings and some warnings have less."""


class LoraFileError(ValueError):
    """File that is not an adapter of the model. The message states the reason and the remedy.

    Args:
        field: invalid field of the upload.
    """

    def __init__(self, message: str, field: str = "file") -> None:
        super().__init__(message)
        self.field = field


class LoraFacts(NamedTuple):
    """Properties of a checked LoRA file, as in `models.spec.lora.Lora`."""

    rank: int
    networks: tuple[str, ...]
    has_magnitudes: bool
    is_reduced: bool
    warnings: tuple[str, ...]
    vectors: int
    embeddings: Mapping[str, int]


class ModelLayers(NamedTuple):
    """Layers of a model that adapter files may change."""

    names: str
    """Names and shapes, as `ModelSpec.lora_layers`."""
    embedding_sizes: Mapping[str, int]
    """Hidden sizes of the text encoders that read embeddings."""

    def to_json(self) -> bytes:
        """Serialize the names of the model's layers for the check process."""
        return json.dumps(self).encode()


async def check_lora(
    file: BinaryIO, layers: ModelLayers, expert: Expert | None, max_rank: int
) -> LoraFacts:
    """Check the file of an adapter or embedding completely, against a model's layers.

    Args:
        expert: expert of Wan 2.2 that the file is for.
        max_rank: rank to which a higher one is reduced.

    Raises: LoraFileError.
    """
    child = await _start(file.fileno(), expert or "", max_rank)
    try:
        async with asyncio.timeout(WALL_S):
            line = await _ask(child, layers)
    except TimeoutError:
        raise LoraFileError("takes too long to read; is it an adapter?") from None
    finally:
        await _end(child)
    if not line:
        raise LoraFileError(_why(child.returncode))
    answer = json.loads(line)
    if "error" in answer:
        raise LoraFileError(answer["error"], answer["field"])
    return LoraFacts(
        answer["rank"],
        tuple(answer["networks"]),
        answer["has_magnitudes"],
        answer["is_reduced"],
        tuple(answer["warnings"]),
        answer["vectors"],
        answer["embeddings"],
    )


async def _ask(child: Process, layers: ModelLayers) -> bytes:
    """Return the child's answer; empty if it crashed, or answers more than a check does."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(layers.to_json())
    with suppress(ConnectionError):
        await child.stdin.drain()
    child.stdin.close()
    with suppress(ValueError):  # longer than the stream's limit
        return await child.stdout.readline()
    return b""


async def _start(descriptor: int, expert: str, max_rank: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(PROGRAM), str(IMPORT_ROOT)),
        *(str(descriptor), expert, str(CPU_S), str(max_rank)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        limit=ANSWER_BYTES,
        pass_fds=(descriptor,),
        env=environment(),
        start_new_session=True,  # only the parent receives Ctrl-C
    )


async def _end(child: Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    await child.wait()


def _why(code: int | None) -> str:
    if code == -signal.SIGXCPU:
        return f"takes more than {CPU_S} s to read; is it an adapter?"
    return "cannot be read (it crashes the reader)"
