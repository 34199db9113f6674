"""Input images of a request, in top-level fields and in list entries, addressed by path.

Examples of paths: `image`, `reference_images.0`, `control.1.image`. Videos are handled like images:
a video is one file, `control_video`, or one image per frame, `control_video.0`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

SINGLE_IMAGE_FIELDS = ("image", "mask_image", "last_image", "control_image")
"""Request fields that contain an image. The image is stored, and the job contains its key."""
LISTED_IMAGES: Mapping[str, str] = {
    "reference_images": "",
    "control": "image",
    "image_prompts": "image",
}
"""Request fields that contain a list, and the key of an entry's image; empty: the entry itself is
the image."""
VIDEO_FIELDS = ("control_video", "pose_video", "face_video", "background_video", "mask_video")
"""Request fields that contain a video: a file, or a list of frames."""
IMAGE_FIELDS = frozenset({*SINGLE_IMAGE_FIELDS, *LISTED_IMAGES, *VIDEO_FIELDS})

ReplaceImage = Callable[[str, Any], Any]
"""Function from an image's path and value to its replacement."""


def image_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's images by path: files in base64, URLs, or keys in the store."""
    images: dict[str, Any] = {}
    with_images(fields, lambda path, value: images.setdefault(path, value))
    return images


def with_images(fields: Mapping[str, Any], replaced: ReplaceImage) -> dict[str, Any]:
    """Return a copy of a request with each image replaced."""
    changed = dict(fields)
    for name in SINGLE_IMAGE_FIELDS:
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
    """Return a request without its images; other keys of list entries remain."""
    removed = {*SINGLE_IMAGE_FIELDS, *VIDEO_FIELDS}
    rest = {name: value for name, value in fields.items() if name not in removed}
    for name, member in LISTED_IMAGES.items():
        if rest.get(name) is None:
            continue
        if member:
            rest[name] = [
                {key: value for key, value in entry.items() if key != member}
                for entry in rest[name]
            ]
        else:
            del rest[name]
    return rest


def field_of(path: str) -> str:
    """Return the request field that an image's path begins with."""
    return path.partition(".")[0]


def listed_paths(images: Container[str], field: str) -> list[str]:
    """Return the paths of a list's images, in order; empty: the field is absent.

    Args:
        images: paths of all images of a request.
    """
    paths = (f"{field}.{index}" for index in itertools.count())
    return list(itertools.takewhile(images.__contains__, paths))


def _entries(name: str, member: str, entries: Any, replaced: ReplaceImage) -> Iterator[Any]:
    for index, entry in enumerate(entries):
        path = f"{name}.{index}"
        if not member:
            yield replaced(path, entry)
        elif entry.get(member) is not None:
            yield {**entry, member: replaced(f"{path}.{member}", entry[member])}
        else:
            yield entry
