"""Program of a child process that checks image files, confined in memory and processor time.

It runs by its path and isolated (`python -I`): nothing of its working directory is imported, and it
knows no settings, secrets or sockets. Files come on standard input, each behind its length in eight
bytes and a letter that says what is wanted of it; each is answered by a line of JSON.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))  # isolated, it lacks the folder that our packages are in

from PIL import Image

from models.spec.image_files import ImageFile, ImageFileError, check, mask_of_alpha
from models.spec.video_files import VideoBounds
from models.spec.video_files import check as check_video
from service.confined.confinement import bound_memory, refuse_calls, refuse_files
from service.confined.file_packing import unpacked
from service.http.file_texts import parameters_in, recipe_in
from service.http.masked_files import paste, prepare
from service.http.pixel_comparison import compare

LENGTH_BYTES = 8
CHECK, MASK, PREPARE, PASTE, VIDEO, COMPARE = b"c", b"m", b"p", b"j", b"v", b"d"
PARAMETERS, RECIPE = b"t", b"r"
"""Letters of what may be wanted."""
LONG = (VIDEO, COMPARE)
"""Checks that have the processor time of a video."""


def main(max_pixels: int, image_cpu_s: float, video_cpu_s: float) -> None:
    """Answer until the input ends, or until a file takes too long: then SIGPROF kills us.

    Args:
        max_pixels: of an image, or of a frame.
        image_cpu_s: processor time that an image may take; and so on.
    """
    Image.preinit()  # now, and not in the first file's time
    bound_memory(max_pixels)
    refuse_files()
    refuse_calls()
    while head := sys.stdin.buffer.read(LENGTH_BYTES):
        wanted = sys.stdin.buffer.read(1)
        data = sys.stdin.buffer.read(int.from_bytes(head, "big"))
        signal.setitimer(signal.ITIMER_PROF, video_cpu_s if wanted in LONG else image_cpu_s)
        answer = look_at(data, max_pixels, wanted)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


def fields_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the fields of an `ImageFile`. Raises: ImageFileError."""
    return timed(partial(check, data, max_pixels))


def timed(checked: Callable[[], ImageFile]) -> dict[str, Any]:
    """Return the fields of a checked file, with the processor time that checking took."""
    began = time.process_time()
    return {**asdict(checked()), "decode_s": time.process_time() - began}


def mask_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return a `mask` in base64. Raises: ImageFileError."""
    return {"mask": base64.b64encode(mask_of_alpha(data, max_pixels)).decode()}


def video_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the fields of an `ImageFile`, of a video and its bounds. Raises: ImageFileError."""
    about, (file,) = unpacked(data)
    bounds = VideoBounds(**about)
    least = replace(bounds, max_frame_pixels=min(max_pixels, bounds.max_frame_pixels))
    return timed(partial(check_video, file, least))


WANTED: Mapping[bytes, Callable[[bytes, int], dict[str, Any]]] = {
    CHECK: fields_of,
    MASK: mask_of,
    PREPARE: prepare,
    PASTE: paste,
    VIDEO: video_of,
    COMPARE: compare,
    PARAMETERS: parameters_in,
    RECIPE: recipe_in,
}


def look_at(data: bytes, max_pixels: int, wanted: bytes = CHECK) -> dict[str, Any]:
    """Return what is wanted, or `error`; `spent` asks for another child."""
    try:
        return WANTED[wanted](data, max_pixels)
    except ImageFileError as error:
        return {"error": str(error)}
    except MemoryError:
        instead = "send it smaller" if wanted in LONG else "save it again as PNG"
        return {"error": f"takes too much memory to decode; {instead}", "spent": True}


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
