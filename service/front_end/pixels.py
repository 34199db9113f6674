"""Pixels of two outputs, held against each other."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from itertools import zip_longest

import av
import numpy as np
from PIL import Image


def psnr(one: bytes, other: bytes, content_type: str) -> float | None:
    """Return the PSNR in dB of two files' pixels, over all frames; infinite: they are equal.

    None: they differ in size or number of frames.
    """
    error, count = 0.0, 0
    pairs = zip_longest(_frames(one, content_type), _frames(other, content_type))
    for mine, theirs in pairs:
        if mine is None or theirs is None or mine.shape != theirs.shape:
            return None
        error += float(np.square(mine.astype(np.float32) - theirs).sum(dtype=np.float64))
        count += mine.size
    return math.inf if not error else 10 * math.log10(255**2 * count / error)


def _frames(data: bytes, content_type: str) -> Iterator[np.ndarray]:
    """Yield frames as RGB, of an image its one."""
    if content_type.startswith("video/"):
        with av.open(io.BytesIO(data), "r") as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
        return
    with Image.open(io.BytesIO(data)) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            yield np.asarray(image.convert("RGB"))
