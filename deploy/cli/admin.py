"""`atelier admin`: what operators see and do on a running server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deploy.cli.jobs import MORE, STATES, add_limit
from deploy.cli.options import Commands, add_reason, given
from deploy.cli.remote import add_server, ask
from deploy.exit_codes import say

if TYPE_CHECKING:
    from service.client import Client

Act = Callable[["Client", argparse.Namespace], int]

PAGE = 100
"""Jobs of one answer at the most."""
THINGS = {"model": "models", "pool": "pools"}


def add(commands: Commands) -> None:
    """Add `atelier admin`."""
    admin = commands.add_parser(
        "admin", help="jobs of all tenants, pauses, and the audit log, with an operator's key"
    )
    acts = admin.add_subparsers(required=True, metavar="act")
    _add(acts, "overview", "who waits, works, runs and has failed, as JSON", _overview)
    _add_jobs(acts)
    for name, said in (
        ("cancel", "stop jobs of any tenant"),
        ("requeue", "take running jobs from their pools, back into the queue"),
    ):
        act = _add(acts, name, said, _of_jobs(name), has_reason=True)
        act.add_argument("ids", nargs="+", metavar="ID", help="job id (job_…)")
    for name, said in (
        ("pause", "let a model, a pool or a worker claim no jobs"),
        ("drain", "pause it, and put aside what runs"),
        ("resume", "let it claim jobs again"),
    ):
        act = _add(acts, name, said, _pause(name), has_reason=True)
        act.add_argument("kind", choices=THINGS, help="what is meant")
        act.add_argument("name", metavar="NAME", help="its name; of pools a worker's, too")
    for name, said in (
        ("sleep", "free a pool's devices as soon as it has nothing to do"),
        ("wake", "bring its weights back before a job comes"),
    ):
        act = _add(acts, name, said, _sleep(name), has_reason=True)
        act.add_argument("name", metavar="NAME", help="the pool's name, or a worker's")
    evict = _add(acts, "evict", "delete an adapter that a tenant has uploaded", _evict, True)
    evict.add_argument("tenant", metavar="TENANT", help="whose it is")
    evict.add_argument("name", metavar="NAME", help="the adapter's name")
    audit = _add(acts, "audit", "what operators did on a day, one act per line", _audit)
    audit.add_argument("--day", metavar="YYYY-MM-DD", help="day (UTC; default: today)")
    audit.add_argument("--json", action="store_true", help="print JSON, one act per line")


def _add(
    acts: Commands, name: str, said: str, act: Act, has_reason: bool = False
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = acts.add_parser(name, help=said)
    parser.set_defaults(run=lambda args: ask(args, lambda client: act(client, args)))
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
        "--served-by", metavar="NAME", help="only jobs that this version of an alias draws"
    )
    add_limit(jobs)
    jobs.add_argument("--json", action="store_true", help="print JSON, one job per line")


def _overview(client: Client, args: argparse.Namespace) -> int:
    print(json.dumps(client.admin("GET", "overview"), indent=2))
    return 0


def _jobs(client: Client, args: argparse.Namespace) -> int:
    names = ("state", "tenant", "model", "served_by")
    wanted = given(**{name: getattr(args, name) for name in names})
    left, after = args.limit, None
    while left > 0:
        query = wanted | given(after=after, limit=min(left, PAGE))
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


def _pause(act: str) -> Act:
    def run(client: Client, args: argparse.Namespace) -> int:
        body: dict[str, Any] = {"reason": args.reason}
        if act == "drain":
            body["drain"] = True
        verb = "resume" if act == "resume" else "pause"
        path = f"{THINGS[args.kind]}/{quote(args.name, safe='')}/{verb}"
        answer = client.admin("POST", path, json=body)
        if answer.get("warning"):  # an earlier server's answer has none
            say(f"atelier: warning: {answer['warning']}")
        for one in answer["data"]:
            drained = ", drained" if one["drains"] else ""
            why = f": {one['reason']}" if one["reason"] else ""
            print(
                f"{one['kind']} {one['name']} is paused{drained} by {one['by']} since"
                f" {one['at']}{why}"
            )
        return 0

    return run


def _sleep(act: str) -> Act:
    def run(client: Client, args: argparse.Namespace) -> int:
        path = f"pools/{quote(args.name, safe='')}/{act}"
        for one in client.admin("POST", path, json={"reason": args.reason})["data"]:
            why = f": {one['reason']}" if one["reason"] else ""
            print(f"{one['name']} was put to sleep by {one['by']} at {one['at']}{why}")
        return 0

    return run


def _evict(client: Client, args: argparse.Namespace) -> int:
    path = f"loras/{quote(args.tenant, safe='')}/{quote(args.name, safe='')}"
    client.admin("DELETE", path, params={"reason": args.reason})
    say(f"evicted {args.name} of {args.tenant}")
    return 0


def _audit(client: Client, args: argparse.Namespace) -> int:
    for one in client.admin("GET", "audit", params=given(day=args.day))["data"]:
        who = f"{one['name'] or '-'}  {one['address'] or '-'}"
        why = f": {one['reason']}" if one["reason"] else ""
        line = f"{one['at']}  {one['outcome']:<6}  {who}  {one['act']}  {one['target']}{why}"
        print(json.dumps(one) if args.json else line)
    return 0
