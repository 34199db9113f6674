"""Turns of the comparison and their statistics. Each turn is a process with the whole GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from deploy.bench.serving.compare import ratios

Json = dict[str, Any]
STAGES = ("step", "encode", "decode", "request")
SAME_WORK = 0.05
"""Maximum relative difference between the sides' FLOPs of a step; each side omits other small
operations."""


class NotTheSame(Exception):
    """The two programs do different amounts of work, so the ratio of their times is meaningless."""


class NotMeasured(Exception):
    """A turn of one side gave no result; the message has the reason."""


@dataclass(frozen=True)
class Sides:
    """Functions that run a turn of Atelier (`ours`) and of diffusers (`theirs`). The latter gets
    Atelier's first result, and its own first result or None."""

    ours: Callable[[], Json]
    theirs: Callable[[Json, Json | None], Json]


@dataclass(frozen=True)
class Compared:
    """Results of alternating turns in order; Atelier may be one turn ahead."""

    model: str
    ours: Sequence[Json]
    theirs: Sequence[Json]

    @property
    def rate(self) -> float:
        """Matrix FLOP/s of the GPU: the larger of the two programs' medians, used for both."""
        sides = [side for side in self._sides if side]
        return float(max(median(turn["matrix_flops"] for turn in side) for side in sides))

    @property
    def mfu(self) -> tuple[float, float | None]:
        """MFU of the denoising loop (Atelier, diffusers), with Atelier's count of a step's
        FLOPs."""
        work = self.ours[0]["step_flops"] * self.ours[0]["batch"]
        ours, theirs = (
            work / median(every(side, "step")) / self.rate if side else None for side in self._sides
        )
        assert ours is not None, "ours comes first"
        return ours, theirs

    @property
    def peaks(self) -> tuple[int | None, int | None]:
        """Peak bytes (Atelier, diffusers); None if not counted by the device's allocator."""
        theirs = self.theirs[0]["peak_bytes"] if self.theirs else None
        ours = self.ours[0]["memory"]
        return (ours["peak_bytes"] if ours["by"] == "device" else None), theirs

    @property
    def _sides(self) -> tuple[Sequence[Json], Sequence[Json]]:
        return self.ours, self.theirs

    def ratios(self, stage: str) -> list[float]:
        """diffusers' time divided by Atelier's, for each pair of turns."""
        return ratios(*([turn["seconds"][stage] for turn in side] for side in self._sides))

    def as_json(self) -> Json:
        return {
            "model": self.model,
            "ratios": {stage: self.ratios(stage) for stage in STAGES},
            "matrix_flops": self.rate,
            "mfu": dict(zip(("ours", "theirs"), self.mfu, strict=True)),
            "peak_bytes": dict(zip(("ours", "theirs"), self.peaks, strict=True)),
            "ours": list(self.ours),
            "theirs": list(self.theirs),
        }


def every(turns: Sequence[Json], stage: str) -> list[float]:
    return [seconds for turn in turns for seconds in turn["seconds"][stage]]


def compared(model: str, sides: Sides, turns: int) -> Iterator[Compared]:
    """Yield all results so far after each turn, so that an interrupt loses little.

    Raises: NotTheSame: the steps differ, with the numbers; NotMeasured.
    """
    ours: list[Json] = []
    theirs: list[Json] = []
    for _ in range(turns):
        ours.append(sides.ours())
        yield Compared(model, tuple(ours), tuple(theirs))
        theirs.append(sides.theirs(ours[0], theirs[0] if theirs else None))
        check_same(ours[0], theirs[0])
        yield Compared(model, tuple(ours), tuple(theirs))


def check_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Check that both sides run the same steps. Raises: NotTheSame."""
    if ours["steps"] != theirs["steps"]:
        raise NotTheSame(f"ours runs {ours['steps']} steps and theirs {theirs['steps']}")
    our_flops, their_flops = ours["step_flops"], theirs["step_flops"]
    if their_flops is not None and abs(their_flops - our_flops) > SAME_WORK * our_flops:
        raise NotTheSame(f"a step is {our_flops:.4g} FLOP here and {their_flops:.4g} there")


def run_atelier(model: str, options: Sequence[str], file: Path) -> Json:
    """Run `atelier bench engine`; returns its result. Raises: NotMeasured."""
    command = [sys.executable, "-m", "atelier", "bench", "engine", "--model", model, *options]
    return turn_of(
        run_turn("ours", [*command, "--json", str(file)], file, stdout=subprocess.DEVNULL)
    )


def first_from(file: Path | None, measure: Callable[[], Json]) -> Callable[[], Json]:
    """Turns of Atelier: the first from a report, if the file exists, and the others measured."""
    reports = [json.loads(file.read_text())] if file is not None and file.is_file() else []
    return lambda: turn_of(reports.pop()) if reports else measure()


def turn_of(report: Mapping[str, Any]) -> Json:
    """Return the result of a report of one model. Raises: NotMeasured: the model was refused."""
    (result,) = report["results"]
    if "refused" in result:
        raise NotMeasured(f"ours: {result['refused']}")
    return {**result, "versions": report["versions"], "machine": report["machine"]}


def run_diffusers(
    folder: Path, options: Sequence[str], file: Path, ours: Json, first: Json | None
) -> Json:
    """Run a turn of diffusers; returns its result. Raises: NotMeasured."""
    side = str(ours["matrix"][0]["side"])
    request_options = [
        "--request",
        json.dumps(ours["request"]),
        "--dtype",
        ours["dtype"],
        "--side",
        side,
    ]
    # Reuse the first turn's choice of attention and its FLOPs.
    reused = ["--count"] if first is None else ["--attention", first["attention"]]
    command = [sys.executable, "-m", "lab.bench.against.diffusers_turn", str(folder), *options]
    return run_turn("theirs", [*command, *request_options, *reused, "--json", str(file)], file)


def run_turn(side: str, command: Sequence[str], file: Path, **how: Any) -> Json:
    """Run a turn; returns the JSON that it wrote. Raises: NotMeasured: it wrote none."""
    file.unlink(missing_ok=True)  # written by an earlier turn
    code = subprocess.run(command, **how).returncode
    if not file.is_file():
        end = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise NotMeasured(f"{side}: {end}; what it said stands above")
    return dict(json.loads(file.read_text()))
