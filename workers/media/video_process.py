"""Program of a child process that decodes a request's videos and scales their frames.

It runs by its path and isolated (`python -I`), like the front ends' checks: with limited memory and
processor time, without sockets or settings. Standard input has all files of a request. The output
has each frame as a PNG, prefixed with its length in eight bytes. A length of 0 ends the frames. A
line of JSON follows, with each file's number of frames, or the error of one.
"""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))  # isolated mode lacks the packages' folder

from PIL import Image

from models.media.image_files import ImageFileError, converting_errors
from models.media.scaling import FrameScaling
from models.media.video_files import frames
from service.confined.confinement import bound_memory, refuse_calls, refuse_files
from service.confined.file_packing import unpacked

LENGTH_BYTES = 8


def main(max_pixels: int, cpu_s: float) -> None:
    """Decode the videos on standard input; SIGPROF kills the process if one exceeds `cpu_s`.

    Args:
        max_pixels: maximum pixels of a frame.
    """
    Image.preinit()
    bound_memory(max_pixels)
    refuse_files()
    refuse_calls()
    about, files = unpacked(sys.stdin.buffer.read())
    counts: list[int] = []
    answer: dict[str, Any] = {"counts": counts}
    for video, file in zip(about["videos"], files, strict=True):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            counts.append(write_frames(file, video, max_pixels))
        except ImageFileError as error:
            answer = {"path": video["path"], "error": str(error)}
            break
        except MemoryError:
            answer = {"path": video["path"], "error": "takes too much memory; send it smaller"}
            break
    print_frame(b"")
    print(json.dumps({**answer, "cpu_s": time.process_time()}), flush=True)


def write_frames(file: bytes, video: dict[str, Any], max_pixels: int) -> int:
    """Write the scaled frames of a video file; return their number. Raises: ImageFileError."""
    count = 0
    for png in scaled(file, video, max_pixels):
        count += 1
        if count > video["max_frames"]:
            raise ImageFileError(f"has more than {video['max_frames']} frames, which is num_frames")
        print_frame(png)
    return count


def scaled(file: bytes, video: dict[str, Any], max_pixels: int) -> Iterator[bytes]:
    """Yield a video file's frames, scaled, as uncompressed PNGs.

    Raises: ImageFileError.
    """
    scaling, size = FrameScaling(**video["scaling"]), tuple(video["size"])
    with converting_errors(max_pixels):
        for frame in frames(file, max_pixels, is_mask="mask" in video["path"]):
            png = io.BytesIO()
            scaling.scaled(frame, size).save(png, "PNG", compress_level=0)
            yield png.getvalue()


def print_frame(png: bytes) -> None:
    """Write a frame's PNG to standard output, prefixed with its length."""
    sys.stdout.buffer.write(len(png).to_bytes(LENGTH_BYTES, "big"))
    sys.stdout.buffer.write(png)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
