"""Snapshots of unfinished images, for another pool to go on with: to bytes and back.

Only what steps change is kept. What they leave as it is (embeddings, an image's conditions) is
encoded again.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from models.interface.pipeline import Fields
from models.nn.layers.step_cache import KEPT
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT, FIELDS
from workers.engine.array_framing import BadMessage, Message, packed, received
from workers.programs.batch_sizes import BatchSizes

VERSION = 2
"""Grows when leaves of a row mean something else, or an older reader would misread a newer file."""
KIND = "atelier-snapshot"
CACHE = f"['{KEPT}']"
"""Prefix of the names of a step cache's leaves."""


class UnfitSnapshot(Exception):
    """Error of a snapshot that is of another image or unreadable: the image begins anew."""


@dataclass(frozen=True)
class RowSnapshot:
    """Progress of one image, on the host."""

    done: int
    """Steps."""
    device_seconds: float
    leaves: Mapping[str, np.ndarray]
    """Leaves of its row that steps change, by name."""


@dataclass(frozen=True)
class Origin:
    """Owner of a state: the same model must go on with the same request, by the same steps."""

    fingerprint: str
    """Fingerprint of the model."""
    request: str
    """Digest of the image's own request."""
    batching: str
    """Name of the batching, by `BatchSizes.label`: half an image by one program and half by another
    is neither's."""

    @classmethod
    def of(cls, fingerprint: str, fields: Fields, batching: BatchSizes) -> Origin:
        """Return the origin of a request's snapshots.

        Args:
            fields: one image's resolved request, its seed too.
        """
        text = json.dumps(dict(fields), sort_keys=True)
        return cls(fingerprint, hashlib.sha256(text.encode()).hexdigest(), batching.label)

    def as_json(self) -> dict[str, Any]:
        """Return the origin as a snapshot's file has it."""
        return {"version": VERSION, **asdict(self)}


def with_levers(spec: ModelSpec, fields: Fields) -> Fields:
    """Return the request with its preset's levers in place of its name, and how sizes share steps.

    Of the same name there may be another preset by the time that the image goes on, and half an
    image of each would be neither; so with steps of padded tokens and of a size's own.
    """
    if extra := spec.sizes.token_buckets:
        fields = {**fields, "token_buckets": extra}
    preset = spec.qualities.get(fields.get("quality") or EXACT)
    if preset is None:
        return fields
    levers = preset.model_dump(mode="json", include={*FIELDS})
    if preset.progressive is None:  # as before there was that one
        del levers["progressive"]
    return {**fields, "quality": levers}


def to_bytes(snapshot: RowSnapshot, origin: Origin) -> bytes:
    """A head of JSON, the arrays as they lie in memory, and a checksum."""
    progress = {"done": snapshot.done, "device_seconds": snapshot.device_seconds}
    data = packed(Message(KIND, origin.as_json() | progress, snapshot.leaves))
    return data + _checksum(data)


def from_bytes(file: bytes, origin: Origin) -> RowSnapshot:
    """Return the snapshot of a file.

    Raises: UnfitSnapshot: says why.
    """
    data, checksum = file[: -hashlib.sha256().digest_size], file[-hashlib.sha256().digest_size :]
    if checksum != _checksum(data):
        raise UnfitSnapshot("the file is damaged")
    try:
        stream = io.BytesIO(data)
        message = received(lambda size: bytearray(stream.read(size)))
    except (BadMessage, ValueError, struct.error) as error:
        raise UnfitSnapshot(f"the file cannot be read: {error}") from error
    wanted = {"kind": KIND} | origin.as_json()
    found = {"kind": message.kind} | dict(message.fields)
    for name, value in wanted.items():
        if found.get(name) != value:
            raise UnfitSnapshot(f"{name} is {found.get(name)!r}, not {value!r}")
    return RowSnapshot(int(found["done"]), float(found["device_seconds"]), message.arrays)


def needed(changes: frozenset[str], exact: bool) -> frozenset[str]:
    """Return which of the leaves that steps change a snapshot needs.

    A step cache is as large as the network is wide; without one the next step runs whole, and the
    image is another one by a little.

    Args:
        exact: whether the rest has to be the same to the bit.
    """
    return changes if exact else frozenset(name for name in changes if not name.startswith(CACHE))


def check_fit(
    snapshot: RowSnapshot, row: Mapping[str, Any], changes: frozenset[str], steps: int
) -> None:
    """Check a snapshot against the row that it goes on in.

    Raises: UnfitSnapshot: the image cannot go on from there.

    Args:
        row: its row's leaves by name, for their shapes and types.
        changes: names of those that are needed.
        steps: that it has in all.
    """
    if not 0 < snapshot.done <= steps:
        raise UnfitSnapshot(f"{snapshot.done} steps are done of {steps}")
    found = {name: (leaf.shape, leaf.dtype) for name, leaf in snapshot.leaves.items()}
    wanted = {name: (row[name].shape, row[name].dtype) for name in changes}
    if found != wanted:
        raise UnfitSnapshot(f"the row has {wanted} and what was kept has {found}")


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
