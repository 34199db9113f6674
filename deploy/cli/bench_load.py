"""Load and measurement plan of `atelier bench serve`, from its options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from deploy.bench.serving.mix import Mix, mix_of, plan, read_mix
from deploy.bench.serving.report import read_alone
from deploy.bench.serving.run import Plan, check_models
from deploy.bench.serving.timed_request import TimedRequest, read_trace, write_trace
from deploy.cli.options import without_none
from deploy.exit_codes import UsageError
from service.settings.settings import KEY_VARIABLE

DRAWN = ("shape", "deadlines", "rate", "seed", "repeats")
"""Options of random loads, which a trace replaces."""


def unvalidated_mix(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the unvalidated load mix of file and command line; the command line wins.

    Raises: UsageError.
    """
    for name in DRAWN if arguments.trace else ():
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} is for random loads; leave it out with --trace")
    mix = read_mix(arguments.mix) if arguments.mix else {}
    shapes, tenants = arguments.shape or (), arguments.tenant or ()
    chosen = {
        "rate_per_s": arguments.rate,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "repeats": arguments.repeats,
        "shapes": [_shape(dict(shape)) for shape in shapes] or None,
        "tenants": list(tenants) or None,
        "deadlines": [{"scale": scale} for scale in arguments.deadlines or ()] or None,
    }
    return mix | without_none(**chosen)


def _shape(fields: dict[str, Any]) -> dict[str, Any]:
    share = fields.pop("share", 1.0)
    return {"share": share, "request": {"model": fields.pop("name"), **fields}}


def keys_of(key: str | None, mix: Mapping[str, Any]) -> dict[str | None, str]:
    """Return the benchmark's API keys by tenant, with None for all others. Raises: UsageError."""
    keys: dict[str | None, str] = {None: (key or os.environ.get(KEY_VARIABLE) or "").strip()}
    for tenant in mix_of(dict(mix)).tenants:
        if tenant.key_variable:
            keys[tenant.name] = os.environ.get(tenant.key_variable, "").strip()
            if not keys[tenant.name]:
                raise UsageError(f"tenant {tenant.name!r}: ${tenant.key_variable} is not set")
    if not all(value.isascii() and value.isprintable() for value in keys.values()):
        raise UsageError("a key has characters that API keys do not have")
    return {tenant: value for tenant, value in keys.items() if value}


def url_of(server: str) -> str:
    """Validate the server's URL.

    Raises: UsageError: it is not a complete http or https URL.
    """
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise UsageError(f"--server {server!r}: it must be a complete http or https URL")
    return server


def load_of(
    arguments: argparse.Namespace, mix_fields: Mapping[str, Any], models: Mapping[str, bool]
) -> tuple[Mix, list[TimedRequest]]:
    """Return the load's mix, and the requests to send. Raises: UsageError."""
    every = [{"request": {"model": name}} for name in models]
    mix = mix_of({"shapes": every} | dict(mix_fields))
    entries = read_trace(arguments.trace) if arguments.trace else list(plan(mix))
    if not entries:
        raise UsageError("the load has no requests in it: more --seconds, or a higher --rate")
    check_models(entries, models)
    if arguments.write_trace:
        write_trace(arguments.write_trace, entries)
    return mix, entries


def plan_of(arguments: argparse.Namespace, entries: Sequence[TimedRequest], mix: Mix) -> Plan:
    """Return the plan of a load benchmark from its options.

    Raises: UsageError: the earlier report cannot be read.
    """
    of_trace_s = arguments.seconds or entries[-1].at_s
    return Plan(
        window_s=of_trace_s if arguments.trace else mix.seconds,
        alone=arguments.alone,
        unloaded_times=read_alone(arguments.alone_from) if arguments.alone_from else {},
        patience_s=arguments.patience,
    )
