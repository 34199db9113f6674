"""Files that Replicate's client uploads for an input: each comes back as a data URI.

The client puts the address of the upload into its prediction. An address that holds the file itself
needs no file kept for it, and no key to fetch it.
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
from service.schemas.response import timestamp

TEXT_BYTES = 2**16
"""Maximum size of `metadata`, which the client is given back."""
UNKNOWN = "application/octet-stream"


@dataclass(frozen=True)
class Upload:
    """Parts of an upload's form."""

    content: HeldPart
    metadata: MemoryPart
    hold: Hold

    @property
    def parts(self) -> dict[str, Part]:
        """Return the parts by name."""
        return {"content": self.content, "metadata": self.metadata}

    @property
    def is_there(self) -> bool:
        """Return whether the form is of Replicate's client."""
        return self.content.is_there

    def _metadata(self) -> dict[str, Any]:
        """Raises: Invalid, Malformed."""
        if not self.metadata.is_there:
            return {}
        try:
            return parse_object(self.metadata.text().encode(), "text")
        except Malformed as error:
            said = f"must be an object in JSON: {error.detail}"
            raise Invalid([FieldError("metadata", said)]) from None

    async def answer(self) -> Response:
        """Return the file as the client reads it. Raises: Problem: too much is held, too."""
        self.hold.add(2 * self.content.bytes)  # in base64, beside itself
        content = await asyncio.to_thread(self._body, self._metadata())
        return HeldResponse(content, self.hold.pass_on(), status_code=201, media_type=JSON)

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
            "created_at": timestamp(time.time()),
            "expires_at": None,
            "urls": {"get": f"data:{content_type};base64,{in_base64(data)}"},
        }
        return json.dumps(body).encode()


@contextmanager
def receiving(call: Call) -> Iterator[Upload]:
    """Hold an upload's bytes until they are answered."""
    most = call.front.settings.limits.max_body_bytes
    with call.front.bodies.holding(call.client) as hold:
        content = HeldPart(most, "content", hold)
        yield Upload(content, MemoryPart(TEXT_BYTES, "metadata"), hold)
