"""First and last images of a request: validation against a checkpoint, and preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.interface.images import open_image, read_image
from models.interface.pipeline import RequestError
from models.vision.preprocess import ClipPreprocessor
from models.wan.checkpoint import WanCheckpoint
from models.wan.request import WanRequest

FIRST, LAST = "image", "last_image"


@dataclass(frozen=True)
class ConditioningImages:
    """Validates and preprocesses first and last images for one checkpoint."""

    checkpoint: WanCheckpoint
    preprocessor: ClipPreprocessor | None
    """Preprocessor for the image encoder; None without an image encoder."""

    def inputs(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        """Return the pixels of a request's images.

        Keys are image and last_image [height, width, 3] in [-1, 1], resized as in diffusers, and
        clip_pixels [images, side, side, 3]. Absent images have no key.

        Raises: RequestError: an image is missing, unsupported, or cannot be decoded.
        """
        self._check(request, images)
        names = [name for name in (FIRST, LAST) if name in images]
        size = request.width, request.height
        inputs = {name: read_image(images[name], *size, field=name) for name in names}
        if names and self.preprocessor is not None:
            pixels = [self.preprocessor(open_image(images[name], name)) for name in names]
            inputs["clip_pixels"] = np.stack(pixels)
        return inputs

    def _check(self, request: WanRequest, images: Mapping[str, bytes]) -> None:
        checkpoint = self.checkpoint
        if FIRST in images and "image-to-video" not in checkpoint.tasks:
            raise RequestError(
                FIRST, "is not supported: this model generates videos from text only"
            )
        if FIRST not in images and "text-to-video" not in checkpoint.tasks:
            raise RequestError(FIRST, "is needed: this model generates videos from a first frame")
        if LAST in images:
            self._check_last(request, images)
        elif checkpoint.needs_last_image:
            raise RequestError(
                LAST, "is needed: this model generates videos from a first and a last frame"
            )

    def _check_last(self, request: WanRequest, images: Mapping[str, bytes]) -> None:
        if FIRST not in images:
            raise RequestError(FIRST, "is needed with last_image")
        if not self.checkpoint.takes_last_image:
            raise RequestError(
                LAST, "is not supported: this model generates videos from a first frame only"
            )
        if request.num_frames < 2:
            raise RequestError("num_frames", "must be more than 1 with last_image")
