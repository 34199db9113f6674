"""OpenTelemetry resource that describes this process."""

from __future__ import annotations

import os
import socket
from importlib.metadata import PackageNotFoundError, version

from opentelemetry.sdk.resources import Resource

from service.tracing.span import Attributes


def resource_of(service: str, attributes: Attributes) -> Resource:
    """Build the resource of a process. `OTEL_RESOURCE_ATTRIBUTES` adds to it.

    Args:
        service: role of this process, as `service.name`.
    """
    return Resource.create(
        {
            "service.name": service,
            "service.namespace": "atelier",
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
            "service.version": _version(),
            **attributes,
        }
    )


def _version() -> str:
    try:
        return version("atelier")
    except PackageNotFoundError:  # run from the source tree
        return "unpackaged"
