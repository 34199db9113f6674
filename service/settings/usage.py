"""`[usage]`: ledger of the resources that jobs used."""

from __future__ import annotations

from pydantic import Field, field_validator

from service.settings.section import Section


class UsageSettings(Section):
    """Usage ledger, and facts about the machine that it records."""

    file_every_s: float = Field(3600, gt=0)
    """Period of the ledger's files in the store. A file has at most 10,000 records, so a busy
    period has several."""
    region: str | None = None
    """Region of this machine, recorded by its workers. Empty: unknown."""
    spot: bool = False
    """Whether this machine may be preempted at any time. Its workers' records and
    `atelier_worker_info` report it."""

    @field_validator("region")
    @classmethod
    def _empty_is_unknown(cls, region: str | None) -> str | None:
        return region or None
