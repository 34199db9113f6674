"""Pool of child processes that check clients' image files, with fairness between tenants.

If a hostile file blocks, exhausts or crashes a decoder, only a child is affected. Its limits kill
it, or the parent does when the client disconnects. The event loop and other tenants continue.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.media.image_files import ImageFile, ImageFileError
from models.media.video_files import VideoBounds
from service.confined.confinement import environment
from service.confined.file_packing import packed
from service.http.fair_limiter import FairLimiter
from service.http.masked_files import MaskedFiles, pack_paste, pack_prepare
from service.http.masked_images import InpaintSettings
from service.http.pixel_comparison import Comparison, pack_compare
from service.settings.installation import IMPORT_ROOT
from service.settings.settings import Settings
from service.tracing.library_warnings import library_warnings

LENGTH_BYTES = 8
"""Width of the length prefix that the child reads."""
CHECK, MASK, PREPARE, PASTE, VIDEO, COMPARE = b"c", b"m", b"p", b"j", b"v", b"d"
PARAMETERS, RECIPE = b"t", b"r"
"""Letters after the length, which select the child's operation."""
LONG = (VIDEO, COMPARE)
"""Operations with the time limit of a video."""
ANSWER_BYTES = 2**16
"""Maximum size of a result without images."""
TEXTS_BYTES = 2**20
"""Maximum size of a result with texts: 64 KiB and its parameters, six letters per byte."""
LETTERS_A_PIXEL = 6
"""Maximum result letters per pixel: an image of three bytes in base64, and masks."""
PROGRAM = Path(__file__).with_name("image_check_process.py")
WALL_TIMES = 12
"""Ratio of wall time to processor time that a child may take, for busy machines."""


