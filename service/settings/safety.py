"""`[safety]`: external check of requests and outputs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from service.settings.section import Section


class SafetySettings(Section):
    """Safety hook. Without `url` and `check` there is none."""

    url: str | None = Field(None, pattern=r"^https?://[^\s]+$")
    """HTTP service that checks. It may be on a private network."""
    token: SecretStr | None = None
    """Sent to the service as `Authorization: Bearer`."""
    check: str | None = Field(None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Python function that checks instead, as `package.module:function`. Front ends and workers
    call it in separate threads."""
    before: bool = True
    """Whether front ends have the request and its input images checked before acceptance."""
    after: bool = True
    """Whether workers have the pixels checked before they store any. Jobs then have no previews."""
    timeout_s: float = Field(10, gt=0)
    """Timeout of a verdict, including retries."""
    when_absent: Literal["refuse", "allow"] = "refuse"
    """Policy if no verdict arrives in time."""
    max_checks: int = Field(16, gt=0)
    """Maximum number of concurrent checks of one front end or worker. One client may use half of
    them."""
    max_frames: int = Field(8, gt=0)
    """Number of video frames passed to the hook: evenly spaced, including the first and the
    last."""

    @model_validator(mode="after")
    def _one_hook(self) -> SafetySettings:
        if self.url and self.check:
            raise ValueError("name url or check, not both")
        return self

    @property
    def is_on(self) -> bool:
        """Report whether a safety hook is configured."""
        return bool(self.url or self.check)
