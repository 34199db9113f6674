"""Turns, and what they add up to. Each is a process of its own and has the whole card."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Json = dict[str, Any]
STAGES = ("step", "encode", "decode", "request")
SAME_WORK = 0.05
"""By how much of themselves two counts of one step's FLOPs may differ: each side leaves out other
small things."""


class NotTheSame(Exception):
    """The two sides do not do the same work, so their ratio says nothing."""


class NotMeasured(Exception):
    """A turn of one side gave no result; says why."""


@dataclass(frozen=True)
class Sides:
    """One turn of each, given what the other side's first turn has told (None: nothing yet)."""

    ours: Callable[[], Json]
    theirs: Callable[[Json, Json | None], Json]


@dataclass(frozen=True)
class Compared:
    """Turns in the order in which they ran, ours and theirs in turn: ours may be one ahead."""

    model: str
    ours: Sequence[Json]
    theirs: Sequence[Json]

    @property
    def rate(self) -> float:
        """Of the card: the better of what the two sides measured, for both."""
        sides = [side for side in self._sides if side]
        return float(max(median(one["matrix_flops"] for one in side) for side in sides))

    @property
    def mfu(self) -> tuple[float, float | None]:
        """Of the denoising loop, by our count of a step's work: ours, theirs."""
        work = self.ours[0]["step_flops"] * self.ours[0]["batch"]
        ours, theirs = (
            work / median(every(side, "step")) / self.rate if side else None for side in self._sides
        )
        assert ours is not None, "ours comes first"
        return ours, theirs

    @property
    def peaks(self) -> tuple[int | None, int | None]:
        """Bytes; None: nobody counted them as the other side did."""
        theirs = self.theirs[0]["peak_bytes"] if self.theirs else None
        ours = self.ours[0]["memory"]
        return (ours["peak_bytes"] if ours["by"] == "device" else None), theirs

    @property
    def _sides(self) -> tuple[Sequence[Json], Sequence[Json]]:
        return self.ours, self.theirs

    def ratios(self, stage: str) -> list[float]:
        """Of each pair of turns: how many times as long theirs takes."""
        pairs = zip(self.ours, self.theirs, strict=False)
        return [
            median(theirs["seconds"][stage]) / median(ours["seconds"][stage])
            for ours, theirs in pairs
        ]

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
    """After each turn all that there is by then, so that an end in between loses little.

    Raises: NotTheSame: their step is not ours, says the numbers; NotMeasured.
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
    """Raises: NotTheSame."""
    if ours["steps"] != theirs["steps"]:
        raise NotTheSame(f"ours runs {ours['steps']} steps and theirs {theirs['steps']}")
    mine, other = ours["step_flops"], theirs["step_flops"]
    if other is not None and abs(other - mine) > SAME_WORK * mine:
        raise NotTheSame(f"a step is {mine:.4g} FLOP here and {other:.4g} there")


def run_ours(model: str, options: Sequence[str], file: Path) -> Json:
    """Raises: NotMeasured."""
    command = [sys.executable, "-m", "atelier", "bench", "engine", "--model", model, *options]
    report = told("ours", [*command, "--json", str(file)], file, stdout=subprocess.DEVNULL)
    (result,) = report["results"]
    if "refused" in result:
        raise NotMeasured(f"ours: {result['refused']}")
    return {**result, "versions": report["versions"], "machine": report["machine"]}


def run_theirs(
    folder: Path, options: Sequence[str], file: Path, ours: Json, first: Json | None
) -> Json:
    """Raises: NotMeasured."""
    side = str(ours["matrix"][0]["side"])
    given = ["--request", json.dumps(ours["request"]), "--dtype", ours["dtype"], "--side", side]
    # What the first turn has found out need not be found out again.
    known = ["--count"] if first is None else ["--attention", first["attention"]]
    command = [sys.executable, "-m", "tests.bench.against.theirs", str(folder), *options]
    return told("theirs", [*command, *given, *known, "--json", str(file)], file)


def told(side: str, command: Sequence[str], file: Path, **how: Any) -> Json:
    """What a turn has written. Raises: NotMeasured: nothing."""
    file.unlink(missing_ok=True)  # an earlier turn's
    code = subprocess.run(command, **how).returncode
    if not file.is_file():
        end = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise NotMeasured(f"{side}: {end}; what it said stands above")
    return dict(json.loads(file.read_text()))
