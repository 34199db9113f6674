"""A job as a Redis hash, and back: one field a field, structures as JSON.

Fields that only the scripts use (place, fence, …) lie beside them; a reader ignores what it does
not know, so a newer minor version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from service.jobs.model.errors import WireError
from service.jobs.model.job import WIRE_VERSION, Job, Output, Snapshot, Warned

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
_WARNINGS = TypeAdapter(list[Warned])
_SNAPSHOTS = TypeAdapter(list[Snapshot])
_EMPTY = Job(id="", model="", bucket="").model_dump(mode="json", exclude={"request"})


def to_hash(job: Job) -> dict[str, str]:
    """Convert a job to a hash of every field that has a value; empty structures are left out."""
    fields = job.model_dump(mode="json", exclude_none=True)
    for name in STRUCTURES & _EMPTY.keys() & fields.keys():
        if fields[name] == _EMPTY[name]:
            del fields[name]
    return {name: _text(name, value) for name, value in fields.items()}


def _text(name: str, value: Any) -> str:
    return json.dumps(value) if name in STRUCTURES else str(value)


def from_hash(fields: Mapping[str, str]) -> Job:
    """Return the job of a hash.

    Raises: WireError: the job is of a newer wire version.
    """
    version = int(fields["version"])
    if version > WIRE_VERSION:
        raise WireError(fields["id"], version, WIRE_VERSION)
    return Job.model_validate(
        {name: json.loads(v) if name in STRUCTURES else v for name, v in fields.items()}
    )


def parse(text: str) -> dict[str, str]:
    """Return the hash that a script gives.

    It comes as a JSON list of name, value, name, value, …
    """
    flat = json.loads(text)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def outputs_json(outputs: Sequence[Output]) -> str:
    """Return outputs as JSON, as a job's hash has them."""
    return _OUTPUTS.dump_json(list(outputs)).decode()


def warnings_json(warnings: Sequence[Warned]) -> str:
    """Return warnings as JSON, as a job's hash has them."""
    return _WARNINGS.dump_json(list(warnings)).decode()


def snapshots_json(snapshots: Sequence[Snapshot]) -> str:
    """Serialize snapshots without nulls: a script reads them."""
    return _SNAPSHOTS.dump_json(list(snapshots), exclude_none=True).decode()
