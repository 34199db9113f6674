"""`[output]`: what files say of themselves."""

from __future__ import annotations

from service.settings.section import Section


class OutputSettings(Section):
    """Files of images and videos."""

    metadata: bool = True
    """Whether files hold their recipe, AUTOMATIC1111's `parameters` and IPTC's mark of made images.
    A request may switch them off for itself (`output.metadata`), and not on."""
    prompts: bool = True
    """Whether recipes hold the prompts. False: whoever sees a file does not see what was asked."""
