"""`[batches]`: files of requests that are processed with low priority."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class BatchSettings(Section):
    """Limits of batches (files of requests) and of their uploaded files and results."""

    max_lines: int = Field(10_000, gt=0)
    """Maximum number of requests of one batch."""
    max_line_bytes: int = Field(4 * 2**20, gt=0)
    """Maximum size of one line."""
    max_file_bytes: int = Field(64 * 2**20, gt=0)
    """Maximum size of an uploaded file."""
    max_result_bytes: int = Field(4 * 2**30, gt=0)
    """Maximum size of a batch's results, images in base64 included; lines beyond it fail."""
    max_files: int = Field(100, gt=0)
    """Maximum number of a tenant's files, uploads and results. An unfinished batch counts as
    two."""
    max_open: int = Field(10, gt=0)
    """Maximum number of a tenant's unfinished batches."""
    window: int = Field(16, gt=0)
    """Maximum number of concurrent jobs of one batch; also at most half of its tenant's
    `max_queued`."""
    driven: int = Field(16, gt=0)
    """Maximum number of batches that one front end drives concurrently."""
    lease_s: float = Field(15, gt=0)
    """Lease of the front end that drives a batch. After it lapses, another front end continues."""
    poll_every_s: float = Field(1, gt=0)
    """Interval at which front ends poll for batches and renew their leases."""
    retention_s: float = Field(7 * 24 * 3600, gt=0)
    """Time that files and ended batches are kept."""
