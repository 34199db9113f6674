"""Verification of outputs: what is asked, and the verdict."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.model.job import MadeBy
from service.schemas import examples
from service.schemas.examples import shown
from service.schemas.request_parts import Body, Name

Verdict = Literal["identical", "different", "unknown", "pending"]


class VerifyRequest(Body):
    """Output of a job to verify. A file is verified by being the body itself."""

    model_config = ConfigDict(json_schema_extra=shown(examples.VERIFY))

    job: Name
    """Id of one of the tenant's jobs."""
    output: Annotated[int, Field(ge=0)] = 0
    """`index` of its output."""


class Digests(BaseModel):
    """SHA-256 of the same thing of both files."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    file: str
    """Digest of the file to verify."""
    drawn: str
    """Digest of the file that was drawn to verify it."""


class Verification(BaseModel):
    """Verdict on a file: whether its recipe, drawn again, gives its pixels."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=shown(examples.VERIFICATION)
    )

    object: Literal["verification"] = "verification"
    """Kind of this object."""
    verdict: Verdict
    """`identical`: bit for bit. `different`: the figures below say by how much. `unknown`: it
    cannot be told, for the reason in `message`. `pending`: it is still being drawn; ask again with
    the same Idempotency-Key."""
    message: str
    """Message for people: the verdict, its figures or its reason."""
    job: str | None = None
    """Id of the job that draws it again; null: none was needed to say that it cannot be told."""
    sha256: Digests | None = None
    """SHA-256 of both files; null where nothing was drawn."""
    pixels_sha256: Digests | None = None
    """SHA-256 of the pixels in both files; null where they were not compared."""
    max_difference: int | None = None
    """Most levels, of 255, by which a subpixel differs; null where they were not compared, or have
    other sizes."""
    differing_share: float | None = None
    """Share of pixels that differ, over all frames."""
    psnr_db: float | None = None
    """PSNR in dB over all frames; null where they are equal, too."""
    tolerance_db: float | None = None
    """PSNR that another chip, layout or version keeps by rounding otherwise, where one may have;
    null where equal pixels can be expected."""
    made_by: MadeBy | None = None
    """Provenance of the file; null where that is not known, as of a file that was sent."""
    drawn_by: MadeBy | None = None
    """Provenance of the file that was drawn."""
