"""Images of a request, wherever they lie in it: fields of their own, and members of lists.

A path names one: `image`, `reference_images.0`, `control.1.image`. Videos travel as images do: each
is one file, as `control_video`, or an image a frame, as `control_video.0`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

PICTURE_FIELDS = ("image", "mask_image", "last_image", "control_image")
"""Request fields that hold an image; the store keeps it and the job its key."""
LISTED_IMAGES: Mapping[str, str] = {
    "reference_images": "",
    "control": "image",
    "image_prompts": "image",
}
"""Request fields that hold a list, and the member of an entry that is its image; empty: the entry
itself is."""
VIDEO_FIELDS = ("control_video", "pose_video", "face_video", "background_video", "mask_video")
"""Request fields that hold a video: its file, or a list of its frames."""
IMAGE_FIELDS = frozenset({*PICTURE_FIELDS, *LISTED_IMAGES, *VIDEO_FIELDS})

Replaced = Callable[[str, Any], Any]
"""Function of an image's path and value → what lies there instead."""


def image_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's images by path: files in base64, addresses, or keys in the store."""
    found: dict[str, Any] = {}
    with_images(fields, lambda path, value: found.setdefault(path, value))
    return found


def with_images(fields: Mapping[str, Any], replaced: Replaced) -> dict[str, Any]:
    """Return a request with something else in place of each image."""
    changed = dict(fields)
    for name in PICTURE_FIELDS:
        if fields.get(name) is not None:
            changed[name] = replaced(name, fields[name])
    for name in VIDEO_FIELDS:
        if isinstance(fields.get(name), list):
            changed[name] = list(_entries(name, "", fields[name], replaced))
        elif fields.get(name) is not None:
            changed[name] = replaced(name, fields[name])
    for name, member in LISTED_IMAGES.items():
        if fields.get(name) is not None:
            changed[name] = list(_entries(name, member, fields[name], replaced))
    return changed


def without_images(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without its images; what lies beside one in a list stays."""
    whole = {*PICTURE_FIELDS, *VIDEO_FIELDS}
    kept = {name: value for name, value in fields.items() if name not in whole}
    for name, member in LISTED_IMAGES.items():
        if kept.get(name) is None:
            continue
        if member:
            kept[name] = [
                {key: value for key, value in entry.items() if key != member}
                for entry in kept[name]
            ]
        else:
            del kept[name]
    return kept


def field_of(path: str) -> str:
    """Return the request field that a path begins with."""
    return path.partition(".")[0]


def listed_paths(images: Container[str], field: str) -> list[str]:
    """Return the paths of a list's images, in their order; none: it was not sent.

    Args:
        images: paths of all images of a request.
    """
    paths = (f"{field}.{index}" for index in itertools.count())
    return list(itertools.takewhile(images.__contains__, paths))


def _entries(name: str, member: str, entries: Any, replaced: Replaced) -> Iterator[Any]:
    for index, entry in enumerate(entries):
        path = f"{name}.{index}"
        if not member:
            yield replaced(path, entry)
        elif entry.get(member) is not None:
            yield {**entry, member: replaced(f"{path}.{member}", entry[member])}
        else:
            yield entry
