"""Inputs of a VACE request: control video, masks, first and last images, and references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from models.interface.images import open_image
from models.spec.request import RequestError
from models.spec.request_images import listed_paths
from models.wan.request import WanRequest
from models.wan.request_videos import is_present, video_frames
from models.wan.vace_inputs import (
    ControlFrames,
    extended,
    preserved_frame,
    read_frames,
    read_reference,
)

FIRST, LAST = "image", "last_image"
VIDEO, MASK, REFERENCE_IMAGES = "control_video", "mask_video", "reference_images"


def vace_inputs(
    request: WanRequest, images: Mapping[str, bytes], multiple: int
) -> dict[str, np.ndarray]:
    """Return the pixels of a VACE request's images; absent images have no key.

    Keys: control_frames [frames, height, width, 3] and control_masks [frames, height, width], as
    bytes; references [references, height, width, 3] in [-1, 1].

    Args:
        multiple: number of pixels that reference sides are rounded down to a multiple of.

    Raises: RequestError: images that are inconsistent, or cannot be decoded.
    """
    size, inputs = (request.width, request.height), {}
    frames = _given(request, images, size)
    if frames is not None:
        control = frames._asdict()
        inputs = {f"control_{name}": np.ascontiguousarray(array) for name, array in control.items()}
    references = [
        read_reference(open_image(images[name], name), size, multiple, name)
        for name in listed_paths(images, REFERENCE_IMAGES)
    ]
    return {**inputs, "references": np.stack(references)} if references else inputs


def scales_of(values: Sequence[float] | None, hints: int) -> np.ndarray:
    """Return the scale of each VACE hint.

    Raises: RequestError: a number of scales other than one or one per hint.
    """
    scales = (1.0,) if values is None else values
    if len(scales) not in (1, hints):
        message = f"has {len(scales)} numbers; send one, or {hints}: one a hint"
        raise RequestError("conditioning_scale", message)
    return np.broadcast_to(np.asarray(scales, np.float32), hints).copy()


def _given(
    request: WanRequest, images: Mapping[str, bytes], size: tuple[int, int]
) -> ControlFrames | None:
    """Return a control video's frames and masks; None without one. Raises: RequestError."""
    sent = {name: is_present(name, images) for name in (FIRST, LAST, VIDEO, MASK)}
    if sent[MASK] and not sent[VIDEO]:
        raise RequestError(VIDEO, "is needed with mask_video")
    if sent[LAST] and not sent[FIRST]:
        raise RequestError(FIRST, "is needed with last_image")
    if sent[VIDEO]:
        if sent[FIRST]:
            raise RequestError(
                FIRST, "cannot be combined with control_video, which contains its first frame"
            )
        video, masks = (video_frames(images, name) for name in (VIDEO, MASK))
        return extended(read_frames(video, masks, size), request.num_frames)
    if not sent[FIRST]:
        return None
    endpoints = [
        preserved_frame(open_image(images[name], name), size)
        for name in (FIRST, LAST)
        if sent[name]
    ]
    return extended(endpoints[0], request.num_frames, *endpoints[1:])
