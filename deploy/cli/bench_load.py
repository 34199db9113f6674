"""Load that the command line asks for, and how it is measured."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from deploy.bench.serving.ask import TimedRequest, read_trace, write_trace
from deploy.bench.serving.mix import Mix, mix_of, plan, read_mix
from deploy.bench.serving.report import read_alone
from deploy.bench.serving.run import Plan, check_models
from deploy.cli.options import given
from deploy.exit_codes import UsageError
from service.settings.settings import KEY_VARIABLE

DRAWN = ("shape", "deadlines", "rate", "seed")
"""Options of a load that is drawn; a trace has all of it."""


def said_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The mix as file and command line have it, still unchecked; the command line wins.

    Raises: UsageError.
    """
    for name in DRAWN if arguments.trace else ():
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} is of a load that is drawn; leave it out beside --trace")
    said = read_mix(arguments.mix) if arguments.mix else {}
    shapes, tenants = arguments.shape or (), arguments.tenant or ()
    chosen = {
        "rate_per_s": arguments.rate,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "shapes": [_shape(dict(shape)) for shape in shapes] or None,
        "tenants": list(tenants) or None,
        "deadlines": [{"scale": scale} for scale in arguments.deadlines or ()] or None,
    }
    return said | given(**chosen)


def _shape(fields: dict[str, Any]) -> dict[str, Any]:
    share = fields.pop("share", 1.0)
    return {"share": share, "request": {"model": fields.pop("name"), **fields}}


def keys_of(key: str | None, said: Mapping[str, Any]) -> dict[str | None, str]:
    """Return keys by tenant, and for all others. Raises: UsageError."""
    found: dict[str | None, str] = {None: (key or os.environ.get(KEY_VARIABLE) or "").strip()}
    for tenant in mix_of(dict(said)).tenants:
        if tenant.key_variable:
            found[tenant.name] = os.environ.get(tenant.key_variable, "").strip()
            if not found[tenant.name]:
                raise UsageError(f"tenant {tenant.name!r}: ${tenant.key_variable} is not set")
    if not all(one.isascii() and one.isprintable() for one in found.values()):
        raise UsageError("a key has signs in it that no API key has")
    return {tenant: one for tenant, one in found.items() if one}


def url_of(server: str) -> str:
    """Return the server's address without a slash at its end.

    Raises: UsageError: it is no whole URL.
    """
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise UsageError(f"--server {server!r}: it must be a whole http or https URL")
    return server


def load_of(
    arguments: argparse.Namespace, said: Mapping[str, Any], models: Mapping[str, bool]
) -> tuple[Mix, list[TimedRequest]]:
    """The mix, and the requests that are to be sent. Raises: UsageError."""
    every = [{"request": {"model": name}} for name in models]
    mix = mix_of({"shapes": every} | dict(said))
    asks = read_trace(arguments.trace) if arguments.trace else list(plan(mix))
    if not asks:
        raise UsageError("the load has no requests in it: more --seconds, or a higher --rate")
    check_models(asks, models)
    if arguments.write_trace:
        write_trace(arguments.write_trace, asks)
    return mix, asks


def plan_of(arguments: argparse.Namespace, asks: Sequence[TimedRequest], mix: Mix) -> Plan:
    """Return the plan of a run.

    Raises: UsageError: the earlier report cannot be read.
    """
    of_trace_s = arguments.seconds or asks[-1].at_s
    return Plan(
        window_s=of_trace_s if arguments.trace else mix.seconds,
        alone=arguments.alone,
        known=read_alone(arguments.alone_from) if arguments.alone_from else {},
        patience_s=arguments.patience,
    )
