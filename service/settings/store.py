"""`[store]`: storage of inputs, outputs and snapshots."""

from __future__ import annotations

from service.settings.section import Section


class StoreSettings(Section):
    """Location of the store for inputs, outputs and snapshots."""

    url: str | None = None
    """Folder, `s3://…` or `gs://…`. Default: `outputs/` in the state folder."""
