"""File uploads of Replicate's client, answered with the file as a data URI.

The client puts the upload's URL into its prediction. With a data URI, no file is stored and no key
is needed to fetch it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from service.errors.problems import FieldError, Invalid, Malformed
from service.http.form_parts import MemoryPart, Part
from service.http.inflight_limits import HeldResponse, Hold
from service.http.json_reader import parse_object
from service.http.negotiation import JSON
from service.routes.compat.call import Call
from service.routes.compat.forms import HeldPart, in_base64
from service.tracing.log_format import rfc3339

TEXT_BYTES = 2**16
"""Maximum size of `metadata`, which the response repeats."""
UNKNOWN = "application/octet-stream"


@dataclass(frozen=True)
class Upload:
    """Parts of the form with which Replicate's client uploads a file."""

    content: HeldPart
    metadata: MemoryPart
    hold: Hold

    @property
    def parts(self) -> dict[str, Part]:
        """Return the parts of the upload form by name."""
        return {"content": self.content, "metadata": self.metadata}

    @property
    def is_present(self) -> bool:
        """Return whether the form has the part that Replicate's client sends."""
        return self.content.is_present

    def _metadata(self) -> dict[str, Any]:
        """Parse the `metadata` part of an upload form as JSON. Raises: Invalid, Malformed."""
        if not self.metadata.is_present:
            return {}
        try:
            return parse_object(self.metadata.text().encode(), "text")
        except Malformed as error:
            message = f"must be an object in JSON: {error.detail}"
            raise Invalid([FieldError("metadata", message)]) from None

    async def answer(self) -> Response:
        """Build the response with the file's data URI. Raises: Problem."""
        self.hold.add(2 * self.content.bytes)  # for the base64 copy
        content = await asyncio.to_thread(self._body, self._metadata())
        return HeldResponse(content, self.hold.transfer(), status_code=201, media_type=JSON)

    def _body(self, metadata: dict[str, Any]) -> bytes:
        data, name = bytes(self.content.data), self.content.filename or "file"
        content_type = mimetypes.guess_type(name)[0] or UNKNOWN
        digest = hashlib.sha256(data).hexdigest()
        body = {
            "id": digest,
            "name": name,
            "content_type": content_type,
            "size": len(data),
            "etag": digest,
            "checksums": {"sha256": digest},
            "metadata": metadata,
            "created_at": rfc3339(time.time()),
            "expires_at": None,
            "urls": {"get": f"data:{content_type};base64,{in_base64(data)}"},
        }
        return json.dumps(body).encode()


@contextmanager
def receiving(call: Call) -> Iterator[Upload]:
    """Count an upload's bytes against the limits until the response is sent."""
    max_bytes = call.front.settings.limits.max_body_bytes
    with call.front.bodies.holding(call.client) as hold:
        content = HeldPart(max_bytes, "content", hold)
        yield Upload(content, MemoryPart(TEXT_BYTES, "metadata"), hold)
