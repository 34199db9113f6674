"""Stored compiler schedules of the guarded cases: docs/performance/schedule.json.

Compiling the cases takes minutes, lowering them seconds. A schedule depends only on program, flags,
chips and compiler, so equal ones are not compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from lab.tpu.schedule import Step

RECORD = Path(__file__).parents[2] / "docs" / "performance" / "schedule.json"
COMPILER = "libtpu"


class Stale(ValueError):
    """Error if the record was made from other programs."""


@dataclass(frozen=True)
class Record:
    """Schedules of compiled cases, with the package versions."""

    versions: Mapping[str, str | None]
    programs: Mapping[str, str]
    """Fingerprints by case: `lab.tpu.cases.fingerprint`."""
    steps: Mapping[str, Step]
    """Steps by case, without their individual operations."""

    def holds(self, name: str, program: str, versions: Mapping[str, str | None]) -> bool:
        """Return whether the record is valid for this program and compiler."""
        same = self.versions[COMPILER] == versions[COMPILER]
        return same and self.programs.get(name) == program


NOTHING = Record({COMPILER: None}, {}, {})
_JSON = TypeAdapter(Record)


def read(path: Path = RECORD) -> Record:
    """Return the record; empty if the file does not exist."""
    return _JSON.validate_json(path.read_bytes()) if path.exists() else NOTHING


def write(record: Record, path: Path = RECORD) -> None:
    """Write the record of compiler schedules to its file."""
    path.write_bytes(_JSON.dump_json(record, indent=1) + b"\n")


def with_steps(
    old: Record,
    steps: Sequence[Step],
    programs: Mapping[str, str],
    versions: Mapping[str, str | None],
) -> Record:
    """Return a record of newly compiled steps, and of earlier ones that are still valid.

    Args:
        programs: current fingerprints by case.
        versions: current package versions.
    """
    new = {step.name: _without_operations(step) for step in steps}
    valid = {
        name: step
        for name, step in old.steps.items()
        if name in programs and old.holds(name, programs[name], versions)
    }
    merged = valid | new
    return Record(versions, {name: programs[name] for name in merged}, merged)


def _without_operations(step: Step) -> Step:
    return replace(step, parts=[replace(part, operations=[]) for part in step.parts])


def current(
    record: Record,
    programs: Mapping[str, str],
    versions: Mapping[str, str | None],
    compile: Callable[[str], Step],
) -> dict[str, Step]:
    """Return each case's schedule by the installed compiler.

    Valid schedules are read from the record. If other versions lower the sources differently, the
    case is compiled.

    Raises: Stale: the versions equal the record's, but the programs do not.
    """
    valid = {
        name: record.steps[name]
        for name, program in programs.items()
        if record.holds(name, program, versions)
    }
    others = [name for name in programs if name not in valid]
    if others and versions == record.versions:
        raise Stale(
            f"the programs of {', '.join(others)} are no longer those of schedule.json and speed.md"
            " in docs/performance. Compile them again, which takes minutes: "
            f'make -C lab tpu-schedule ARGS="{" ".join(others)} --write"'
        )
    return valid | {name: compile(name) for name in others}
