"""A request's images: which of them a checkpoint takes, and what the networks see of them."""

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
    """Handling of first and last images by one checkpoint."""

    checkpoint: WanCheckpoint
    preprocessor: ClipPreprocessor | None
    """Preprocessor of the image encoder; None: the checkpoint has none."""

    def inputs(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        """Return the pixels of a request's images.

        Image and last_image [height, width, 3] in [-1, 1], resized as in diffusers, and clip_pixels
        [images, side, side, 3]; whichever there are.

        Raises: RequestError: an image is missing, not taken, or no image.
        """
        self._check(request, images)
        given = [name for name in (FIRST, LAST) if name in images]
        size = request.width, request.height
        inputs = {name: read_image(images[name], *size, field=name) for name in given}
        if given and self.preprocessor is not None:
            seen = [self.preprocessor(open_image(images[name], name)) for name in given]
            inputs["clip_pixels"] = np.stack(seen)
        return inputs

    def _check(self, request: WanRequest, images: Mapping[str, bytes]) -> None:
        made = self.checkpoint
        if FIRST in images and "image-to-video" not in made.tasks:
            raise RequestError(FIRST, "is not taken: this model makes videos from text alone")
        if FIRST not in images and "text-to-video" not in made.tasks:
            raise RequestError(FIRST, "is needed: this model makes videos from a first frame")
        if LAST in images:
            self._check_last(request, images)
        elif made.needs_last_image:
            raise RequestError(LAST, "is needed: this model goes from a first frame to a last one")

    def _check_last(self, request: WanRequest, images: Mapping[str, bytes]) -> None:
        if FIRST not in images:
            raise RequestError(FIRST, "is needed with last_image")
        if not self.checkpoint.takes_last_image:
            raise RequestError(LAST, "is not taken: this model goes from a first frame alone")
        if request.num_frames < 2:
            raise RequestError("num_frames", "must be more than 1 with last_image")
