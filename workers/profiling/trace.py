"""Reader of a JAX profiler's recording: the operations of each device, with times.

It runs as a separate process (`python -m workers.profiling.trace FOLDER STEPS`) and prints the
report as JSON. A long recording takes seconds of Python, which would block a worker.
"""

from __future__ import annotations

import json
import resource
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from workers.engine.trace_marks import NO_WORK, STEP
from workers.profiling.breakdown import Interval, ProfiledOp, Recording, kind_of, report

HOST = "/host:CPU"
TPU_OPS = ("XLA Ops", "Async XLA Ops")
MODULES = "XLA Modules"
STREAM = "Stream"
"""Prefix of a GPU's kernel lines; its other lines are derived from them."""


MEMORY_BYTES = 4 << 30
"""Memory limit of this process, which shares the machine with its worker."""


def find(folder: Path, ending: str) -> Path:
    """Return the profile recording's file with that extension. Raises: FileNotFoundError."""
    for path in sorted(folder.rglob(f"*{ending}")):
        return path
    raise FileNotFoundError(f"the profiler wrote no {ending}")


def read(path: Path) -> Recording:
    """Read a profile recording.

    Args:
        path: path of an `.xplane.pb`.
    """
    devices: defaultdict[str, list[ProfiledOp]] = defaultdict(list)
    marks: dict[str, list[Interval]] = {STEP: [], NO_WORK: []}
    for plane in ProfileData.from_file(str(path)).planes:
        if plane.name == HOST:
            _read_host(plane, devices, marks)
        elif plane.name.startswith("/device:"):
            devices[plane.name] += _device_ops(plane)
    with_ops = {name: ops for name, ops in devices.items() if ops}
    return Recording(with_ops, [end for _, end in marks[STEP]], marks[NO_WORK])


def _read_host(
    plane: Any, devices: dict[str, list[ProfiledOp]], marks: dict[str, list[Interval]]
) -> None:
    """Collect the step loop's marks of a profile, and the operations of CPU devices."""
    for line in plane.lines:
        for event in line.events:
            name = event.name
            if name in marks:
                marks[name].append(_span(event))
            elif event.duration_ns and not name.startswith("end: "):
                stats = dict(event.stats)
                if "device_ordinal" in stats and "hlo_op" in stats:
                    device = f"cpu:{stats['device_ordinal']}"
                    devices[device].append(_op(str(stats["hlo_op"]), event, stats))


def _device_ops(plane: Any) -> Iterator[ProfiledOp]:
    """Yield a profile's GPU kernels by stream, or TPU operations by program."""
    programs = ProgramRuns(line for line in plane.lines if line.name == MODULES)
    for line in plane.lines:
        if line.name in TPU_OPS or line.name.startswith(STREAM):
            for event in line.events:
                stats = dict(event.stats)
                stats.setdefault("hlo_module", programs.at(event.start_ns))
                yield _op(event.name, event, stats)


class ProgramRuns:
    """Lookup of the program that a device ran, for operations that do not name it."""

    def __init__(self, lines: Iterable[Any]) -> None:
        runs = sorted((e.start_ns, e.end_ns, e.name) for line in lines for e in line.events)
        self._starts = [start for start, _, _ in runs]
        self._runs = runs

    def at(self, ns: float) -> str | None:
        """Return the program that ran at that time, or None."""
        number = bisect_right(self._starts, ns) - 1
        if number < 0 or ns >= self._runs[number][1]:
            return None
        return str(self._runs[number][2])


def _op(name: str, event: Any, stats: dict[str, Any]) -> ProfiledOp:
    program = stats.get("hlo_module")
    category = str(stats.get("hlo_category", ""))
    kind = kind_of(name, None if program is None else str(program), category)
    return ProfiledOp(name.split(" = ")[0].lstrip("%"), kind, *_span(event))


def _span(event: Any) -> Interval:
    return event.start_ns / 1e9, event.end_ns / 1e9


def main(folder: str, max_steps: str) -> None:
    """Print the report of a profile recording; limits the memory of this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    result = report(read(find(Path(folder), ".xplane.pb")), int(max_steps))
    print(json.dumps(result and asdict(result) | {"share": result.communication_share}))


if __name__ == "__main__":
    main(*sys.argv[1:])
