"""Passes of one image: one, or with hires fix two, each of which is a row in its own bucket."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from models.interface.image_start import latents_file
from models.interface.pipeline import Fields, Pipeline, Prepared
from models.spec.hires import FIELD as HIRES
from models.spec.hires import LATENT, passes
from service.jobs.model.job import Stage
from workers.engine.row import Row
from workers.programs.compilation import Compilation

OnStage = Callable[[Stage, float | None], None]
"""Callback in the event loop: the stage of an image and, of compiling, the expected seconds; None:
unknown."""


@dataclass(frozen=True)
class Told:
    """Callbacks of one image, and its tenant. See `Engine.generate`."""

    on_step: Callable[[Row], None]
    on_stage: OnStage
    on_compile: Callable[[Compilation], None]
    tenant: str


@dataclass(frozen=True)
class ImagePass:
    """One pass over an image, as a request of its own."""

    fields: Fields
    images: Mapping[str, bytes]
    prepared: Prepared
    before: int = 0
    """Steps of the pass before it."""
    after: int = 0
    """Steps of the pass behind it."""
    after_work: float = 0.0
    """Those steps as a multiple of one of this pass, by their pixels."""
    device_seconds: float = 0.0
    """Device-seconds of the image before it."""
    earlier_s: float = 0.0
    """Device-seconds of the image in earlier claims."""

    def from_image(self, pipeline: Pipeline, image: bytes, row: Row, around_s: float) -> ImagePass:
        """Return a second pass that begins with this image.

        Args:
            row: the first pass's, done.
            around_s: device-seconds between the passes, beside the row's.
        """
        images = {**self.images, "image": image}
        return replace(
            self,
            images=images,
            prepared=pipeline.prepare(self.fields, images),
            device_seconds=row.device_seconds + around_s,
            earlier_s=row.earlier_s,
        )


def prepared_passes(
    pipeline: Pipeline, fields: Fields, images: Mapping[str, bytes]
) -> tuple[ImagePass, ImagePass | None]:
    """Prepare both passes of a request, the second with an image that is not known yet.

    None: there is one pass alone.

    Raises: RequestError: one of them cannot be served.
    """
    first, second = passes(fields, pipeline.spec)
    one = ImagePass(first, images, pipeline.prepare(first, images))
    if second is None:
        return one, None
    images = {**images, "image": unknown(fields[HIRES]["upscaler"])}
    other = ImagePass(second, images, pipeline.prepare(second, images), len(one.prepared.steps))
    steps, ratio = len(other.prepared.steps), _pixels(other) / _pixels(one)
    return replace(one, after=steps, after_work=steps * ratio), other


def unknown(upscaler: str) -> bytes:
    """Return the image of a second pass before the first one is drawn: latents, or a pixel.

    Of the kind that it will be: an image draws noise for the VAE's posterior, and latents don't.
    """
    if upscaler == LATENT:
        return latents_file(np.zeros((1, 1, 1), np.float32))
    return image_file(np.zeros((1, 1, 3), np.uint8))


def image_file(pixels: np.ndarray) -> bytes:
    """Return an image as a file without loss, quickly."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()


def _pixels(one: ImagePass) -> int:
    return one.prepared.width * one.prepared.height
