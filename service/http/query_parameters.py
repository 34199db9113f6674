"""Validation of query parameters: unknown and repeated ones are errors."""

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
"""Parameter names of other APIs, mapped to ours if the route has them."""


async def check_query(request: Request) -> None:
    """Check the names of a request's query parameters against those of its route.

    Raises: Invalid: lists the parameters that the route lacks, or that are repeated.
    """
    if not request.scope["query_string"]:
        return
    names = _parameter_names(request)
    given = Counter(name for name, _ in request.query_params.multi_items())
    errors = [
        FieldError(name, "occurs twice" if name in names else _unknown(name, names))
        for name, count in given.items()
        if count > 1 or name not in names
    ]
    if errors:
        raise Invalid(errors)


def _parameter_names(request: Request) -> Sequence[str]:
    """Return the query parameters that a request's route declares."""
    return _declared(request.scope["route"].dependant)


def _declared(dependant: Dependant) -> list[str]:
    """Collect the names of query parameters of a route and its dependencies."""
    names = [field.alias for field in dependant.query_params]
    return names + [name for part in dependant.dependencies for name in _declared(part)]


def _unknown(name: str, names: Sequence[str]) -> str:
    choice = f"available: {', '.join(names)}" if names else "this path accepts none"
    suggestion = did_you_mean(name, names, _ALIASES)
    if suggestion and suggestion in names:
        choice += f"; did you mean {suggestion}?"
    return f"there is no such query parameter; {choice}"
