"""Conversion between a job and its Redis hash: one hash field per job field, structures as JSON.

The hash also has fields that only the scripts use (place, fence, …). Readers ignore unknown fields,
so a newer minor version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from service.jobs.model.errors import WireError
from service.jobs.model.job import WIRE_VERSION, FieldWarning, Job, Output, Snapshot

STRUCTURES = frozenset(
    (
        "request",
        "loras",
        "outputs",
        "usage",
        "error",
        "warnings",
        "metadata",
        "snapshots",
        "deaths",
        "detail",
        "second_pass",
        "seeds",
        "drafted",
    )
)
"""Fields of a job that are stored as JSON."""

_OUTPUTS = TypeAdapter(list[Output])
_WARNINGS = TypeAdapter(list[FieldWarning])
_SNAPSHOTS = TypeAdapter(list[Snapshot])
_EMPTY = Job(id="", model="", bucket="").model_dump(mode="json", exclude={"request"})


def to_hash(job: Job) -> dict[str, str]:
    """Convert a job to a hash of all fields with a value; empty structures are omitted."""
    fields = job.model_dump(mode="json", exclude_none=True)
    for name in STRUCTURES & _EMPTY.keys() & fields.keys():
        if fields[name] == _EMPTY[name]:
            del fields[name]
    return {name: _text(name, value) for name, value in fields.items()}


def _text(name: str, value: Any) -> str:
    return json.dumps(value) if name in STRUCTURES else str(value)


def from_hash(fields: Mapping[str, str]) -> Job:
    """Convert a Redis hash to a job.

    Raises: WireError: the job has a newer wire version.
    """
    version = int(fields["version"])
    if version > WIRE_VERSION:
        raise WireError(fields["id"], version, WIRE_VERSION)
    return Job.model_validate(
        {name: json.loads(v) if name in STRUCTURES else v for name, v in fields.items()}
    )


def parse(text: str) -> dict[str, str]:
    """Parse a job's hash that a script returns as a JSON list of alternating names and values."""
    flat = json.loads(text)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def outputs_json(outputs: Sequence[Output]) -> str:
    """Serialize outputs for a job's hash."""
    return _OUTPUTS.dump_json(list(outputs)).decode()


def warnings_json(warnings: Sequence[FieldWarning]) -> str:
    """Serialize warnings for a job's hash."""
    return _WARNINGS.dump_json(list(warnings)).decode()


def snapshots_json(snapshots: Sequence[Snapshot]) -> str:
    """Serialize snapshots for a job's hash without nulls, since scripts read them."""
    return _SNAPSHOTS.dump_json(list(snapshots), exclude_none=True).decode()
