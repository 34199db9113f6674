"""Client side of commands that use a running server: address, key, errors, progress and outputs."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.output_files import path_of
from deploy.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNREACHABLE, UsageError, say

if TYPE_CHECKING:
    from service.client import JobEvent


def show(events: Iterable[JobEvent]) -> None:
    """Show a job's events on standard error until the stream ends."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return _print(events)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("waiting", total=None)
        for event in events:
            progress.update(task, description=_doing(event), **_counts(event))


def _print(events: Iterable[JobEvent]) -> None:
    quarter, doing = -1, ""
    for event in events:
        counts = _counts(event)
        if not counts:
            before, doing = doing, _doing(event)
            if doing != before:
                say(doing)
        elif (now := 4 * counts["completed"] // counts["total"]) > quarter:
            quarter = now
            say(f"step {counts['completed']} of {counts['total']}")


def _doing(event: JobEvent) -> str:
    detail = event.data.get("detail") or {}
    if detail.get("expected_s"):
        return f"{detail['stage']}, about {math.ceil(detail['expected_s'])} s"
    doing = {"queued": "waiting", "progress": "running", "preview": "running"}
    return detail.get("stage") or doing.get(event.name, event.name)


def _counts(event: JobEvent) -> dict[str, Any]:
    """Return the completed and total steps of a progress event; empty before the first step."""
    if not event.data.get("step"):
        return {}
    return {"completed": event.data["step"], "total": event.data["steps"]}


if TYPE_CHECKING:
    from service.client import Client

SERVER = "http://127.0.0.1:8000"


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server's address and API key."""
    parser.add_argument(
        "--server", default=SERVER, metavar="URL", help=f"address of the server (default: {SERVER})"
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="API key (better: $ATELIER_API_KEY, which other users can't see)",
    )


def key_of(args: argparse.Namespace) -> str:
    """Return the API key of the command; empty without a key.

    Raises: UsageError: it has invalid characters.
    """
    from service.settings.settings import KEY_VARIABLE

    key = (args.key or os.environ.get(KEY_VARIABLE) or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--key, {KEY_VARIABLE}: it has characters that API keys do not have")
    return key


def call_server(
    args: argparse.Namespace,
    act: Callable[[Client], int],
    interrupted: Callable[[Client], None] = lambda client: None,
) -> int:
    """Run a command against the server; return its exit code.

    Args:
        interrupted: called on Ctrl-C before the command ends.
    """
    from service.client import ApiError, BadAddress, Client, ServiceUnreachable

    try:
        with Client(args.server, key_of(args)) as client:
            try:
                return act(client)
            except KeyboardInterrupt:
                interrupted(client)
                return EXIT_INTERRUPTED
    except BadAddress as error:
        raise UsageError(f"--server: {error}") from None
    except ApiError as problem:
        say(f"atelier: {problem}")
        return EXIT_FAILED
    except ServiceUnreachable as error:
        say(f"atelier: {error}")
        return EXIT_UNREACHABLE


def finish(client: Client, save: Callable[[Mapping[str, Any]], None]) -> int:
    """Follow the client's job to its end, print its warnings, and save its outputs."""
    show(client.follow())
    job = client.job()
    for warning in job.get("warnings", ()):
        say(f"atelier: warning: {warning['field']}: {warning['message']}")
    if job["state"] not in ("succeeded", "paused"):
        say(f"atelier: {reason(job)}")
        return EXIT_FAILED
    save(job)
    if job["state"] == "paused":
        end = job.get("drafts_expire_at") or job["expires_at"]  # absent in earlier versions
        say(f"drafts until {end}; atelier jobs continue {job['id']} --images N[,N…]")
    return 0


def write_outputs(client: Client, job: Mapping[str, Any], output: Path | None) -> None:
    """Write a job's outputs to files.

    Raises: UsageError: a file cannot be written.
    """
    for item in job["outputs"]:
        path = path_of(output, item, len(job["outputs"]))
        data = client.output(item["url"])
        try:
            path.write_bytes(data)
        except OSError as error:
            raise UsageError(
                f"can't write {str(path)!r}: {error.strerror}; the job is kept: "
                f"atelier jobs wait {job['id']} -o FILE"
            ) from None
        print(path)


def reason(job: Mapping[str, Any]) -> str:
    """Return why a job has no outputs."""
    messages = {"canceled": "the job was canceled", "expired": "the job's deadline passed"}
    error = job.get("error") or {}
    return messages.get(job["state"]) or error.get("message") or "the job failed"
