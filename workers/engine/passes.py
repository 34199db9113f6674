"""Denoising passes of one image: one or two, each a row in the bucket of its own size.

Two passes result from hires fix, or from a preset whose first steps are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.spec.passes import passes
from workers.engine.row import Row
from workers.programs import second_pass, warmup

IDLE = "has no effect"
"""Beginning of a warning's message about a field without effect."""


@dataclass(frozen=True)
class ImagePass:
    """One pass over an image, prepared like a separate request."""

    fields: Fields
    images: Mapping[str, bytes]
    prepared: PreparedRow
    before: int = 0
    """Number of steps of the preceding pass."""
    after: int = 0
    """Number of steps of the following pass."""
    after_work: float = 0.0
    """Work of the following pass's steps, as a multiple of one step of this pass, by pixels."""
    device_seconds: float = 0.0
    """Device-seconds of the image before this pass."""
    earlier_s: float = 0.0
    """Device-seconds of the image in earlier claims."""
    digests: tuple[int, ...] = ()
    """Digest of the latents after each step of the preceding pass."""
    begins_with: str = "image"
    """Field for a second pass's input: an image, or latents for the model's own enlarger, in
    addition to the request's image."""
    stop_at: int | None = None
    """Steps after which the pass stops; None: after the last."""

    def from_image(self, pipeline: Pipeline, image: bytes, row: Row, extra_s: float) -> ImagePass:
        """Return this second pass, prepared with the given image or latents as its input.

        Args:
            row: the finished row of the first pass.
            around_s: device-seconds between the passes, in addition to the row's.
        """
        images = {**self.images, self.begins_with: image}
        return replace(
            self,
            images=images,
            prepared=pipeline.prepare(self.fields, images),
            device_seconds=row.device_seconds + extra_s,
            earlier_s=row.earlier_s,
            digests=row.digests,
        )


def prepared_passes(
    pipeline: Pipeline, fields: Fields, images: Mapping[str, bytes]
) -> tuple[ImagePass, ImagePass | None]:
    """Prepare a request's pass or passes, the second with a stand-in image.

    The second is None if the request has one pass only.

    Raises: RequestError: a pass cannot be served.
    """
    first, second = passes(fields, pipeline.spec)
    prepared_first = ImagePass(first, images, pipeline.prepare(first, images))
    if second is None:
        return prepared_first, None
    images = second_pass.with_stand_in(fields, pipeline.spec, images)
    before, start = (
        len(prepared_first.prepared.steps),
        second_pass.begins_with(fields, pipeline.spec),
    )
    prepared_second = ImagePass(
        second, images, pipeline.prepare(second, images), before, begins_with=start
    )
    steps, ratio = (
        len(prepared_second.prepared.steps),
        _pixels(prepared_second) / _pixels(prepared_first),
    )
    return replace(prepared_first, after=steps, after_work=steps * ratio), prepared_second


def warm_up_passes(pipeline: Pipeline, fields: Fields) -> list[ImagePass]:
    """Prepare the passes of a warm-up request. Raises: RequestError: as `prepared_passes`."""
    _, images = warmup.prepare_with_stand_ins(pipeline, fields)
    return [
        image_pass
        for image_pass in prepared_passes(pipeline, fields, images)
        if image_pass is not None
    ]


def with_warnings_of(first: ImagePass, second: ImagePass | None) -> PreparedRow:
    """Return the first pass's request with the merged warnings of both passes.

    A warning that a field has no effect is kept only if both passes have it.
    """
    if second is None:
        return first.prepared
    first_warnings, second_warnings = first.prepared.warnings, second.prepared.warnings
    idle = {
        warning
        for warning in (*first_warnings, *second_warnings)
        if warning.message.startswith(IDLE)
    }
    kept = dict.fromkeys(
        item
        for item in (*first_warnings, *second_warnings)
        if item not in idle - ({*first_warnings} & {*second_warnings})
    )
    return replace(first.prepared, warnings=tuple(kept))


def _pixels(image_pass: ImagePass) -> int:
    return image_pass.prepared.width * image_pass.prepared.height
