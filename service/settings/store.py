"""`[store]`: where inputs, outputs and snapshots are stored."""

from __future__ import annotations

from service.settings.section import Section


class StoreSettings(Section):
    url: str | None = None
    """A folder, `s3://…` or `gs://…`; None: `outputs/` under the state folder."""
