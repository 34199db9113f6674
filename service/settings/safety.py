"""`[safety]`: who is asked about requests and outputs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from service.settings.section import Section


class SafetySettings(Section):
    """The safety hook. Without `url` and `check`: nobody is asked."""

    url: str | None = Field(None, pattern=r"^https?://[^\s]+$")
    """HTTP service that is asked. It may be on a private network."""
    token: SecretStr | None = None
    """Sent to the service as `Authorization: Bearer`."""
    check: str | None = Field(None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Python function that is asked instead, as `package.module:function`. Front ends and workers
    call it in threads of their own."""
    before: bool = True
    """Whether front ends ask about the request and its input images, before it is accepted."""
    after: bool = True
    """Whether workers ask about the pixels, before anything of them is stored. Jobs have no
    previews then."""
    timeout_s: float = Field(10, gt=0)
    """Time for a verdict, retries included."""
    when_absent: Literal["refuse", "allow"] = "refuse"
    """Policy where no verdict comes in that time."""
    max_checks: int = Field(16, gt=0)
    """Maximum number of checks at the same time, of one front end or worker; one client has half
    of them."""
    max_frames: int = Field(8, gt=0)
    """Frames of a video that are shown to the hook: evenly spread, the first and the last among
    them."""

    @model_validator(mode="after")
    def _one_hook(self) -> SafetySettings:
        if self.url and self.check:
            raise ValueError("name url or check, not both")
        return self

    @property
    def is_on(self) -> bool:
        """Return whether there is a hook."""
        return bool(self.url or self.check)
