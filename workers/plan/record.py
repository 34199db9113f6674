"""Record of what the TPU's compiler said of each case: docs/performance/schedule.json.

Compiling the cases takes minutes, lowering them seconds. A schedule is the same as long as program,
flags, chips and compiler are, so that what was recorded of these need not be compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from workers.plan.schedule import Step

RECORD = Path(__file__).parents[2] / "docs" / "performance" / "schedule.json"
COMPILER = "libtpu"


class Stale(ValueError):
    """The record is of other programs."""


@dataclass(frozen=True)
class Record:
    """Record of what was compiled, with which versions."""

    versions: Mapping[str, str | None]
    programs: Mapping[str, str]
    """Fingerprints by case: `workers.plan.cases.fingerprint`."""
    steps: Mapping[str, Step]
    """Steps by case, without their single operations."""

    def holds(self, name: str, program: str, versions: Mapping[str, str | None]) -> bool:
        """Return whether compiling would say the same."""
        same = self.versions[COMPILER] == versions[COMPILER]
        return same and self.programs.get(name) == program


NOTHING = Record({COMPILER: None}, {}, {})
_JSON = TypeAdapter(Record)


def read(path: Path = RECORD) -> Record:
    """Return the record; an empty one where there is no file."""
    return _JSON.validate_json(path.read_bytes()) if path.exists() else NOTHING


def write(record: Record, path: Path = RECORD) -> None:
    """Write the record."""
    path.write_bytes(_JSON.dump_json(record, indent=1) + b"\n")


def with_steps(
    old: Record,
    steps: Sequence[Step],
    programs: Mapping[str, str],
    versions: Mapping[str, str | None],
) -> Record:
    """Steps that were compiled just now, and those of before that would come out the same.

    Args:
        programs: by case, as they are now.
        versions: that all is compiled by now.
    """
    new = {step.name: _without_operations(step) for step in steps}
    held = {
        name: step
        for name, step in old.steps.items()
        if name in programs and old.holds(name, programs[name], versions)
    }
    found = held | new
    return Record(versions, {name: programs[name] for name in found}, found)


def _without_operations(step: Step) -> Step:
    return replace(step, parts=[replace(part, operations=[]) for part in step.parts])


def current(
    record: Record,
    programs: Mapping[str, str],
    versions: Mapping[str, str | None],
    compile: Callable[[str], Step],
) -> dict[str, Step]:
    """Return each case as the compiler that is installed has it.

    From the record, or compiled where other versions make something else of the same sources.

    Raises: Stale: the versions are the record's, the programs are not.
    """
    held = {
        name: record.steps[name]
        for name, program in programs.items()
        if record.holds(name, program, versions)
    }
    others = [name for name in programs if name not in held]
    if others and versions == record.versions:
        raise Stale(
            f"the programs of {', '.join(others)} are no longer those of schedule.json and speed.md"
            " in docs/performance. Compile them again, which takes minutes: "
            f'make tpu-schedule ARGS="{" ".join(others)} --write"'
        )
    return held | {name: compile(name) for name in others}
