"""Random load: a mix of shapes, tenants and deadlines, sampled by a Poisson process."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from deploy.bench.serving.timed_request import DEFAULT_TENANT, Part, TimedRequest, explained
from deploy.exit_codes import UsageError

PROMPT = "a red circle on a blue background"
MAX_SEED = 2**31
"""Upper bound of random seeds."""
MAX_REQUESTS = 1_000_000
"""Maximum requests of a load, which is held in memory with its outcomes."""


class Share(Part):
    """Base of the entries of a load's mix, which are sampled by their shares."""

    share: float = Field(1.0, gt=0)
    """Relative frequency among the entries of its kind."""


class Shape(Share):
    """Kind of request in a load's mix."""

    request: dict[str, Any]
    """The body of `POST /v1/generate`, without the sampled prompt, seed and deadline."""
    prompts: tuple[str, ...] = (PROMPT,)


class Tenant(Share):
    """Tenant in a load's mix, with the share of requests that it sends."""

    name: str
    weight: float = Field(1.0, gt=0)
    """Weight in the server's settings, used to measure fairness."""
    key_variable: str | None = None
    """Environment variable with its API key; None: the common key."""


class Deadline(Share):
    """Deadline in a load's mix, with the share of requests that have it."""

    scale: float | None = Field(None, gt=0)
    """Multiple of the request's duration on the unloaded server; None: no deadline."""


class Mix(Part):
    """Poisson process of `rate_per_s` requests, each sampled by the shares."""

    rate_per_s: float = Field(1.0, gt=0)
    seconds: float = Field(60.0, gt=0)
    seed: int = 0
    repeats: float = Field(0.0, ge=0, le=1)
    """Share of requests that repeat an earlier one of the load, with its tenant and seed."""
    shapes: tuple[Shape, ...] = ()
    tenants: tuple[Tenant, ...] = (Tenant(name=DEFAULT_TENANT),)
    deadlines: tuple[Deadline, ...] = (Deadline(),)


ShareT = TypeVar("ShareT", bound=Share)


def plan(mix: Mix) -> Iterator[TimedRequest]:
    """Yield the requests of a load in order of time, deterministically.

    A mix with another rate has the same requests at other intervals.
    """
    rng = random.Random(mix.seed)
    at_s, planned = 0.0, list[TimedRequest]()
    while (at_s := at_s + rng.expovariate(mix.rate_per_s)) < mix.seconds:
        repeats = mix.repeats and planned and rng.random() < mix.repeats
        timed = rng.choice(planned) if repeats else _new(rng, mix)
        planned.append(timed.model_copy(update={"at_s": round(at_s, 6)}))
        yield planned[-1]


def _new(rng: random.Random, mix: Mix) -> TimedRequest:
    shape = _draw(rng, mix.shapes)
    drawn = {"prompt": rng.choice(shape.prompts), "seed": rng.randrange(MAX_SEED)}
    return TimedRequest(
        at_s=0,
        request=drawn | shape.request,
        tenant=_draw(rng, mix.tenants).name,
        deadline_scale=_draw(rng, mix.deadlines).scale,
    )


def _draw(rng: random.Random, among: Sequence[ShareT]) -> ShareT:
    return rng.choices(among, [entry.share for entry in among])[0]


def read_mix(path: Path) -> dict[str, Any]:
    """Read the file of a load's mix without validation. Raises: UsageError."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


def mix_of(fields: dict[str, Any]) -> Mix:
    """Validate the parsed file of a load's mix.

    Raises: UsageError: names every unknown key and invalid value.
    """
    try:
        mix = Mix.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"the mix cannot be used: {explained(error)}") from None
    if (count := mix.rate_per_s * mix.seconds) > MAX_REQUESTS:
        raise UsageError(
            f"{mix.rate_per_s:g} requests a second for {mix.seconds:g} s are {count:.3g}, and"
            f" a load has at most {MAX_REQUESTS:,}"
        )
    return mix
