"""Denoising passes of one image: one or two, each a row in the bucket of its own size.

Two passes result from hires fix, or from a preset whose first steps are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.interface.pipeline import Fields, Pipeline, PreparedRow, Step
from models.interface.solver_step import first_history
from models.spec.passes import passes
from models.spec.request import RequestError
from workers.engine.row import Row
from workers.programs import second_pass, warmup

STEPS = "num_inference_steps"
LEVEL_TOLERANCE = 1e-6
"""Relative and absolute tolerance of equal noise levels: a few float32 roundings."""
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
            extra_s: device-seconds between the passes, in addition to the row's.
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


def position_after(draft: Sequence[Step], done: int, steps: Sequence[Step]) -> int:
    """Return the number of steps of another schedule that lead to a draft's noise level.

    Args:
        draft: steps of the draft's schedule, of which `done` have run.

    Raises: RequestError: the schedule does not have that noise level, or its solver needs the
        history of earlier steps.
    """
    solver = steps[0].program.solver
    if solver is not None and first_history(solver):
        message = (
            "cannot be changed with this scheduler, whose steps depend on earlier ones of the same"
            " schedule; schedulers such as flow_match_euler, euler and ddim do not"
        )
        raise RequestError(STEPS, message)
    level = _noise_level(draft[done])
    for position, step in enumerate(steps):
        if np.isclose(_noise_level(step), level, rtol=LEVEL_TOLERANCE, atol=LEVEL_TOLERANCE):
            return position
    twice = 2 * len(draft)
    message = (
        f"must be a number whose schedule contains the noise level after step {done} of"
        f" {len(draft)}, at which the drafts stopped, often {twice} or {twice - 1}"
    )
    raise RequestError(STEPS, message)


def _noise_level(step: Step) -> float:
    """Return the noise level of a step: the network's time input, or its sigma."""
    return float(step.values["timestep" if "timestep" in step.values else "sigma"])


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
