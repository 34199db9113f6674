"""`atelier jobs`: list, show, continue, cancel and wait for jobs of a running server."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.cli.options import Commands, count, without_none
from deploy.cli.output_files import format_of
from deploy.cli.remote import add_server, call_server, finish, write_outputs
from deploy.exit_codes import EXIT_FAILED, say

if TYPE_CHECKING:
    from service.client import Client

STATES = ("queued", "running", "succeeded", "paused", "failed", "canceled", "expired")
PAGE = 100
"""Maximum jobs per response."""
MORE = "there may be more jobs: --limit N lists so many, --all lists all"


def add(commands: Commands) -> None:
    """Add the command `atelier jobs` and its options to the parser."""
    jobs = commands.add_parser("jobs", help="list, show, cancel and wait for jobs on a server")
    acts = jobs.add_subparsers(required=True, metavar="act")
    _add_list(acts)
    shown = _add_one(acts, "show", "all fields of a job, as JSON", _show)
    canceled = _add_one(acts, "cancel", "stop jobs within one denoising step", _cancel, nargs="+")
    waited = _add_one(acts, "wait", "follow a job to its end; 0 if it succeeded, else 1", _wait)
    waited.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the job's outputs (as generate does)",
    )
    _add_continue(acts)
    for act in (shown, canceled, waited):
        add_server(act)


def _add_list(acts: Commands) -> None:
    listed = acts.add_parser("list", help="list jobs, newest first")
    listed.add_argument("--state", choices=STATES, help="only jobs in this state")
    listed.add_argument("--model", metavar="NAME", help="only jobs of this model")
    listed.add_argument(
        "--metadata",
        metavar="NAME[=TEXT]",
        help="only jobs with this metadata",
    )
    listed.add_argument(
        "--created-after", metavar="TIME", help="only jobs created after it (2026-01-31T12:00:00Z)"
    )
    listed.add_argument("--created-before", metavar="TIME", help="only jobs created before it")
    add_limit(listed)
    listed.add_argument("--json", action="store_true", help="print JSON, one job per line")
    add_server(listed)
    listed.set_defaults(run=lambda args: call_server(args, lambda client: _list(client, args)))


def _add_continue(acts: Commands) -> None:
    going = _add_one(acts, "continue", "finish images of a paused job (see --audition)", _continue)
    going.add_argument(
        "--images",
        type=_numbers,
        metavar="N[,N…]",
        help="numbers of the images, from 0 (default: all)",
    )
    going.add_argument("--prompt", help="another prompt for the remaining steps, in a new branch")
    going.add_argument("--steps", type=int, help="more steps in total, in a new branch")
    going.add_argument("--seed", type=int, help="another seed for later noise, in a new branch")
    going.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write, or folder (as generate)"
    )
    add_server(going)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _continue(client: Client, args: argparse.Namespace) -> int:
    output = {"format": format_of(args.output)} if args.output else None
    changed = {"num_inference_steps": args.steps, "prompt": args.prompt, "seed": args.seed}
    client.continue_job(args.id, without_none(images=args.images, output=output, **changed))
    return finish(client, lambda job: write_outputs(client, job, args.output))


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit the number of listed jobs."""
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--limit", type=count, default=20, metavar="N", help="maximum number of jobs (default: 20)"
    )
    limit.add_argument(
        "--all", dest="limit", action="store_const", const=math.inf, help="list all jobs"
    )


def _add_one(
    acts: Commands,
    name: str,
    about: str,
    act: Callable[[Client, argparse.Namespace], int],
    **options: Any,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = acts.add_parser(name, help=about)
    parser.add_argument("id", metavar="ID", help="job id (job_…)", **options)
    parser.set_defaults(run=lambda args: call_server(args, lambda client: act(client, args)))
    return parser


def _list(client: Client, args: argparse.Namespace) -> int:
    left, after, wanted = args.limit, None, _filters(args)
    while left > 0:
        page = client.jobs(**wanted, **without_none(after=after, limit=min(left, PAGE)))
        for job in page["data"]:
            print(json.dumps(job) if args.json else _line(job))
        if not page["has_more"]:
            return 0
        left, after = left - len(page["data"]), page["next"]
    say(MORE)
    return 0


def _filters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the query parameters that select jobs, from the options of `atelier jobs`."""
    name, has_value, value = (args.metadata or "").partition("=")
    return without_none(
        state=args.state,
        model=args.model,
        metadata_key=name or None,
        metadata_value=value if has_value else None,
        created_after=args.created_after,
        created_before=args.created_before,
    )


def _line(job: Mapping[str, Any]) -> str:
    steps = f"{job['progress']['step']}/{job['progress']['steps']}"
    return f"{job['id']}  {job['state']:<9}  {steps:>9}  {job['model']}  {job['created_at']}"


def _show(client: Client, args: argparse.Namespace) -> int:
    client.job_id = args.id
    print(json.dumps(client.job(), indent=2, ensure_ascii=False))
    return 0


def _cancel(client: Client, args: argparse.Namespace) -> int:
    """Cancel jobs by their ids; report those that have already ended."""
    code = 0
    for client.job_id in args.id:
        state = client.cancel()["state"]
        if state != "canceled":
            code = EXIT_FAILED
        say(f"{client.job_id} {'is' if state == 'canceled' else 'had'} {state}")
    return code


def _wait(client: Client, args: argparse.Namespace) -> int:
    if args.output:
        format_of(args.output)  # rejects an unwritable path early

    def save(job: Mapping[str, Any]) -> None:
        if args.output:
            write_outputs(client, job, args.output)

    client.job_id = args.id
    return finish(client, save)
