"""Images of a request to VACE, by path: a control video, its masks, its ends, and references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from models.interface.images import open_image
from models.interface.pipeline import RequestError
from models.spec.request_images import listed_paths
from models.wan.request import WanRequest
from models.wan.sent_videos import is_given, video_frames
from models.wan.vace_inputs import ControlFrames, extended, kept, read_frames, read_reference

FIRST, LAST = "image", "last_image"
VIDEO, MASK, REFERENCE_IMAGES = "control_video", "mask_video", "reference_images"


def vace_inputs(
    request: WanRequest, images: Mapping[str, bytes], multiple: int
) -> dict[str, np.ndarray]:
    """Return the pixels of a request's images; whichever there are.

    Control_frames [frames, height, width, 3] and control_masks [frames, height, width], a byte
    each; references [references, height, width, 3] in [-1, 1].

    Args:
        multiple: of pixels, that a reference's sides are cut down to.

    Raises: RequestError: images that do not go together, or cannot be read.
    """
    size, inputs = (request.width, request.height), {}
    given = _given(request, images, size)
    if given is not None:
        control = given._asdict()
        inputs = {f"control_{name}": np.ascontiguousarray(of) for name, of in control.items()}
    references = [
        read_reference(open_image(images[name], name), size, multiple, name)
        for name in listed_paths(images, REFERENCE_IMAGES)
    ]
    return {**inputs, "references": np.stack(references)} if references else inputs


def scales_of(given: Sequence[float] | None, hints: int) -> np.ndarray:
    """Return the factor of each hint.

    Raises: RequestError: another number of factors than one, or one a hint.
    """
    scales = (1.0,) if given is None else given
    if len(scales) not in (1, hints):
        said = f"has {len(scales)} numbers; send one, or {hints}: one a hint"
        raise RequestError("conditioning_scale", said)
    return np.broadcast_to(np.asarray(scales, np.float32), hints).copy()


def _given(
    request: WanRequest, images: Mapping[str, bytes], size: tuple[int, int]
) -> ControlFrames | None:
    """Return all frames of a control video; None: there is none. Raises: RequestError."""
    sent = {name: is_given(name, images) for name in (FIRST, LAST, VIDEO, MASK)}
    if sent[MASK] and not sent[VIDEO]:
        raise RequestError(VIDEO, "is needed with mask_video")
    if sent[LAST] and not sent[FIRST]:
        raise RequestError(FIRST, "is needed with last_image")
    if sent[VIDEO]:
        if sent[FIRST]:
            raise RequestError(FIRST, "is not taken with control_video, which has it as a frame")
        video, masks = (video_frames(images, name) for name in (VIDEO, MASK))
        return extended(read_frames(video, masks, size), request.num_frames)
    if not sent[FIRST]:
        return None
    ends = [kept(open_image(images[name], name), size) for name in (FIRST, LAST) if sent[name]]
    return extended(ends[0], request.num_frames, *ends[1:])
