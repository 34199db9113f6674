"""Router shared by all routes of AUTOMATIC1111's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from service.routes.compat.call import Call, call_by, documented

PREFIX = "/sdapi/v1"

router = APIRouter(
    prefix=PREFIX, tags=["automatic1111"], dependencies=documented("bearer", "basic")
)

ByKey = Annotated[Call, Depends(call_by("bearer", "basic"))]
"""`Call` with its key as `Bearer`, or as the password of `Basic`."""
