"""`atelier profile`: request a profile of a running worker's steps, and print its report.

The request goes through Redis to a worker on any machine. Recordings are fetched from the store.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deploy.local.embedded_redis import reached
from service.jobs.profiles import ProfileRequest
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings

TAKEN_S = 15.0
"""Time for a live worker to accept the request."""
POLL_S = 0.2

PARTS = (
    ("compute", "compute_s", ""),
    ("communication", "communication_s", "between devices, with nothing to compute meanwhile"),
    ("other programs", "other_s", "encoding, decoding, previews of other images"),
    ("waiting", "waiting_s", "for the host"),
    ("no work", "no_work_s", "nothing was there to step"),
)


class Refused(Exception):
    """Error of a profile that failed; states why, and what to do."""


def profile(
    settings: Settings, pool: str, request: ProfileRequest, output: Path | None, *, as_json: bool
) -> None:
    """Print where the time of a pool's steps went.

    Args:
        pool: name of a pool in the settings, or of one of its workers.
        output: folder for the recording, in TensorBoard's layout.

    Raises: Refused. ConfigError: Redis is unreachable.
    """
    with ExitStack() as stack:
        redis = settings.redis
        if redis.url is None:
            url = stack.enter_context(reached(settings.state_dir))
            redis = redis.model_copy(update={"url": url})
        report = asyncio.run(
            _profile(settings.model_copy(update={"redis": redis}), pool, request, output)
        )
    print(json.dumps(report, indent=2) if as_json else as_text(report))


async def _profile(
    settings: Settings, pool: str, request: ProfileRequest, output: Path | None
) -> dict[str, Any]:
    queue = await Queue.open(settings)
    try:
        taken_by = await _first_accepting(queue, await _named(queue, pool), request)
        answer = await _answer(queue, taken_by, request)
        if output is not None:
            await _fetch(Store(settings.store_url), answer["files"], output)
    finally:
        await queue.close()
    return dict(answer["report"])


async def _named(queue: Queue, name: str) -> list[str]:
    """Return the running workers of that pool or worker name. Raises: Refused: none."""
    running = await _running(queue)
    matches = [pool for pool in running if name in (pool, pool.rpartition("-")[0])]
    if not matches:
        hint = f"there is {', '.join(running)}" if running else "no pool is running"
        raise Refused(f"no pool {name!r} is running here; {hint}")
    return matches


async def _running(queue: Queue) -> list[str]:
    return sorted(pool for status in (await queue.models()).values() for pool in status.pools)


async def _first_accepting(queue: Queue, pools: list[str], request: ProfileRequest) -> str:
    """Return the first worker that accepts a profile request. Raises: Refused: none does."""
    reasons = []
    for pool in pools:
        busy_s = await queue.request_profile(pool, request)
        if busy_s is not None:
            again = f"try again in {busy_s:.0f} s at most"
            reasons.append(f"{pool} is being profiled already; {again}")
            continue
        if await _wait_for_state(queue, pool, request, ("taken",), TAKEN_S):
            return pool
        await queue.drop_profile(pool, request)
        reasons.append(f"{pool} does not respond; it has exited, or hangs")
    raise Refused("\n".join(reasons))


async def _answer(queue: Queue, pool: str, request: ProfileRequest) -> dict[str, Any]:
    """Wait for the profile that a worker records, and return its answer. Raises: Refused."""
    answer = None
    try:
        answer = await _wait_for_state(
            queue, pool, request, ("done", "idle", "failed"), request.expires_s
        )
    finally:
        if answer is None:
            await queue.drop_profile(pool, request)
    return _checked(answer, pool, request)


async def _wait_for_state(
    queue: Queue, pool: str, request: ProfileRequest, states: tuple[str, ...], seconds: float
) -> dict[str, Any] | None:
    """Wait until the state of a worker's profile is one of these, or a later one.

    Returns None after the timeout, or if the worker has exited.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        answer = await queue.profile_answer(request)
        if answer and (answer["state"] in states or "taken" in states):
            return answer
        if pool not in await _running(queue):
            return None
        await asyncio.sleep(POLL_S)
    return None


def _checked(answer: dict[str, Any] | None, pool: str, request: ProfileRequest) -> dict[str, Any]:
    if answer is None:
        raise Refused(f"{pool} has not reported a recording; it has exited, or hangs")
    if answer["state"] == "idle":
        waited_s = request.wait_s + request.seconds
        raise Refused(
            f"{pool} denoised nothing, or less than a step, in {waited_s:g} s;"
            " send it a job, wait for one with --wait, or increase --seconds"
        )
    if answer["state"] == "failed":
        raise Refused(f"{pool} could not be profiled: {answer['reason']}")
    return answer


async def _fetch(store: Store, files: dict[str, str], folder: Path) -> None:
    """Download the recording's files to the paths that TensorBoard and Perfetto expect."""
    for key in files.values():
        _, request, name = key.split("/")
        path = folder / "plugins" / "profile" / request / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(await store.get(key))
    await store.delete({f"{key.rpartition('/')[0]}/" for key in files.values()})


def as_text(report: dict[str, Any]) -> str:
    """Format a profile's breakdown of step time as text."""
    window_s, steps = report["window_s"], report["steps"]
    head = (
        f"pool {report['pool']}, model {report['model']}, {report['layout']}, {_devices(report)}:"
        f" {steps} steps in {window_s:.3f} s, {1000 * window_s / steps:.2f} ms each"
    )
    lines = [head, "", f"{'a step':<16}{'ms':>10}{'share':>9}"]
    for name, part, meaning in PARTS:
        seconds = report[part]
        line = f"{name:<16}{1000 * seconds / steps:>10.2f}{seconds / window_s:>9.1%}  {meaning}"
        lines.append(line.rstrip())
    if report["hidden_s"]:
        hidden = 1000 * report["hidden_s"] / steps
        lines.append(f"{hidden:.2f} ms more of communication overlapped with compute")
    lines += ["", f"{'operation':<40}{'ms':>10}{'calls':>9}  (a step and device)"]
    for op in report["top"]:
        name = op["name"] if len(op["name"]) < 40 else op["name"][:36] + "..."
        milliseconds, calls = 1000 * op["seconds"] / steps, op["calls"] / steps
        lines.append(f"{name:<40}{milliseconds:>10.3f}{calls:>9.1f}  {op['kind']}")
    return "\n".join(lines)


def _devices(report: dict[str, Any]) -> str:
    """Describe the profiled devices; on a slice of several hosts, those of the leader."""
    seen = report["devices"]
    every = report.get("slice_devices", seen)  # older workers do not report it
    devices_text = f"{seen} of {every}" if seen < every else f"{seen}"
    return f"{devices_text} device{'s' if every > 1 else ''}"
