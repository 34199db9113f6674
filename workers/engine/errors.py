"""Reasons why an image could not be made, in the terms of the job that asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from models.interface.finite import IMAGE, SOUND
from models.interface.pipeline import RequestError
from service.jobs.model.job import JobError
from service.jobs.storage.errors import StoreError
from workers.engine.snapshot import UnfitSnapshot

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""Spelling of XLA, on every platform."""
NON_FINITE = "non_finite"


class GenerationFailed(Exception):
    """Failure of one image; its neighbours are unharmed."""

    def __init__(self, error: JobError) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error = error


class EngineDied(RuntimeError):
    """Death of the engine: nothing can be launched any more, and the process should be replaced."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error says that a device has no memory left."""
    return isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error)


def non_finite(step: int, steps: int) -> GenerationFailed:
    """NaN or infinity in the latents after `step` of `steps`."""
    message = (
        f"the image broke down at step {step} of {steps}: its latents are no longer finite"
        " numbers. Try another seed, a lower guidance, or a model loaded in float32."
    )
    return GenerationFailed(JobError(code=NON_FINITE, message=message))


STAGES = {
    ("decode", IMAGE): "the VAE's decoder",
    ("decode", SOUND): "the decoder of its sound",
    ("preview", IMAGE): "the decoder of previews",
}
"""Names of what has made a part of an output, by program."""


def not_finite(stage: str) -> GenerationFailed:
    """NaN or infinity in what a stage behind the steps has made of finite latents."""
    message = (
        f"the image broke down in {stage}, which gave numbers that are not finite: its weights are"
        " damaged, or the model is loaded in a dtype that is too narrow for it. Its operator may"
        " load it in bfloat16 or float32 (models.*.dtype)."
    )
    return GenerationFailed(JobError(code=NON_FINITE, message=message))


def generation_failed(error: Exception, doing: str) -> GenerationFailed:
    """Convert an error that ends one image for the client; `doing` is what was going on.

    The error itself is its cause.
    """
    failure = GenerationFailed(_job_error(error, doing))
    failure.__cause__ = error
    return failure


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn errors inside into the failure of one image, but for those that say more than that.

    Raises: GenerationFailed; EngineDied, StoreError and UnfitSnapshot as they are.
    """
    try:
        yield
    except (EngineDied, GenerationFailed, StoreError, UnfitSnapshot):
        raise
    except Exception as error:
        raise generation_failed(error, doing) from error


def _job_error(error: Exception, doing: str) -> JobError:
    if isinstance(error, RequestError):
        return JobError(code="invalid_request", message=str(error))
    if is_out_of_memory(error):
        message = (
            f"the device ran out of memory {doing}."
            " Ask for a smaller width and height, or for fewer frames,"
            " or serve the model on a larger device."
        )
        return JobError(code="out_of_memory", message=message)
    message = (
        f"{type(error).__name__} {doing}. The request may be sent again;"
        " if it fails again, the pool's log has the whole error."
    )
    return JobError(code="internal", message=message)
