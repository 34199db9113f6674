"""Input videos of requests, decoded and scaled to the model's size in a child process.

Front ends have validated each file. Workers decode it again once per job, since frames are hundreds
of times as large as the file. A hostile file can crash or fill only the child, and its processor
time is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError
from models.spec.request_images import VIDEO_FIELDS, field_of
from service.confined.confinement import environment
from service.confined.file_packing import packed
from service.settings.installation import IMPORT_ROOT
from service.settings.limits import LimitSettings

PROGRAM = Path(__file__).with_name("video_process.py")
LENGTH_BYTES = 8
STREAM_BYTES = 2**22
"""Bytes of frames that may be buffered."""
HEAD_BYTES = 2**16
"""Upper bound of a PNG's bytes in addition to its pixels."""
TIMES = 4
"""Limit of a file's processor time, as a multiple of a front end's check. Frames are also scaled
here, and the worker's processor may be slower."""
KILLED = "takes more than {:g} s to decode and scale; send it shorter or smaller"
BROKEN = "is broken and cannot be decoded (it breaks the decoder)"


@dataclass(frozen=True)
class Video:
    """File of a request's input video: the whole video, or the image of one frame."""

    path: str
    data: bytes
    header: Mapping[str, Any]
    """Description of the file for the child."""


@dataclass(frozen=True)
class ScaledVideos:
    """Images of a request, with its videos replaced by frames in the model's size."""

    images: Mapping[str, bytes]
    """Files by path."""
    cpu_s: float = 0.0
    """Processor time of decoding and scaling."""


class InputVideos:
    """Decodes and scales the input videos of requests, with one child process per request."""

    def __init__(self, limits: LimitSettings | None = None) -> None:
        limits = limits or LimitSettings()
        self._cpu_s = TIMES * limits.video_cpu_s
        self._arguments = (str(limits.max_frame_pixels), str(self._cpu_s))

    async def scaled(
        self, images: Mapping[str, bytes], fields: Mapping[str, Any], spec: ModelSpec
    ) -> ScaledVideos:
        """Return a request's images, with frames in place of its videos.

        Args:
            fields: fields of the resolved request.

        Raises: RequestError: a file is damaged, or takes too long.
        """
        videos = list(videos_of(images, fields, spec))
        if not videos:
            return ScaledVideos(images)
        child = await self._start()
        try:
            frames, answer = await _request(child, videos)
        finally:
            await _end(child)
        if answer is None:
            raise RequestError(self._breaking(videos), self._explanation(child.returncode))
        if "error" in answer:
            raise RequestError(field_of(answer["path"]), answer["error"])
        read = {video.path for video in videos}
        others = {path: data for path, data in images.items() if path not in read}
        named = zip(paths_of(videos, answer["counts"]), frames, strict=True)
        return ScaledVideos({**others, **dict(named)}, answer["cpu_s"])

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(PROGRAM), str(IMPORT_ROOT), *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=STREAM_BYTES,
            env=environment(),
            start_new_session=True,  # do not forward Ctrl-C to the child
        )

    def _breaking(self, videos: list[Video]) -> str:
        """Return the field of the largest video, if the child crashed without naming one."""
        return field_of(max(videos, key=lambda video: len(video.data)).path)

    def _explanation(self, code: int | None) -> str:
        return KILLED.format(self._cpu_s) if code == -signal.SIGPROF else BROKEN


def videos_of(
    images: Mapping[str, bytes], fields: Mapping[str, Any], spec: ModelSpec
) -> Iterator[Video]:
    """Yield the files of a request's videos, in order."""
    for path, data in images.items():
        if scaling := spec.frame_scaling.get(field_of(path)):
            size = scaling.size(fields["width"], fields["height"])
            most = fields["num_frames"] if path in VIDEO_FIELDS else 1
            header = {"path": path, "scaling": asdict(scaling), "size": size, "max_frames": most}
            yield Video(path, data, header)


def paths_of(videos: list[Video], counts: list[int]) -> Iterator[str]:
    """Yield the path of each decoded frame, which extends its video's: `pose_video.0`."""
    for video, count in zip(videos, counts, strict=True):
        if video.path in VIDEO_FIELDS:
            yield from (f"{video.path}.{index}" for index in range(count))
        else:
            yield video.path


async def _request(
    child: Process, videos: list[Video]
) -> tuple[list[bytes], dict[str, Any] | None]:
    """Return all frames and the answer of a decoding process; None: the process has exited."""
    assert child.stdin is not None and child.stdout is not None
    header = {"videos": [video.header for video in videos]}
    data = await asyncio.to_thread(packed, header, *(video.data for video in videos))
    frame_limit = sum(video.header["max_frames"] for video in videos)
    max_bytes = max(map(_frame_bytes, videos))
    frames: list[bytes] = []
    try:
        child.stdin.write(data)
        await child.stdin.drain()
        child.stdin.close()
        while length := int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big"):
            if length > max_bytes or len(frames) == frame_limit:
                raise ConnectionError  # compromised decoder
            frames.append(await child.stdout.readexactly(length))
        answer: dict[str, Any] = json.loads(await child.stdout.readline())
    except (ConnectionError, asyncio.IncompleteReadError):
        await _end(child)
        return [], None
    return frames, answer


def _frame_bytes(video: Video) -> int:
    """Return an upper bound of a frame's PNG: pixels, a byte per line, and chunks."""
    width, height = video.header["size"]
    return int(4 * width * height + height + HEAD_BYTES)


async def _end(child: Process) -> None:
    """Kill the video decoder's child process if it still runs."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    await child.wait()
