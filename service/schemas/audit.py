"""Records of the audit log, in the format of store and API."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from service.schemas.examples import AUDIT, schema_example

ID_BYTES = 6
SERVICE = "atelier"
"""Actor of automatic actions."""
FRONT_END = "front end at "


class AuditRecord(BaseModel):
    """Action of an operator, or of the service itself."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str = Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")
    """Id of the record."""
    at: AwareDatetime
    """Start time (UTC, by the acting process's clock)."""
    key_id: str
    """Id of the operator's key; empty for commands, access from the server's own machine, and
    actions of the service itself."""
    name: str
    """Name of the key; `USER@HOST` for a command; `atelier` for the service itself."""
    address: str
    """Client address of the request, by `server.trusted_proxies`; `command line at HOST` for a
    command that uses Redis directly; `front end at HOST` for the service itself."""
    act: str
    """Requested action, such as `cancel job`."""
    target: str
    """Job, pool, model, adapter, tenant, key, … that the action affects."""
    reason: str = ""
    """Reason given by the operator."""
    details: dict[str, str] = Field(default_factory=dict)
    """Further parameters of the action."""
    outcome: Literal["begun", "done", "failed"] = "begun"
    """Outcome; `begun`: still running, or its process crashed."""
    error: str = ""
    """Reason of its failure."""

    @property
    def field(self) -> str:
        """Field name of the record in the Redis hash from which front ends collect it."""
        return f"{self.id} {self.outcome}"


class AuditPage(BaseModel):
    """Audit records of one day."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=schema_example(AUDIT)
    )

    data: list[AuditRecord]
    """Actions, the oldest first."""


def automatic_act(act: str, target: str, reason: str, details: Mapping[str, str]) -> AuditRecord:
    """Create the audit record of an action that this process performed automatically."""
    return AuditRecord(
        id=secrets.token_hex(ID_BYTES),
        at=datetime.now(UTC),
        key_id="",
        name=SERVICE,
        address=FRONT_END + socket.gethostname(),
        act=act,
        target=target,
        reason=reason,
        details=dict(details),
        outcome="done",
    )
