"""Program of a child process that decodes the videos of a request, and scales their frames.

It runs by its path and isolated (`python -I`), as front ends' checks do: bounded in memory and
processor time, without sockets and settings. All files of a request come on standard input. It
answers with each frame, a PNG behind its length in eight bytes; a length of 0 ends them, and a line
of JSON follows: the number of frames of each file, or what is wrong with one.
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
    sys.path.insert(0, sys.argv.pop(1))  # isolated, it lacks the folder that our packages are in

from PIL import Image

from models.spec.frame_scaling import FrameScaling
from models.spec.image_files import ImageFileError, explained
from models.spec.video_files import frames
from service.confined.confinement import bound_memory, refuse_calls, refuse_files
from service.confined.file_packing import unpacked

LENGTH_BYTES = 8


def main(max_pixels: int, cpu_s: float) -> None:
    """Answer, until a file has taken that much processor time: then SIGPROF kills us.

    Args:
        max_pixels: of a frame.
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
    """Write the frames of a file; return their number. Raises: ImageFileError."""
    count = 0
    for png in scaled(file, video, max_pixels):
        count += 1
        if count > video["max_frames"]:
            raise ImageFileError(f"has more than {video['max_frames']} frames, which is num_frames")
        print_frame(png)
    return count


def scaled(file: bytes, video: dict[str, Any], max_pixels: int) -> Iterator[bytes]:
    """Yield a file's frames in their size, as PNGs that are not compressed.

    Raises: ImageFileError.
    """
    scaling, size = FrameScaling(**video["scaling"]), tuple(video["size"])
    with explained(max_pixels):
        for frame in frames(file, max_pixels, is_mask="mask" in video["path"]):
            png = io.BytesIO()
            scaling.scaled(frame, size).save(png, "PNG", compress_level=0)
            yield png.getvalue()


def print_frame(png: bytes) -> None:
    """Write a frame behind its length."""
    sys.stdout.buffer.write(len(png).to_bytes(LENGTH_BYTES, "big"))
    sys.stdout.buffer.write(png)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
