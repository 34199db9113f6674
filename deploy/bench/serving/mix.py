"""A mix of shapes, tenants and deadlines, and the requests that a Poisson process draws from it."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from deploy.bench.serving.ask import DEFAULT_TENANT, Part, TimedRequest, explained
from deploy.exit_codes import UsageError

PROMPT = "a red circle on a blue background"
MAX_SEED = 2**31
"""Bound below which images' seeds are drawn."""
MAX_REQUESTS = 1_000_000
"""Maximum requests of a load: it lies in memory, with its outcomes."""


class Share(Part):
    """Base of what a mix draws from by shares."""

    share: float = Field(1.0, gt=0)
    """Frequency with which it is drawn, against the others of its kind."""


class Shape(Share):
    """A kind of request in a mix."""

    request: dict[str, Any]
    """The body of `POST /v1/generate`, but for what is drawn: prompt, seed, deadline."""
    prompts: tuple[str, ...] = (PROMPT,)


class Tenant(Share):
    """A tenant of a mix."""

    name: str
    weight: float = Field(1.0, gt=0)
    """Weight in the server's settings, for measuring fairness."""
    key_variable: str | None = None
    """The environment variable that has its API key; None: the one key for all."""


class Deadline(Share):
    """A deadline in a mix."""

    scale: float | None = Field(None, gt=0)
    """Times what the request takes on the unloaded server; None: no deadline."""


class Mix(Part):
    """Requests come at random, `rate_per_s` on the average, each drawn by the shares."""

    rate_per_s: float = Field(1.0, gt=0)
    seconds: float = Field(60.0, gt=0)
    seed: int = 0
    shapes: tuple[Shape, ...] = ()
    tenants: tuple[Tenant, ...] = (Tenant(name=DEFAULT_TENANT),)
    deadlines: tuple[Deadline, ...] = (Deadline(),)


Drawn = TypeVar("Drawn", bound=Share)


def plan(mix: Mix) -> Iterator[TimedRequest]:
    """The requests by their instants: the same for the same mix.

    A mix that differs in its rate alone has the same requests, closer together.
    """
    rng = random.Random(mix.seed)
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(mix.rate_per_s)) < mix.seconds:
        shape = _draw(rng, mix.shapes)
        drawn = {"prompt": rng.choice(shape.prompts), "seed": rng.randrange(MAX_SEED)}
        yield TimedRequest(
            at_s=round(at_s, 6),
            request=drawn | shape.request,
            tenant=_draw(rng, mix.tenants).name,
            deadline_scale=_draw(rng, mix.deadlines).scale,
        )


def _draw(rng: random.Random, among: Sequence[Drawn]) -> Drawn:
    return rng.choices(among, [one.share for one in among])[0]


def read_mix(path: Path) -> dict[str, Any]:
    """Read the file, unchecked. Raises: UsageError."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


def mix_of(said: dict[str, Any]) -> Mix:
    """Return the mix of a parsed file.

    Raises: UsageError: names every unknown key and every wrong value.
    """
    try:
        mix = Mix.model_validate(said)
    except ValidationError as error:
        raise UsageError(f"the mix cannot be used: {explained(error)}") from None
    if (count := mix.rate_per_s * mix.seconds) > MAX_REQUESTS:
        raise UsageError(
            f"{mix.rate_per_s:g} requests a second for {mix.seconds:g} s are {count:.3g}, and"
            f" a load has {MAX_REQUESTS:,} at the most"
        )
    return mix
