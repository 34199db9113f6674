"""`[batches]`: files of requests that are worked off with low priority."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class BatchSettings(Section):
    """Batches and their files."""

    max_lines: int = Field(10_000, gt=0)
    """Maximum number of requests of one batch."""
    max_line_bytes: int = Field(4 * 2**20, gt=0)
    """Maximum size of one line."""
    max_file_bytes: int = Field(64 * 2**20, gt=0)
    """Maximum size of an uploaded file."""
    max_result_bytes: int = Field(4 * 2**30, gt=0)
    """Maximum size of a batch's results, images in base64 included; lines beyond it fail."""
    max_files: int = Field(100, gt=0)
    """Maximum number of files that a tenant has uploaded or been given as results; a batch that has
    not ended counts as two."""
    max_open: int = Field(10, gt=0)
    """Maximum number of batches of a tenant that have not ended."""
    window: int = Field(16, gt=0)
    """Jobs of one batch at the same time, and at most half of its tenant's `max_queued`."""
    driven: int = Field(16, gt=0)
    """Batches that one front end drives at the same time."""
    lease_s: float = Field(15, gt=0)
    """Lease of the front end that drives a batch; another one goes on when it is over."""
    poll_every_s: float = Field(1, gt=0)
    """Interval at which front ends look for batches, and renew their leases."""
    retention_s: float = Field(7 * 24 * 3600, gt=0)
    """Time that files and ended batches are kept."""
