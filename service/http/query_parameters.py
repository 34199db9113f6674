"""Query parameters: unknown and repeated ones are errors, like unknown fields of a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fastapi import Request
from fastapi.dependencies.models import Dependant

from service.errors.did_you_mean import did_you_mean
from service.errors.problems import FieldError, Invalid

_ALIASES = {
    "page_size": "limit",
    "per_page": "limit",
    "count": "limit",
    "status": "state",
    "cursor": "after",
    "offset": "after",
    "page": "after",
    "starting_after": "after",
}
"""Names of parameters in other APIs, with ours, where the route has it."""


async def check_query(request: Request) -> None:
    """Check the names of a request's query parameters.

    Raises: Invalid: names each parameter that the route does not have, or has twice.
    """
    if not request.scope["query_string"]:
        return
    known = _known(request)
    given = Counter(name for name, _ in request.query_params.multi_items())
    errors = [
        FieldError(name, "is there twice" if name in known else _unknown(name, known))
        for name, count in given.items()
        if count > 1 or name not in known
    ]
    if errors:
        raise Invalid(errors)


def _known(request: Request) -> Sequence[str]:
    """Return the names of the query parameters that a request's route declares."""
    return _declared(request.scope["route"].dependant)


def _declared(dependant: Dependant) -> list[str]:
    """Return the query parameters of a route, or of one of its dependencies."""
    names = [field.alias for field in dependant.query_params]
    return names + [name for part in dependant.dependencies for name in _declared(part)]


def _unknown(name: str, known: Sequence[str]) -> str:
    choice = f"there is {', '.join(known)}" if known else "this address takes none"
    meant = did_you_mean(name, known, _ALIASES)
    if meant and meant in known:
        choice += f"; did you mean {meant}?"
    return f"there is no such query parameter; {choice}"
