"""Authentication of operators: by an operator's key, or any local client if none is required."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials

from service.auth.api_keys import Role
from service.errors.problems import Forbidden, Unauthorized
from service.front_end.front_end import Front, bearer, unknown_key
from service.operators.audit import Operator


async def operator_of_caller(
    request: Request,
    front: Front,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Operator:
    """Return the operator who sent the request.

    Raises:
        Unauthorized: no key, or an unknown one.
        Forbidden: the key is a tenant's.
    """
    address = request.client.host if request.client else ""
    if front.operators is None:
        return Operator("", "", address)
    if given is None:
        raise Unauthorized(
            "this path requires an operator's key: send the header `Authorization: Bearer atl_…`;"
            " create one with `atelier keys create --operator --name YOU`"
        )
    key = await front.operators.find(given.credentials)
    if key is None:
        raise unknown_key()
    if key.role is not Role.OPERATOR:
        raise Forbidden(
            "this key is a tenant's: /v1/admin requires an operator's (`atelier keys create"
            " --operator --name YOU`)",
            code="wrong_role",
        )
    return Operator(key.id, key.name, address)


OperatorOfCall = Annotated[Operator, Depends(operator_of_caller)]
"""Operator of a request."""
