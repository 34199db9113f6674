"""Program of a child process that checks image files, confined in memory and processor time.

It runs by path and isolated (`python -I`): it imports nothing from its working directory, and has
no settings, secrets or sockets. Each file arrives on standard input, after its length in eight
bytes and a letter for the operation. Each result is a line of JSON.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))  # isolated mode omits the folder of our packages

from PIL import Image

from models.media.image_files import ImageFile, ImageFileError, check, mask_of_alpha
from models.media.video_files import VideoBounds
from models.media.video_files import check as check_video
from service.confined.confinement import bound_memory, memory_bytes, refuse_calls, refuse_files
from service.confined.file_packing import unpacked
from service.http.file_texts import parameters_in, recipe_in
from service.http.masked_files import paste, prepare
from service.http.pixel_comparison import compare

LENGTH_BYTES = 8
CHECK, MASK, PREPARE, PASTE, VIDEO, COMPARE = b"c", b"m", b"p", b"j", b"v", b"d"
PARAMETERS, RECIPE = b"t", b"r"
"""Letters of the operations."""
LONG = (VIDEO, COMPARE)
"""Operations with the time limit of a video."""
WARNINGS = "warnings"
"""Member of each result: number of warnings that decoders raised."""


class WarningCounter:
    """Counter of the warnings that decoders raise, instead of their texts."""

    def __init__(self) -> None:
        self._count = 0
        warnings.simplefilter("always")
        warnings.showwarning = self._add

    def _add(self, *_: object, **__: object) -> None:
        self._count += 1

    def take(self) -> int:
        """Return the number of decoder warnings since the last call."""
        count, self._count = self._count, 0
        return count


def main(max_pixels: int, image_cpu_s: float, video_cpu_s: float) -> None:
    """Process files until the input ends. SIGPROF kills the process if a file takes too long.

    Args:
        max_pixels: limit for an image, or for a frame.
        image_cpu_s: processor time limit per image.
        video_cpu_s: processor time limit per video.
    """
    Image.preinit()  # before the first file's time starts
    bound_memory(max_pixels)
    refuse_files()
    refuse_calls()
    warning_counter = WarningCounter()
    while head := sys.stdin.buffer.read(LENGTH_BYTES):
        operation = sys.stdin.buffer.read(1)
        data = sys.stdin.buffer.read(int.from_bytes(head, "big"))
        signal.setitimer(signal.ITIMER_PROF, video_cpu_s if operation in LONG else image_cpu_s)
        answer = run_operation(data, max_pixels, operation)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer | {WARNINGS: warning_counter.take()}), flush=True)


def fields_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Check an image and return the fields of an `ImageFile`. Raises: ImageFileError."""
    return timed(partial(check, data, max_pixels))


def timed(checked: Callable[[], ImageFile]) -> dict[str, Any]:
    """Run a check, and return its result fields with the processor time."""
    began = time.process_time()
    return {**asdict(checked()), "decode_s": time.process_time() - began}


def mask_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Extract the alpha channel as a `mask` in base64. Raises: ImageFileError."""
    return {"mask": base64.b64encode(mask_of_alpha(data, max_pixels)).decode()}


def video_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Check a video within its bounds, and return the fields of an `ImageFile`.

    Raises: ImageFileError.
    """
    about, (file,) = unpacked(data)
    bounds = VideoBounds(**about)
    stricter = replace(bounds, max_frame_pixels=min(max_pixels, bounds.max_frame_pixels))
    return timed(partial(check_video, file, stricter))


OPERATIONS: Mapping[bytes, Callable[[bytes, int], dict[str, Any]]] = {
    CHECK: fields_of,
    MASK: mask_of,
    PREPARE: prepare,
    PASTE: paste,
    VIDEO: video_of,
    COMPARE: compare,
    PARAMETERS: parameters_in,
    RECIPE: recipe_in,
}


def run_operation(data: bytes, max_pixels: int, operation: bytes = CHECK) -> dict[str, Any]:
    """Run one of the checks on a file; return its result, or `error`. `spent`: use a new child."""
    try:
        return OPERATIONS[operation](data, max_pixels)
    except ImageFileError as error:
        return {"error": str(error)}
    except MemoryError:
        instead = "send it smaller" if operation in LONG else "save it again as PNG"
        limit = f"{memory_bytes(max_pixels) // 2**20} MiB"
        return {"error": f"takes more than {limit} of memory to decode; {instead}", "spent": True}


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
