"""`[store]`: where inputs, outputs and snapshots are stored."""

from __future__ import annotations

from service.settings.section import Section


class StoreSettings(Section):
    """The store of inputs and outputs."""

    url: str | None = None
    """Folder, `s3://…` or `gs://…`. Left out: `outputs/` in the state folder."""
