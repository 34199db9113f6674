"""Passes of one image: one or two, each of which is a row in the bucket of its own size.

Two are of hires fix, or of a preset whose first steps are smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from models.interface.pipeline import Fields, Pipeline, Prepared
from models.spec.passes import passes
from service.jobs.model.job import Stage
from workers.engine.row import Row
from workers.engine.stage_timing import Timed, stage
from workers.programs import second_pass, warmup
from workers.programs.compilation import Compilation

IDLE = "has no effect"
"""Beginning of a warning's message: the request could do without the field."""
OnStage = Callable[[Stage, float | None], None]
"""Callback in the event loop: the stage of an image and, of compiling, the expected seconds; None:
unknown."""


@dataclass(frozen=True)
class Told:
    """Callbacks of one image, and its tenant. See `Engine.generate`."""

    on_step: Callable[[Row], None] = lambda row: None
    on_stage: OnStage = lambda stage, expected_s: None
    on_compile: Callable[[Compilation], None] = lambda compilation: None
    tenant: str = ""
    timed: Timed = stage


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
    begins_with: str = "image"
    """Field of what a second pass begins with: of an image, or of latents that an enlarger of the
    model's own reads, which may come beside the request's image."""
    stop_at: int | None = None
    """Steps after which it stops; None: after the last."""

    def from_image(self, pipeline: Pipeline, image: bytes, row: Row, around_s: float) -> ImagePass:
        """Return a second pass that begins with this image, or these latents.

        Args:
            row: the first pass's, done.
            around_s: device-seconds between the passes, beside the row's.
        """
        images = {**self.images, self.begins_with: image}
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
    images = second_pass.stood_in(fields, pipeline.spec, images)
    before, start = len(one.prepared.steps), second_pass.begins_with(fields, pipeline.spec)
    other = ImagePass(second, images, pipeline.prepare(second, images), before, begins_with=start)
    steps, ratio = len(other.prepared.steps), _pixels(other) / _pixels(one)
    return replace(one, after=steps, after_work=steps * ratio), other


def warm_up_passes(pipeline: Pipeline, fields: Fields) -> list[ImagePass]:
    """Prepare the passes of a warm-up request. Raises: RequestError: as `prepared_passes`."""
    _, images = warmup.stood_in(pipeline, fields)
    return [one for one in prepared_passes(pipeline, fields, images) if one is not None]


def with_warnings_of(first: ImagePass, second: ImagePass | None) -> Prepared:
    """Return the first pass's request with the warnings of both.

    What has no effect is idle in both: a second pass may do without what the first one uses.
    """
    if second is None:
        return first.prepared
    one, other = first.prepared.warnings, second.prepared.warnings
    idle = {warning for warning in (*one, *other) if warning.message.startswith(IDLE)}
    told = dict.fromkeys(said for said in (*one, *other) if said not in idle - ({*one} & {*other}))
    return replace(first.prepared, warnings=tuple(told))


def _pixels(one: ImagePass) -> int:
    return one.prepared.width * one.prepared.height
