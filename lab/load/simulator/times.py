"""Times of requests on one slice, by the planner: `python -m lab.load.simulator.times`.

Writes times.json next to this file, which the simulator reads. The planner traces networks of 14
billion parameters, which takes a minute per size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bench.serving.timed_request import shape_of

FILE = Path(__file__).parent / "times.json"
TOPOLOGY = "v6e:2x4"
SLOTS = 8
SHAPES: tuple[Mapping[str, Any], ...] = (
    {"model": "flux-dev", "width": 512, "height": 512},
    {"model": "flux-dev", "width": 1024, "height": 1024},
    {"model": "wan2.1-14b", "width": 832, "height": 480, "num_frames": 81},
    {"model": "wan2.1-14b", "width": 1280, "height": 720, "num_frames": 81},
)


@dataclass(frozen=True)
class Times:
    """Seconds of a shape on a slice that serves nothing else."""

    steps: int
    encode_s: float
    decode_s: float
    step_s: tuple[float, ...]
    """Seconds of a step with one, two, three, … rows."""

    @property
    def alone_s(self) -> float:
        """Seconds of a request alone."""
        return self.encode_s + self.steps * self.step_s[0] + self.decode_s

    def device_s(self, slots: int) -> float:
        """Device-seconds of a request in efficient batches."""
        share_s = min(seconds / rows for rows, seconds in enumerate(self.step_s[:slots], 1))
        return self.encode_s + self.steps * share_s + self.decode_s


def known(file: Path = FILE) -> dict[str, Times]:
    """Return the times by shape, as named by `shape_of`."""
    shapes = json.loads(file.read_text())["shapes"]
    return {name: Times(**row | {"step_s": tuple(row["step_s"])}) for name, row in shapes.items()}


def planned() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each shape with its times from the planner."""
    from workers.plan.make import PlanRequest, search_layouts, sketched
    from workers.slice.topology import Topology

    for shape in SHAPES:
        request = {name: value for name, value in shape.items() if name != "model"}
        arrival = PlanRequest(shape["model"], Topology.parse(TOPOLOGY), request)
        sketch = sketched(arrival)
        layouts_found = search_layouts(arrival, sketch)
        counts = {step_kind: count for step_kind, (_, count) in sketch.steps.items()}
        steps = sum(counts.values())

        def mean_s(estimated: Any, counts: Mapping[str, int] = counts, steps: int = steps) -> float:
            seconds = (
                estimated.passes[step_kind].seconds * count for step_kind, count in counts.items()
            )
            return sum(seconds) / steps

        layouts = [
            (estimated.slots, mean_s(estimated))
            for estimated in (*layouts_found.latency, *layouts_found.throughput)
        ]
        fastest = layouts_found.latency[0]
        yield (
            shape_of(shape),
            {
                "steps": steps,
                "encode_s": round(fastest.passes["encode"].seconds, 6),
                "decode_s": round(fastest.passes["decode"].seconds, 6),
                "step_s": [
                    round(min(math.ceil(rows / slots) * seconds for slots, seconds in layouts), 6)
                    for rows in range(1, SLOTS + 1)
                ],
            },
        )


def main() -> None:
    from workers.plan.report import versions

    document = {"topology": TOPOLOGY, "made_with": versions(), "shapes": dict(planned())}
    FILE.write_text(json.dumps(document, indent=1) + "\n")
    for name, times in known().items():
        print(f"{name}: {times.alone_s:.2f} s alone, {times.device_s(SLOTS):.2f} s in batches")


if __name__ == "__main__":
    main()
