"""Verification of outputs: request and verdict."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.model.job import MadeBy
from service.schemas import examples
from service.schemas.examples import schema_example
from service.schemas.request_parts import Body, Name

Verdict = Literal["identical", "different", "unknown", "pending"]
PENDING: Verdict = "pending"
"""Verdict of a verification that has not ended."""


class VerifyRequest(Body):
    """Output of a job to verify. To verify a file, send it as the body instead."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.VERIFY))

    job: Name
    """Id of one of the tenant's jobs."""
    output: Annotated[int, Field(ge=0)] = 0
    """`index` of its output."""


class Digests(BaseModel):
    """SHA-256 of corresponding data of both files."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    file: str
    """Digest of the file to verify."""
    drawn: str
    """Digest of the file generated for comparison."""


class Verification(BaseModel):
    """Verdict on a file: whether generating it again from its recipe gives the same pixels."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=schema_example(examples.VERIFICATION)
    )

    object: Literal["verification"] = "verification"
    """Kind of this object."""
    verdict: Verdict
    """`identical`: bit for bit. `different`: the fields below quantify it. `unknown`: not
    verifiable, for the reason in `message`. `pending`: still generating; repeat the request with
    the same Idempotency-Key."""
    message: str
    """Message for people: the verdict with its figures or reason."""
    job: str | None = None
    """Id of the job that generates the file again; null if the verdict needed none."""
    sha256: Digests | None = None
    """SHA-256 of both files; null if nothing was generated."""
    pixels_sha256: Digests | None = None
    """SHA-256 of the pixels in both files; null if they were not compared."""
    max_difference: int | None = None
    """Maximum difference of a subpixel, in levels of 255; null if the pixels were not compared or
    the sizes differ."""
    differing_share: float | None = None
    """Share of pixels that differ, over all frames."""
    psnr_db: float | None = None
    """PSNR in dB over all frames; null also if they are equal."""
    differs_at_step: int | None = None
    """First denoising step, from 1, after which the latents differ; null if they are equal after
    each step, or unknown."""
    compared_steps: int | None = None
    """Number of denoising steps whose latents were compared, if pixels differ; null if a file does
    not contain their digests."""
    tolerance_db: float | None = None
    """PSNR expected despite the different rounding of another chip, layout or version; null if
    equal pixels are expected."""
    made_by: MadeBy | None = None
    """Provenance of the file; null if unknown, such as for an uploaded file."""
    drawn_by: MadeBy | None = None
    """Provenance of the file generated for comparison."""
