"""Query parameters: unknown and repeated ones are errors, like unknown fields of a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fastapi import Request

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
    """Names that the API's description has for that route."""
    template = getattr(request.scope.get("route"), "path_format", "")
    operation = request.app.openapi()["paths"].get(template, {}).get(request.method.lower(), {})
    return [item["name"] for item in operation.get("parameters", ()) if item["in"] == "query"]


def _unknown(name: str, known: Sequence[str]) -> str:
    choice = f"there is {', '.join(known)}" if known else "this address takes none"
    meant = did_you_mean(name, known, _ALIASES)
    if meant and meant in known:
        choice += f"; did you mean {meant}?"
    return f"there is no such query parameter; {choice}"
