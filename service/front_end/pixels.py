"""Pixel comparison of two outputs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from itertools import zip_longest

import av
import numpy as np
from PIL import Image


def psnr(first: bytes, second: bytes, content_type: str) -> float | None:
    """Compute the PSNR in dB of two files' pixels, over all frames; infinite if equal.

    None: they differ in size or number of frames.
    """
    error, count = 0.0, 0
    pairs = zip_longest(_frames(first, content_type), _frames(second, content_type))
    for frame, other in pairs:
        if frame is None or other is None or frame.shape != other.shape:
            return None
        error += float(np.square(frame.astype(np.float32) - other).sum(dtype=np.float64))
        count += frame.size
    return math.inf if not error else 10 * math.log10(255**2 * count / error)


def _frames(data: bytes, content_type: str) -> Iterator[np.ndarray]:
    """Yield the frames of a video, or an image's frames, as RGB."""
    if content_type.startswith("video/"):
        with av.open(io.BytesIO(data), "r") as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
        return
    with Image.open(io.BytesIO(data)) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            yield np.asarray(image.convert("RGB"))
