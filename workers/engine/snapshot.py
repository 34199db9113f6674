"""File format of snapshots: serialize unfinished images, for another worker to resume.

Only leaves that steps change are stored. Constant leaves (embeddings, conditioning) are encoded
again.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from models.interface.pipeline import Fields
from models.nn.layers.step_cache import CACHE_KEY
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EXACT, FIELDS
from workers.engine.array_framing import BadMessage, Message, packed, received
from workers.programs.batch_sizes import BatchSizes

VERSION = 2
"""Version of the snapshot format. Increment it if leaves of a row change their meaning, or if an
older reader would misread a newer file."""
KIND = "atelier-snapshot"
CACHE = f"['{CACHE_KEY}']"
"""Name prefix of a step cache's leaves in a row."""


class UnfitSnapshot(Exception):
    """Error of a snapshot that is unreadable or of another image; the image starts over."""


@dataclass(frozen=True)
class RowSnapshot:
    """Progress of one image, copied to host memory."""

    done: int
    """Number of steps already done."""
    device_seconds: float
    leaves: Mapping[str, np.ndarray]
    """Leaves of the row that steps change, by name."""
    digests: tuple[int, ...] = ()
    """Digest of the latents after each of these steps; empty in files of an earlier version."""

    def at_step(self, step: int | None) -> RowSnapshot:
        """Return a copy for a schedule in which `step` steps are done. None: the same schedule."""
        return self if step is None else replace(self, done=step, digests=())


@dataclass(frozen=True)
class Origin:
    """Identity of a snapshot: the model, request and batching that a resumed image must share."""

    fingerprint: str
    """Fingerprint of the model's checkpoint."""
    request: str
    """SHA-256 digest of the image's request."""
    batching: str
    """`BatchSizes.label` of the batching: an image computed half by each of two programs equals
    neither's result."""

    @classmethod
    def of(cls, fingerprint: str, fields: Fields, batching: BatchSizes) -> Origin:
        """Return the origin of a request's snapshots.

        Args:
            fields: one image's resolved request, including its seed.
        """
        text = json.dumps(dict(fields), sort_keys=True)
        return cls(fingerprint, hashlib.sha256(text.encode()).hexdigest(), batching.label)

    def as_json(self) -> dict[str, Any]:
        """Return the origin as stored in a snapshot file."""
        return {"version": VERSION, **asdict(self)}


def with_optimizations(spec: ModelSpec, fields: Fields) -> Fields:
    """Return the request with its preset's name replaced by the preset's optimizations.

    The preset may be redefined before the image resumes, and half an image of each would equal
    neither. `token_buckets` is added because padded steps differ, too.
    """
    if extra := spec.sizes.token_buckets:
        fields = {**fields, "token_buckets": extra}
    preset = spec.qualities.get(fields.get("quality") or EXACT)
    if preset is None:
        return fields
    optimizations = preset.model_dump(mode="json", include={*FIELDS})
    if preset.progressive is None:  # same digest as before this field existed
        del optimizations["progressive"]
    return {**fields, "quality": optimizations}


def to_bytes(snapshot: RowSnapshot, origin: Origin) -> bytes:
    """Serialize a snapshot: JSON header, raw arrays, and a checksum."""
    progress = {
        "done": snapshot.done,
        "device_seconds": snapshot.device_seconds,
        "digests": snapshot.digests,
    }
    data = packed(Message(KIND, origin.as_json() | progress, snapshot.leaves))
    return data + _checksum(data)


def from_bytes(file: bytes, origin: Origin) -> RowSnapshot:
    """Parse and verify a snapshot file.

    Raises: UnfitSnapshot: with the reason.
    """
    data, checksum = file[: -hashlib.sha256().digest_size], file[-hashlib.sha256().digest_size :]
    if checksum != _checksum(data):
        raise UnfitSnapshot("the file is damaged")
    try:
        stream = io.BytesIO(data)
        message = received(lambda size: bytearray(stream.read(size)))
    except (BadMessage, ValueError, struct.error) as error:
        raise UnfitSnapshot(f"the file cannot be read: {error}") from error
    expected = {"kind": KIND} | origin.as_json()
    actual = {"kind": message.kind} | dict(message.fields)
    for name, value in expected.items():
        if actual.get(name) != value:
            raise UnfitSnapshot(f"{name} is {actual.get(name)!r}, not {value!r}")
    digests = tuple(actual.get("digests", ()))
    done, seconds = int(actual["done"]), float(actual["device_seconds"])
    return RowSnapshot(done, seconds, message.arrays, digests)


def needed(changes: frozenset[str], exact: bool) -> frozenset[str]:
    """Return the names of changing leaves that a row's snapshot must contain.

    A step cache is as large as the network is wide. Without it the next step runs in full, and the
    image differs slightly.

    Args:
        exact: whether the remaining steps must reproduce the same bits.
    """
    return changes if exact else frozenset(name for name in changes if not name.startswith(CACHE))


def check_fit(
    snapshot: RowSnapshot, row: Mapping[str, Any], changes: frozenset[str], steps: int
) -> None:
    """Verify that a snapshot fits the row that resumes it.

    Raises: UnfitSnapshot: the image cannot resume from it.

    Args:
        row: the row's leaves by name, for their shapes and types.
        changes: names of the required leaves.
        steps: total steps of the row.
    """
    if not 0 < snapshot.done <= steps:
        raise UnfitSnapshot(f"{snapshot.done} steps are done of {steps}")
    actual = {name: (leaf.shape, leaf.dtype) for name, leaf in snapshot.leaves.items()}
    expected = {name: (row[name].shape, row[name].dtype) for name in changes}
    if actual != expected:
        raise UnfitSnapshot(f"the row has {expected}, and the snapshot has {actual}")


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
