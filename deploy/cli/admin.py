"""`atelier admin`: inspect and control a running server with an operator's key."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deploy.cli.jobs import MORE, STATES, add_limit
from deploy.cli.options import Commands, add_reason, without_none
from deploy.cli.remote import add_server, call_server
from deploy.exit_codes import say

if TYPE_CHECKING:
    from service.client import Client

Act = Callable[["Client", argparse.Namespace], int]

PAGE = 100
"""Maximum jobs per response."""
PLURALS = {"model": "models", "pool": "pools"}


def add(commands: Commands) -> None:
    """Add the command `atelier admin` and its options to the parser."""
    admin = commands.add_parser(
        "admin", help="jobs of all tenants, pauses, and the audit log, with an operator's key"
    )
    acts = admin.add_subparsers(required=True, metavar="act")
    _add(acts, "overview", "waiting, running and failed jobs, and pools, as JSON", _overview)
    _add_jobs(acts)
    for name, about in (
        ("cancel", "stop jobs of any tenant"),
        ("requeue", "return running jobs to the queue"),
    ):
        act = _add(acts, name, about, _of_jobs(name), has_reason=True)
        act.add_argument("ids", nargs="+", metavar="ID", help="job id (job_…)")
    delete = _add(acts, "delete", "delete jobs of any tenant, with their outputs", _delete, True)
    delete.add_argument("ids", nargs="+", metavar="ID", help="job id (job_…)")
    for name, about in (
        ("pause", "let a model, a pool or a worker claim no jobs"),
        ("drain", "pause it, and suspend its running jobs"),
        ("resume", "let it claim jobs again"),
    ):
        act = _add(acts, name, about, _pause(name), has_reason=True)
        act.add_argument("kind", choices=PLURALS, help="model or pool (a worker is a pool's)")
        act.add_argument("name", metavar="NAME", help="name of the model, pool or worker")
    for name, about in (
        ("sleep", "free a pool's devices as soon as it is idle"),
        ("wake", "load its weights again before the next job"),
    ):
        act = _add(acts, name, about, _sleep(name), has_reason=True)
        act.add_argument("name", metavar="NAME", help="the pool's name, or a worker's")
    loras = _add(acts, "loras", "list the adapters that a tenant has uploaded", _loras)
    loras.add_argument("tenant", metavar="TENANT", help="owner of the adapters")
    loras.add_argument("--json", action="store_true", help="print JSON, one adapter per line")
    evict = _add(acts, "evict", "delete an adapter that a tenant has uploaded", _evict, True)
    evict.add_argument("tenant", metavar="TENANT", help="owner of the adapter")
    evict.add_argument("name", metavar="NAME", help="the adapter's name")
    audit = _add(acts, "audit", "list the actions of operators on a day", _audit)
    audit.add_argument("--day", metavar="YYYY-MM-DD", help="day (UTC; default: today)")
    audit.add_argument("--json", action="store_true", help="print JSON, one action per line")


def _add(
    acts: Commands, name: str, about: str, act: Act, has_reason: bool = False
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = acts.add_parser(name, help=about)
    parser.set_defaults(run=lambda args: call_server(args, lambda client: act(client, args)))
    if has_reason:
        add_reason(parser)
    add_server(parser)
    return parser


def _add_jobs(acts: Commands) -> None:
    jobs = _add(acts, "jobs", "list jobs of all tenants, newest first", _jobs)
    jobs.add_argument("--state", choices=STATES, help="only jobs in this state")
    jobs.add_argument("--tenant", metavar="NAME", help="only jobs of this tenant")
    jobs.add_argument("--model", metavar="NAME", help="only jobs of this model, or alias")
    jobs.add_argument(
        "--served-by", metavar="NAME", help="only jobs that this version of an alias serves"
    )
    add_limit(jobs)
    jobs.add_argument("--json", action="store_true", help="print JSON, one job per line")


def _overview(client: Client, args: argparse.Namespace) -> int:
    print(json.dumps(client.admin("GET", "overview"), indent=2))
    return 0


def _jobs(client: Client, args: argparse.Namespace) -> int:
    names = ("state", "tenant", "model", "served_by")
    wanted = without_none(**{name: getattr(args, name) for name in names})
    left, after = args.limit, None
    while left > 0:
        query = wanted | without_none(after=after, limit=min(left, PAGE))
        page = client.admin("GET", "jobs", params=query)
        for job in page["data"]:
            print(json.dumps(job) if args.json else _line(job))
        left, after = left - len(page["data"]), page["next"]
        if after is None:
            return 0
    say(MORE)
    return 0


def _line(job: Mapping[str, Any]) -> str:
    steps = f"{job['step']}/{job['steps']}"
    why = f"  {job['error']['code']}" if job["error"] else ""
    where = f"{job['tenant']}  {job['served_by']}  {job['pool'] or '-'}"
    return f"{job['id']}  {job['state']:<9}  {steps:>9}  {where}  {job['created_at']}{why}"


def _of_jobs(act: str) -> Act:
    def run(client: Client, args: argparse.Namespace) -> int:
        for job_id in args.ids:
            path = f"jobs/{quote(job_id, safe='')}/{act}"
            job = client.admin("POST", path, json={"reason": args.reason})
            say(f"{job_id} is {job['state']}")
        return 0

    return run


def _delete(client: Client, args: argparse.Namespace) -> int:
    for job_id in args.ids:
        path = f"jobs/{quote(job_id, safe='')}"
        client.admin("DELETE", path, params={"reason": args.reason})
        say(f"deleted {job_id}")
    return 0


def _pause(act: str) -> Act:
    def run(client: Client, args: argparse.Namespace) -> int:
        body: dict[str, Any] = {"reason": args.reason}
        if act == "drain":
            body["drain"] = True
        verb = "resume" if act == "resume" else "pause"
        path = f"{PLURALS[args.kind]}/{quote(args.name, safe='')}/{verb}"
        answer = client.admin("POST", path, json=body)
        if answer.get("warning"):  # earlier servers omit it
            say(f"atelier: warning: {answer['warning']}")
        for row in answer["data"]:
            drained = ", drained" if row["drains"] else ""
            why = f": {row['reason']}" if row["reason"] else ""
            print(
                f"{row['kind']} {row['name']} is paused{drained} by {row['by']} since"
                f" {row['at']}{why}"
            )
        return 0

    return run


def _sleep(act: str) -> Act:
    def run(client: Client, args: argparse.Namespace) -> int:
        path = f"pools/{quote(args.name, safe='')}/{act}"
        for row in client.admin("POST", path, json={"reason": args.reason})["data"]:
            why = f": {row['reason']}" if row["reason"] else ""
            print(f"{row['name']} was put to sleep by {row['by']} at {row['at']}{why}")
        return 0

    return run


def _loras(client: Client, args: argparse.Namespace) -> int:
    for row in client.admin("GET", "loras", params={"tenant": args.tenant})["data"]:
        why = f"  {row['error']}" if row["error"] else ""
        line = f"{row['name']}  {row['model']}  {row['bytes']} bytes  {row['digest']}{why}"
        print(json.dumps(row) if args.json else line)
    return 0


def _evict(client: Client, args: argparse.Namespace) -> int:
    path = f"loras/{quote(args.tenant, safe='')}/{quote(args.name, safe='')}"
    client.admin("DELETE", path, params={"reason": args.reason})
    say(f"evicted {args.name} of {args.tenant}")
    return 0


def _audit(client: Client, args: argparse.Namespace) -> int:
    for row in client.admin("GET", "audit", params=without_none(day=args.day))["data"]:
        who = f"{row['name'] or '-'}  {row['address'] or '-'}"
        why = f": {row['reason']}" if row["reason"] else ""
        line = f"{row['at']}  {row['outcome']:<6}  {who}  {row['act']}  {row['target']}{why}"
        print(json.dumps(row) if args.json else line)
    return 0
