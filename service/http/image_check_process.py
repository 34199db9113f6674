"""Program of a child process that checks image files, confined in memory and processor time.

It runs by its path and isolated (`python -I`): nothing of its working directory is imported, and it
knows no settings, secrets or sockets. Files come on standard input, each behind its length in eight
bytes and a letter that says what is wanted of it; each is answered by a line of JSON.
"""

from __future__ import annotations

import base64
import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))  # isolated, it lacks the folder that our packages are in

from PIL import Image

from models.spec.image_files import ImageFileError, check, mask_of_alpha
from models.spec.video_files import VideoBounds
from models.spec.video_files import check as check_video
from service.http.confinement import refuse_calls
from service.http.file_texts import parameters_in, recipe_in
from service.http.masked_files import paste, prepare, unpacked
from service.http.pixel_comparison import compare

LENGTH_BYTES = 8
CHECK, MASK, PREPARE, PASTE, VIDEO, COMPARE = b"c", b"m", b"p", b"j", b"v", b"d"
PARAMETERS, RECIPE = b"t", b"r"
"""Letters of what may be wanted."""
LONG = (VIDEO, COMPARE)
"""Checks that have the processor time of a video."""
BASE_BYTES = 320 * 2**20
"""Memory of a child without pixels: the interpreter, its libraries, and the file itself."""
BYTES_A_PIXEL = 24
"""Memory a pixel: WebP holds four copies of four bytes while it is decoded, a progressive JPEG its
coefficients beside two."""


def main(max_pixels: int, image_cpu_s: float, video_cpu_s: float) -> None:
    """Answer until the input ends, or until a file takes too long: then SIGPROF kills us.

    Args:
        max_pixels: of an image, or of a frame.
        image_cpu_s: processor time that an image may take; and so on.
    """
    Image.preinit()  # now, and not in the first file's time
    confine(max_pixels)
    refuse_calls()
    while head := sys.stdin.buffer.read(LENGTH_BYTES):
        wanted = sys.stdin.buffer.read(1)
        data = sys.stdin.buffer.read(int.from_bytes(head, "big"))
        signal.setitimer(signal.ITIMER_PROF, video_cpu_s if wanted in LONG else image_cpu_s)
        answer = look_at(data, max_pixels, wanted)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


def confine(max_pixels: int) -> None:
    """Bound the memory; forbid to write files."""
    bounds = {
        resource.RLIMIT_AS: memory_bytes(max_pixels),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for what, most in bounds.items():
        resource.setrlimit(what, (most, most))


def memory_bytes(max_pixels: int) -> int:
    """Return the memory that one child may use."""
    return BASE_BYTES + BYTES_A_PIXEL * max_pixels


def fields_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the fields of an `ImageFile`. Raises: ImageFileError."""
    return asdict(check(data, max_pixels))


def mask_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return a `mask` in base64. Raises: ImageFileError."""
    return {"mask": base64.b64encode(mask_of_alpha(data, max_pixels)).decode()}


def video_of(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the fields of an `ImageFile`, of a video and its bounds. Raises: ImageFileError."""
    bounds, (file,) = unpacked(data)
    return asdict(check_video(file, max_pixels, VideoBounds(**bounds)))


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
