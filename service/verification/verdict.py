"""Verdicts: a file's pixels against those that were drawn again."""

from __future__ import annotations

from dataclasses import dataclass

from models.spec.image_files import ImageFileError
from models.spec.model_spec import ModelSpec
from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.http.pixel_comparison import Difference, Shown
from service.jobs.model.job import Job, MadeBy, Output
from service.recipes.recipe import generator
from service.schemas.verify import Digests, Verification
from service.verification.subject import CannotTell, Subject

ROUNDING_DB = 40.0
"""PSNR that images keep on another chip, layout or version. In float32 the tests hold layouts to 60
dB; in bfloat16 six images of the demo kept 50.6 to 53.5 dB between one CPU device and `tensor=2`.
Other models have more layers, for which this leaves room."""


@dataclass(frozen=True)
class Drawn:
    """Job that has drawn a file again, or not."""

    job: Job
    spec: ModelSpec
    """Model that it was accepted for."""


def pending(drawn: Drawn) -> Verification:
    """Return the answer while it is being drawn."""
    said = (
        f"it is still being drawn, by the job {drawn.job.id}: ask again with the same"
        " Idempotency-Key"
    )
    return Verification(verdict="pending", message=said, job=drawn.job.id)


def unknown(why: str, job: str | None = None) -> Verification:
    """Return the answer that it cannot be told, and why."""
    return Verification(verdict="unknown", message=f"it cannot be told: {why}", job=job)


async def verdict_of(front: FrontEnd, subject: Subject, drawn: Drawn, hold: Hold) -> Verification:
    """Return the verdict on a file that was drawn again.

    Args:
        hold: counts the bytes that are read.

    Raises: Problem: a file is no longer stored or damaged, or too much is read.
    """
    job = drawn.job
    try:
        output = _output(subject, job)
        return await _compared(front, subject, drawn, output, hold)
    except CannotTell as reason:
        return unknown(str(reason), job.id)
    except ImageFileError as error:
        return unknown(f"the files cannot be compared, one {error}", job.id)


def _output(subject: Subject, job: Job) -> Output:
    """Return the output that stands against the file. Raises: CannotTell."""
    if not job.state.is_done:
        why = f": {job.error.message}" if job.error else ""
        raise CannotTell(f"the job that was to draw it has {job.state}{why}")
    if job.fingerprint != subject.recipe.fingerprint:
        raise CannotTell(f"the weights of {job.model!r} were changed while it was drawn")
    if not 0 <= subject.index < len(job.outputs):
        said = f"it is number {subject.index} of its files, and {len(job.outputs)} were drawn"
        raise CannotTell(said)
    return job.outputs[subject.index]


async def _compared(
    front: FrontEnd, subject: Subject, drawn: Drawn, output: Output, hold: Hold
) -> Verification:
    """Raises: ImageFileError, Problem."""
    said = {
        "job": drawn.job.id,
        "sha256": Digests(file=subject.sha256, drawn=output.sha256),
        "made_by": subject.made_by,
        "drawn_by": output.made_by,
    }
    recorded = output.pixels_sha256
    if subject.sha256 == output.sha256 or (recorded and subject.pixels_sha256 == recorded):
        same = subject.pixels_sha256 or recorded
        digests = same and Digests(file=same, drawn=same)
        whole = subject.sha256 == output.sha256
        return _identical(whole, **said, pixels_sha256=digests)
    hold.add(output.bytes)
    files = [await subject.read(), await front.outputs.read(output)]
    found = await front.images.compared(files, hold.client)
    mine, theirs = found.files
    said["pixels_sha256"] = Digests(file=mine.pixels_sha256, drawn=theirs.pixels_sha256)
    if found.difference is None:
        return Verification(verdict="different", message=_sizes(mine, theirs), **said)
    if not found.difference.pixels:
        return _identical(False, **said)
    return _differing(found.difference, subject, drawn, output, **said)


def _identical(whole: bool, **said: object) -> Verification:
    message = "identical, bit for bit"
    message += ": the whole file" if whole else " in its pixels; the file has other bytes"
    return Verification.model_validate(
        {"verdict": "identical", "message": message, "max_difference": 0, "differing_share": 0.0}
        | said
    )


def _sizes(mine: Shown, theirs: Shown) -> str:
    return f"it differs in size: it has {_size(mine)}, and drawn again {_size(theirs)}"


def _size(shown: Shown) -> str:
    frames = f" in {shown.frames} frames" if shown.frames > 1 else ""
    return f"{shown.width} x {shown.height} pixels{frames}"


def _differing(
    found: Difference, subject: Subject, drawn: Drawn, output: Output, **said: object
) -> Verification:
    """Return the verdict on pixels that differ, and whether another rounding explains it."""
    share = found.pixels / found.of_pixels
    figures = (
        f"{found.pixels} of {found.of_pixels} pixels differ ({100 * share:.2g} %), by at most"
        f" {found.max_levels} of 255 levels; PSNR {found.psnr_db:.1f} dB"
    )
    rounds = _rounds_otherwise(subject.made_by, output.made_by, drawn.spec)
    message, verdict = f"it differs: {figures}", "different"
    if rounds and (found.psnr_db or 0) >= ROUNDING_DB:
        verdict = "unknown"
        message = f"it cannot be told: {figures}, which may be another rounding: {rounds}"
    elif rounds:
        message += f"; {rounds}"
    elif subject.made_by is None:
        message += _of_another_place(subject, found.psnr_db or 0)
    may_round = rounds or subject.made_by is None
    return Verification.model_validate(
        {
            "verdict": verdict,
            "message": message,
            "max_difference": found.max_levels,
            "differing_share": share,
            "psnr_db": found.psnr_db,
            "tolerance_db": ROUNDING_DB if may_round else None,
        }
        | said
    )


def _rounds_otherwise(made: MadeBy | None, drawn: MadeBy | None, spec: ModelSpec) -> str:
    """Return why equal pixels cannot be expected; empty: nothing is known that speaks for it."""
    if spec.batching.mode == "fast":
        return f"{spec.name!r} is served with fast batches, whose images differ with their company"
    if made is None or drawn is None or made.rounds_as(drawn):
        return ""
    before, now = _place(made), _place(drawn)
    if before == now:
        before, now = "one version of the programs", "another"
    return f"it was made on {before} and drawn on {now}, which keeps {ROUNDING_DB:g} dB"


def _place(made: MadeBy) -> str:
    return f"{made.chip} ({made.layout}, JAX {made.jax})"


def _of_another_place(subject: Subject, psnr_db: float) -> str:
    """Return whether what a file's recipe leaves open explains the difference."""
    version = subject.recipe.generator
    other = f" ({version} made it)" if version not in ("", generator()) else ""
    if psnr_db < ROUNDING_DB:
        return f"; more than another chip, layout or version{other}, which keeps {ROUNDING_DB:g} dB"
    return f"; a chip, layout or version{other} that rounds otherwise may do as much"
