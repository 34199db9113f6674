"""Run stages in sequence within a time budget, and collect their results."""

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

from lab.bench.gpu.stages import Stage

Json = dict[str, Any]
ENDED = ("done", "failed", "stopped")
"""States of a stage that had its time; the others begin the next piece."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Budget:
    """Time budget of all stages together, on a monotonic clock."""

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
    """Return the outcomes in order, up to the first stage that the budget's end left out or cut;
    `report` gets each immediately.

    Args:
        before: outcomes of earlier pieces by stage; stages that ended there are skipped.
    """
    outcomes = []
    for stage in stages:
        earlier = before.get(stage.name)
        has_ended = earlier is not None and earlier["state"] in ENDED
        outcomes.append(earlier if has_ended else run(stage, folder, budget, environment))
        report(outcomes[-1])
        if outcomes[-1]["state"] not in ENDED:
            break
    return outcomes


def next_stage(outcomes: Sequence[Json]) -> str | None:
    """Name of the first stage that has not ended; None if all have."""
    return next((item["stage"] for item in outcomes if item["state"] not in ENDED), None)


def run(stage: Stage, folder: Path, budget: Budget, environment: Mapping[str, str]) -> Json:
    """Run a stage; returns its outcome, whose `result` is null if none was written.

    Its state is `done`, `failed`, `stopped` (by its own limit), `cut` (by the end of the budget) or
    `left out` (too little of the budget was left to start it).
    """
    if budget.left_s < stage.min_s:
        left_s = max(0.0, budget.left_s)
        return outcome(stage, "left out", f"{left_s:.0f} s were left, it wants {stage.min_s:.0f}")
    stage.file(folder).unlink(missing_ok=True)  # written by an earlier run
    started = budget.clock()
    log = folder / f"{stage.name}.log"
    limit_s = min(stage.limit_s, budget.left_s)
    state, why = finish(stage.command(folder), log, limit_s, environment)
    if state == "stopped" and limit_s < stage.limit_s:
        state = "cut"
    return outcome(stage, state, why, budget.clock() - started, written(stage.file(folder)))


def finish(
    command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str]
) -> tuple[str, str]:
    """Run a command to its end or its limit with its output in a log; returns its state and reason.

    It has its own session, so that its children end with it and free the card.
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
    """Result of a stage; None if missing or incomplete."""
    try:
        return dict(json.loads(file.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
