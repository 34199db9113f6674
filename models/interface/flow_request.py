"""Schedules of requests to models of flows, with errors that name the request's field."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from models.interface.pipeline import RequestError
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler


def check_sigmas(sigmas: Sequence[float] | None) -> None:
    """Check a request's own sigmas; None: it has none.

    Raises: RequestError: they are no schedule of a flow.
    """
    if sigmas is None:
        return
    falling = all(a > b for a, b in itertools.pairwise(sigmas))
    if not sigmas or not falling or not 0 < sigmas[-1] <= sigmas[0] <= 1:
        raise RequestError("sigmas", "must fall from at most 1 and stay above 0")


def planned(
    scheduler: FlowMatchEuler,
    steps: int,
    sigmas: Sequence[float] | None,
    strength: float | None,
    *,
    tokens: int,
    fields: Collection[str],
    mu: float | None = None,
) -> Plan:
    """The schedule; image to image leaves out its first steps.

    Args:
        strength: of image to image; None: from noise alone.
        tokens: of the packed latents, by which a dynamic shift goes.
        fields: of the family's requests.
        mu: dynamic shift of the family's own; None: the config's.

    Raises: RequestError: names the field.
    """
    try:
        return scheduler.plan(steps, sigmas=sigmas, strength=strength, tokens=tokens, mu=mu)
    except ValueError as error:
        field = str(error).split()[0]
        raise RequestError(
            field if field in fields else "num_inference_steps", str(error).removeprefix(field)
        ) from error
