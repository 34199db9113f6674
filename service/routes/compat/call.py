"""Context of a request at a compatible endpoint: tenant, API key, and client."""

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
    """Basic authentication, for documentation only: an absent or empty key is no error."""

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Ignore the Basic credentials; `key_of` parses them."""


_BASIC = _Basic(
    auto_error=False,
    scheme_name="BasicKey",
    description="An API key as the password; the user name is ignored.",
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
    """Authenticated request at a compatible endpoint."""

    request: Request
    front: FrontEnd
    tenant: str
    key: str | None = None
    """The API key, if the request has one."""

    @property
    def key_id(self) -> str | None:
        """Return the id of the key; None if keys are not required."""
        return key_id_of(self.front, self.key)

    @property
    def sender(self) -> str:
        """Return the identity for per-sender state: the API key's digest, or else the client."""
        if self.front.callers and self.key:
            return f"key:{digest_of(self.key)[:32]}"
        return f"client:{self.client}"

    @property
    def client(self) -> str:
        """Return the key of the per-client limits: the tenant, or the client's address."""
        return self.front.client_of(self.request, self.tenant)

    @contextmanager
    def waiting(self) -> Iterator[Hold]:
        """Count a request that stays open as long as its job. Raises: Busy, Unavailable."""
        with self.front.waits.holding(self.client, 1) as hold:
            yield hold


def call_by(*schemes: Scheme) -> Callable[..., Coroutine[Any, Any, Call]]:
    """Return a FastAPI dependency that builds a `Call` from a key in one of these schemes."""

    async def call(request: Request, front: Front) -> Call:
        key = key_of(request.headers.get("authorization", ""), schemes)
        return Call(request, front, await tenant_of_key(front, key), key)

    return call


def documented(*schemes: Scheme) -> list[params.Depends]:
    """Return dependencies of a router that add the security schemes to openapi.yaml."""
    return [Depends(_SECURITY[scheme]) for scheme in schemes]


ByBearer = Annotated[Call, Depends(call_by("bearer"))]
"""`Call` with `Authorization: Bearer KEY`."""
