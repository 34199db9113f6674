"""`[usage]`: the ledger of what jobs have used."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class UsageSettings(Section):
    """The ledger, and what it says of a machine."""

    file_every_s: float = Field(3600, gt=0)
    """Period of the ledger's files in the store; a file has at most 10,000 records, so that busy
    periods have several."""
    region: str | None = None
    """Region of this machine, which its workers' records name."""
    spot: bool = False
    """True if this machine may be taken away at any time, which its workers' records and
    `atelier_worker_info` say."""
