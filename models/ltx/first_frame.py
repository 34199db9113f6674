"""Preprocessing of a video's first frame.

Source: diffusers pipeline_ltx2_image2video.py; utils.py, apply_image_conditioning_crf.
"""

from __future__ import annotations

import io

import av
import numpy as np
from jaxtyping import Float32
from PIL import Image

from models.interface.images import open_image, pixels_of

CRF = 33
"""H.264 quality of first frames before encoding, as in training."""


def read_first_frame(
    data: bytes, width: int, height: int
) -> Float32[np.ndarray, "height width colours"]:
    """Decode an image, compress it as a video frame, and resize it: pixels in [-1, 1].

    Raises: RequestError: the bytes are not an image.
    """
    image = Image.fromarray(compressed(np.asarray(open_image(data))))
    return pixels_of(image.resize((width, height), Image.Resampling.BILINEAR))


def compressed(image: np.ndarray, crf: int = CRF) -> np.ndarray:
    """Compress an image with H.264 as a single frame, uint8 [height, width, 3], with even sides."""
    height, width = (side // 2 * 2 for side in image.shape[:2])
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264", rate=1, options={"crf": str(crf), "preset": "veryfast"}
        )
        stream.width, stream.height = width, height
        frame = av.VideoFrame.from_ndarray(image[:height, :width], format="rgb24")
        container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode())
    file.seek(0)
    with av.open(file, "r") as container:
        decoded: np.ndarray = next(container.decode(video=0)).to_ndarray(format="rgb24")
    return decoded
