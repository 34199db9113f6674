"""Failures of one image, converted to the error of its job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from models.interface.finite import IMAGE, SOUND
from models.spec.request import RequestError
from service.jobs.model.job import JobError
from service.jobs.storage.errors import StoreError
from workers.engine.snapshot import UnfitSnapshot

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""XLA's status code for exhausted memory, on every platform."""
NON_FINITE = "non_finite"


class GenerationFailed(Exception):
    """Failure of one image; other images of the batch are unaffected."""

    def __init__(self, error: JobError) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error = error


class EngineFailed(RuntimeError):
    """Failure of the whole engine: it can launch no program. The process should be replaced."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error reports exhausted memory on a device or the host."""
    return isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error)


def non_finite(step: int, steps: int) -> GenerationFailed:
    """Return the error for NaN or infinity in the latents after `step` of `steps`."""
    message = (
        f"the image failed at step {step} of {steps}: its latents are not finite"
        " numbers. Try another seed, a lower guidance, or a model loaded in float32."
    )
    return GenerationFailed(JobError(code=NON_FINITE, message=message))


DECODERS = {
    ("decode", IMAGE): "the VAE's decoder",
    ("decode", SOUND): "the decoder of its sound",
    ("preview", IMAGE): "the decoder of previews",
}
"""Names of the decoders by program and part of the output, for messages."""


def not_finite(stage: str) -> GenerationFailed:
    """Return the error for NaN or infinity in a stage's output, computed from finite latents."""
    message = (
        f"the image failed in {stage}, whose output is not finite: its weights are"
        " damaged, or the model is loaded in a dtype that is too narrow for it. Its operator may"
        " load it in bfloat16 or float32 (models.*.dtype)."
    )
    return GenerationFailed(JobError(code=NON_FINITE, message=message))


def generation_failed(error: Exception, doing: str) -> GenerationFailed:
    """Convert an error that ends one image to a client-facing failure.

    `doing` describes the activity, for the message. The error becomes the failure's cause.
    """
    failure = GenerationFailed(_job_error(error, doing))
    failure.__cause__ = error
    return failure


@contextmanager
def generation_errors(doing: str) -> Iterator[None]:
    """Convert errors inside the context to the failure of one image.

    Raises: GenerationFailed; EngineFailed, StoreError and UnfitSnapshot unchanged.
    """
    try:
        yield
    except (EngineFailed, GenerationFailed, StoreError, UnfitSnapshot):
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
