"""Run stages one after the other within a budget, and keep what each has written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.gpu.stages import Stage

Json = dict[str, Any]
GRACE_S = 5.0
"""Between asking a stage to end and ending it."""


@dataclass(frozen=True)
class Budget:
    """Seconds for all stages together, on a clock that does not go back."""

    ends_at: float
    clock: Callable[[], float] = time.monotonic

    @property
    def left_s(self) -> float:
        return self.ends_at - self.clock()


def run_all(
    stages: Sequence[Stage],
    folder: Path,
    budget: Budget,
    environment: Mapping[str, str],
    before: Mapping[str, Json],
    report: Callable[[Json], None],
) -> list[Json]:
    """One outcome a stage, in their order; `report` gets each as it comes.

    Args:
        before: outcomes of an earlier run by stage; what was done then is not repeated.
    """
    outcomes = []
    for stage in stages:
        known = before.get(stage.name)
        is_done = known is not None and known["state"] == "done"
        outcomes.append(known if is_done else run(stage, folder, budget, environment))
        report(outcomes[-1])
    return outcomes


def run(stage: Stage, folder: Path, budget: Budget, environment: Mapping[str, str]) -> Json:
    """How a stage ended, and what it found: `result` is null where it wrote nothing."""
    if budget.left_s < stage.least_s:
        left = max(0.0, budget.left_s)
        return outcome(stage, "left out", f"{left:.0f} s were left, it wants {stage.least_s:.0f}")
    stage.file(folder).unlink(missing_ok=True)  # an earlier run's
    started = budget.clock()
    log = folder / f"{stage.name}.log"
    ended = finish(stage.command(folder), log, min(stage.limit_s, budget.left_s), environment)
    return outcome(stage, *ended, budget.clock() - started, written(stage.file(folder)))


def finish(
    command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str]
) -> tuple[str, str]:
    """Run a command to its end or its limit, its words in a log → how it ended, and why.

    It is a session of its own, so that its children end with it: the next stage needs the card.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=dict(environment), start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            return "stopped", f"after {limit_s:.0f} s; {log.name} has what it said"
        except BaseException:
            end(process)
            raise
    if code == 0:
        return "done", ""
    return "failed", f"exit code {code}: {last_line(log)}"


def end(process: subprocess.Popen[bytes]) -> None:
    """End a stage with all its children."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, wanted)
            process.wait(GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def outcome(
    stage: Stage, state: str, why: str, seconds: float = 0.0, result: Json | None = None
) -> Json:
    return {
        "stage": stage.name, "state": state, "why": why, "seconds": round(seconds, 1),
        "result": result,
    }  # fmt: skip


def written(file: Path) -> Json | None:
    """The stage's result; None: there is none, or it was ended while it wrote."""
    try:
        return dict(json.loads(file.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
