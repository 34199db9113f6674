"""Checks image files of clients in child processes, a few at a time, fair between tenants.

A decoder that a hostile file keeps busy, fills with memory or breaks is a child's: it is killed by
its limits, or when the client leaves, and the event loop and other tenants go on.
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

from models.spec.image_files import ImageFile, ImageFileError
from models.spec.video_files import VideoBounds
from service.confined.file_packing import packed
from service.http.fair_limiter import FairLimiter
from service.http.masked_files import MaskedFiles, to_paste, to_prepare
from service.http.masked_images import Redrawing
from service.http.pixel_comparison import Comparison, to_compare
from service.settings.installation import IMPORT_ROOT
from service.settings.settings import Settings

LENGTH_BYTES = 8
"""Width of the length prefix that the child reads."""
CHECK, MASK, PREPARE, PASTE, VIDEO, COMPARE = b"c", b"m", b"p", b"j", b"v", b"d"
PARAMETERS, RECIPE = b"t", b"r"
"""Letters behind it: what the child does with a file."""
LONG = (VIDEO, COMPARE)
"""Checks that have the processor time of a video."""
ANSWER_BYTES = 2**16
"""Maximum size of an answer beside images."""
TEXTS_BYTES = 2**20
"""Maximum size of an answer of texts: 64 KiB and its parameters, six letters for each byte."""
LETTERS_A_PIXEL = 6
"""Maximum letters of an answer a pixel: an image of three bytes in base64, and masks."""
PROGRAM = Path(__file__).with_name("image_check_process.py")
WALL_TIMES = 12
"""Ratio of wall time to processor time that a child may take: on a busy machine it waits."""


class ImageChecks:
    """A pool of `server.image_processes` children, started when they are needed."""

    def __init__(self, settings: Settings, *, has_tenants: bool) -> None:
        """Make a pool without children.

        Args:
            has_tenants: keep a child free of each tenant for the others.
        """
        limits, count = settings.limits, settings.server.image_processes
        self._image_cpu_s, self._video_cpu_s = limits.image_cpu_s, limits.video_cpu_s
        self._clip_pixels = limits.max_clip_pixels
        self._answer_bytes = TEXTS_BYTES + LETTERS_A_PIXEL * limits.max_image_pixels
        bounds = (limits.max_image_pixels, limits.image_cpu_s, limits.video_cpu_s)
        self._arguments = tuple(map(str, bounds))
        self.places = FairLimiter(count, max(1, count - 1) if has_tenants else count)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        """Children that may run."""
        self._is_closed = False

    async def check(self, data: bytes, tenant: str) -> ImageFile:
        """Check a file and return what kind it is. Raises: ImageFileError."""
        return ImageFile(**await self._answer(data, tenant, CHECK))

    async def check_video(self, data: bytes, bounds: VideoBounds, tenant: str) -> ImageFile:
        """Check a video, or an image as one of one frame. Raises: ImageFileError."""
        asked = await asyncio.to_thread(packed, asdict(bounds), data)
        return ImageFile(**await self._answer(asked, tenant, VIDEO))

    async def mask(self, data: bytes, tenant: str) -> str:
        """Return a mask in base64, white where a file is transparent. Raises: ImageFileError."""
        mask: str = (await self._answer(data, tenant, MASK))["mask"]
        return mask

    async def masked(self, image: bytes, mask: bytes, how: Redrawing, tenant: str) -> MaskedFiles:
        """Return an image and its mask as a model is given them. Raises: ImageFileError."""
        data = await asyncio.to_thread(to_prepare, image, mask, how)
        return MaskedFiles.of(await self._answer(data, tenant, PREPARE))

    async def pasted(self, image: bytes, files: MaskedFiles, made: bytes, tenant: str) -> bytes:
        """Return an image with what was made of its part, as PNG. Raises: ImageFileError."""
        data = await asyncio.to_thread(to_paste, image, files, made)
        answer = await self._answer(data, tenant, PASTE)
        return await asyncio.to_thread(base64.b64decode, answer["image"])

    async def compared(self, files: Sequence[bytes], tenant: str) -> Comparison:
        """Return what one or two files of images or videos show. Raises: ImageFileError."""
        data = await asyncio.to_thread(to_compare, files, self._clip_pixels)
        return Comparison.of(await self._answer(data, tenant, COMPARE))

    async def parameters(self, data: bytes, tenant: str) -> tuple[str, dict[str, str]]:
        """Return AUTOMATIC1111's text in an image file (empty: none), and its parameters.

        Raises: ImageFileError.
        """
        answer = await self._answer(data, tenant, PARAMETERS)
        return answer["text"], answer["parameters"]

    async def recipe(self, packet: bytes, tenant: str) -> str | None:
        """Return the text of the recipe in an XMP packet; None: it has none.

        Raises: ImageFileError.
        """
        text: str | None = (await self._answer(packet, tenant, RECIPE))["recipe"]
        return text

    async def _answer(self, data: bytes, tenant: str, wanted: bytes) -> dict[str, Any]:
        """Return what a child makes of a file. Raises: ImageFileError."""
        async with self.places.place(tenant):
            child = await self._child()
            try:
                async with asyncio.timeout(WALL_TIMES * self._cpu_s(wanted)):
                    answer = await _ask(child, data, wanted)
            except BaseException as error:  # the client left, too
                await self._end(child)
                if isinstance(error, TimeoutError):
                    raise self._too_slow(wanted) from None
                raise
            return await self._read(child, answer, wanted)

    async def _read(self, child: Process, line: bytes, wanted: bytes) -> dict[str, Any]:
        """Parse the child's answer. Raises: ImageFileError."""
        if not line:
            raise self._why(await self._end(child), wanted)
        is_long = len(line) > ANSWER_BYTES
        answer: dict[str, Any] = (
            await asyncio.to_thread(json.loads, line) if is_long else json.loads(line)
        )
        if answer.pop("spent", False) or self._is_closed:
            await self._end(child)
        else:
            self._idle.append(child)
        if "error" in answer:
            raise ImageFileError(answer["error"])
        return answer

    def _why(self, code: int, wanted: bytes) -> ImageFileError:
        if code == -signal.SIGPROF:
            return self._too_slow(wanted)
        return ImageFileError("is broken and cannot be decoded (it breaks the decoder)")

    def _cpu_s(self, wanted: bytes) -> float:
        return self._video_cpu_s if wanted in LONG else self._image_cpu_s

    def _too_slow(self, wanted: bytes) -> ImageFileError:
        instead = "send it shorter or smaller" if wanted in LONG else "save it again as PNG"
        return ImageFileError(f"takes more than {self._cpu_s(wanted):g} s to decode; {instead}")

    async def _child(self) -> Process:
        """Return an idle child, or start one."""
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
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            start_new_session=True,  # Ctrl-C is ours alone
        )
        self._all.add(child)
        return child

    async def _end(self, child: Process) -> int:
        """Kill a child and return its exit code."""
        if child.returncode is None:
            with suppress(ProcessLookupError):
                # Not by its own `kill`, which asks after it first: of a child that has just ended
                # its exit code would go there, and be lost to whoever waits for it.
                os.kill(child.pid, signal.SIGKILL)
        self._all.discard(child)
        return await child.wait()

    async def close(self) -> None:
        """End every child, those that are at work included; one that starts now ends after it."""
        self._is_closed = True
        await asyncio.gather(*map(self._end, tuple(self._all)))
        self._idle.clear()


async def _ask(child: Process, data: bytes, wanted: bytes) -> bytes:
    """The child's line; an empty one where it has died."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.writelines((len(data).to_bytes(LENGTH_BYTES, "big"), wanted, data))
    with suppress(ConnectionError):
        await child.stdin.drain()
    return await child.stdout.readline()
