"""Call: a request at a door, with the tenant whose key it carries."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, params
from fastapi.security import APIKeyHeader, HTTPBasic

from service.auth.api_keys import digest_of
from service.auth.credentials import Scheme, key_of
from service.front_end.front_end import Front, FrontEnd, bearer, key_id_of, tenant_of_key
from service.http.inflight_limits import Hold


class _Basic(HTTPBasic):
    """Scheme that is only described: clients without a key send an empty one, which is no error."""

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Leave it to `key_of`."""


_BASIC = _Basic(
    auto_error=False,
    scheme_name="BasicKey",
    description="An API key as the password; the user's name is not looked at.",
)
_KEY = APIKeyHeader(
    name="Authorization",
    auto_error=False,
    scheme_name="KeyHeader",
    description="`Key atl_…`, as fal's clients send it.",
)
_SECURITY: dict[Scheme, Callable[..., Any]] = {"bearer": bearer, "basic": _BASIC, "key": _KEY}


@dataclass(frozen=True)
class Call:
    """A request of a tenant."""

    request: Request
    front: FrontEnd
    tenant: str
    key: str | None = None
    """The key, where the request has one."""

    @property
    def key_id(self) -> str | None:
        """Return the id of the key, where keys are required."""
        return key_id_of(self.front, self.key)

    @property
    def sender(self) -> str:
        """Return for whom a door remembers things: the key or, where there are none, the client."""
        if self.front.callers and self.key:
            return f"key:{digest_of(self.key)[:32]}"
        return f"client:{self.client}"

    @property
    def client(self) -> str:
        """Return with whom it shares what is bounded by client."""
        return self.front.client_of(self.request, self.tenant)

    @contextmanager
    def waiting(self) -> Iterator[Hold]:
        """Count a request that lasts as long as its job. Raises: Busy, Unavailable."""
        with self.front.waits.holding(self.client, 1) as hold:
            yield hold


def call_by(*schemes: Scheme) -> Callable[..., Coroutine[Any, Any, Call]]:
    """Return the dependency of a `Call` whose key comes by one of these schemes."""

    async def call(request: Request, front: Front) -> Call:
        key = key_of(request.headers.get("authorization", ""), schemes)
        return Call(request, front, await tenant_of_key(front, key), key)

    return call


def documented(*schemes: Scheme) -> list[params.Depends]:
    """Return dependencies of a router that tell openapi.yaml of the schemes."""
    return [Depends(_SECURITY[scheme]) for scheme in schemes]


ByBearer = Annotated[Call, Depends(call_by("bearer"))]
"""A `Call` with `Authorization: Bearer KEY`, as most clients send it."""
