"""Records of the audit log, as they are stored and answered."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from service.schemas.examples import AUDIT, shown

ID_BYTES = 6
SERVICE = "atelier"
"""Name of whoever acts where nobody has asked for it."""
FRONT_END = "front end at "


class AuditRecord(BaseModel):
    """One act of an operator, or of the service by itself."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str = Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")
    """Id of the record."""
    at: AwareDatetime
    """Time at which it began (UTC, by the clock of the process that did it)."""
    key_id: str
    """Id of the operator's key; empty: of somebody on the server's own machine, of a command, or of
    the service by itself."""
    name: str
    """Name that the key was made with; of a command `USER@HOST`; of the service by itself
    `atelier`."""
    address: str
    """Address that the request came from, by `server.trusted_proxies`; of a command at Redis
    `command line at HOST`; of the service by itself `front end at HOST`."""
    act: str
    """Act that was asked for, such as `cancel job`."""
    target: str
    """Job, pool, model, adapter, tenant, key, … that it was done to."""
    reason: str = ""
    """Reason, as the operator gave it."""
    details: dict[str, str] = Field(default_factory=dict)
    """Further things that were asked for."""
    outcome: Literal["begun", "done", "failed"] = "begun"
    """Outcome; `begun`: its process died on the way, or it goes on."""
    error: str = ""
    """Reason of its failure."""

    @property
    def field(self) -> str:
        """Field of the record while it waits in Redis for a front end."""
        return f"{self.id} {self.outcome}"


class AuditPage(BaseModel):
    """Acts of one day."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_extra=shown(AUDIT))

    data: list[AuditRecord]
    """Acts, the oldest first."""


def automatic_act(act: str, target: str, reason: str, details: Mapping[str, str]) -> AuditRecord:
    """Return the record of what this process has done by itself."""
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