class ImageChecks:
    """Pool of `server.image_processes` children, started on demand."""

    def __init__(self, settings: Settings, *, has_tenants: bool) -> None:
        """Create the pool of check processes, without starting any.

        Args:
            has_tenants: keep one child free of each tenant for the others.
        """
        limits, count = settings.limits, settings.server.image_processes
        self._image_cpu_s, self._video_cpu_s = limits.image_cpu_s, limits.video_cpu_s
        self._clip_pixels = limits.max_clip_pixels
        self._answer_bytes = TEXTS_BYTES + LETTERS_A_PIXEL * limits.max_image_pixels
        bounds = (limits.max_image_pixels, limits.image_cpu_s, limits.video_cpu_s)
        self._arguments = tuple(map(str, bounds))
        self.slots = FairLimiter(count, max(1, count - 1) if has_tenants else count)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        """Children that may be running."""
        self._is_closed = False

    async def check(self, data: bytes, tenant: str) -> ImageFile:
        """Validate an image file in a child process; return its kind. Raises: ImageFileError."""
        return ImageFile(**await self._answer(data, tenant, CHECK))

    async def check_video(self, data: bytes, bounds: VideoBounds, tenant: str) -> ImageFile:
        """Check a video, or an image as a video of one frame. Raises: ImageFileError."""
        payload = await asyncio.to_thread(packed, asdict(bounds), data)
        return ImageFile(**await self._answer(payload, tenant, VIDEO))

    async def mask(self, data: bytes, tenant: str) -> str:
        """Extract a file's transparency as a mask in base64. Raises: ImageFileError."""
        mask: str = (await self._answer(data, tenant, MASK))["mask"]
        return mask

    async def prepare_inpainting(
        self, image: bytes, mask: bytes, settings: InpaintSettings, tenant: str
    ) -> MaskedFiles:
        """Prepare an image and its mask as a model's inputs. Raises: ImageFileError."""
        data = await asyncio.to_thread(pack_prepare, image, mask, settings)
        return MaskedFiles.of(await self._answer(data, tenant, PREPARE))

    async def paste(self, image: bytes, files: MaskedFiles, result: bytes, tenant: str) -> bytes:
        """Paste a generated region into its image, as PNG. Raises: ImageFileError."""
        data = await asyncio.to_thread(pack_paste, image, files, result)
        answer = await self._answer(data, tenant, PASTE)
        return await asyncio.to_thread(base64.b64decode, answer["image"])

    async def compare(self, files: Sequence[bytes], tenant: str) -> Comparison:
        """Digest and compare the pixels of one or two files. Raises: ImageFileError."""
        data = await asyncio.to_thread(pack_compare, files, self._clip_pixels)
        return Comparison.of(await self._answer(data, tenant, COMPARE))

    async def parameters(self, data: bytes, tenant: str) -> tuple[str, dict[str, str]]:
        """Read AUTOMATIC1111's text from an image file (empty if none), and its parameters.

        Raises: ImageFileError.
        """
        answer = await self._answer(data, tenant, PARAMETERS)
        return answer["text"], answer["parameters"]

    async def recipe(self, packet: bytes, tenant: str) -> str | None:
        """Read the recipe's text from an XMP packet; None if absent.

        Raises: ImageFileError.
        """
        text: str | None = (await self._answer(packet, tenant, RECIPE))["recipe"]
        return text

    async def _answer(self, data: bytes, tenant: str, operation: bytes) -> dict[str, Any]:
        """Run an operation on a file in a child process. Raises: ImageFileError."""
        async with self.slots.slot(tenant):
            child = await self._child()
            try:
                async with asyncio.timeout(WALL_TIMES * self._cpu_s(operation)):
                    answer = await _ask(child, data, operation)
            except BaseException as error:  # including cancellation when the client disconnects
                await self._end(child)
                if isinstance(error, TimeoutError):
                    raise self._too_slow(operation) from None
                raise
            return await self._read(child, answer, operation)

    async def _read(self, child: Process, line: bytes, operation: bytes) -> dict[str, Any]:
        """Parse a check process's result, and keep or end the process. Raises: ImageFileError."""
        if not line:
            raise self._why(await self._end(child), operation)
        is_long = len(line) > ANSWER_BYTES
        answer: dict[str, Any] = (
            await asyncio.to_thread(json.loads, line) if is_long else json.loads(line)
        )
        library_warnings.inc(answer.pop("warnings", 0))
        if answer.pop("spent", False) or self._is_closed:
            await self._end(child)
        else:
            self._idle.append(child)
        if "error" in answer:
            raise ImageFileError(answer["error"])
        return answer

    def _why(self, code: int, operation: bytes) -> ImageFileError:
        if code == -signal.SIGPROF:
            return self._too_slow(operation)
        return ImageFileError("is damaged and cannot be decoded (it crashes the decoder)")

    def _cpu_s(self, operation: bytes) -> float:
        return self._video_cpu_s if operation in LONG else self._image_cpu_s

    def _too_slow(self, operation: bytes) -> ImageFileError:
        instead = "send it shorter or smaller" if operation in LONG else "save it again as PNG"
        return ImageFileError(f"takes more than {self._cpu_s(operation):g} s to decode; {instead}")

    async def _child(self) -> Process:
        """Return an idle check process, or start one."""
        while self._idle:
            child = self._idle.pop()
            if child.returncode is None:
                return child
            self._all.discard(child)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(PROGRAM), str(IMPORT_ROOT), *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=self._answer_bytes,
            env=environment(),
            start_new_session=True,  # only the parent receives Ctrl-C
        )
        self._all.add(child)
        return child

    async def _end(self, child: Process) -> int:
        """Kill a check process and return its exit code."""
        if child.returncode is None:
            with suppress(ProcessLookupError):
                # Not `Process.kill`, which polls the child first. If the child has just exited,
                # that poll would consume its exit code, which waiters need.
                os.kill(child.pid, signal.SIGKILL)
        self._all.discard(child)
        return await child.wait()

    async def close(self) -> None:
        """Kill every check process, also busy ones; a starting one is killed after its file."""
        self._is_closed = True
        await asyncio.gather(*map(self._end, tuple(self._all)))
        self._idle.clear()


async def _ask(child: Process, data: bytes, operation: bytes) -> bytes:
    """Send a file to a check process; return the result line, empty if the process crashed."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.writelines((len(data).to_bytes(LENGTH_BYTES, "big"), operation, data))
    with suppress(ConnectionError):
        await child.stdin.drain()
    return await child.stdout.readline()
