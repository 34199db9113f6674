"""Requests that each door takes: what attacks, fuzzing and layouts of keys begin with."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from tests.service.standin import MODEL, picture

PNG = picture(size=(64, 64))
IMAGE = base64.b64encode(PNG).decode()


@dataclass(frozen=True)
class Asked:
    """A request: a body in JSON, or a form with files."""

    path: str
    json: dict[str, Any] | None = None
    form: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


ASKED: dict[str, Asked] = {
    "/hf/{model}": Asked(f"/hf/{MODEL}", {"inputs": "a cat", "parameters": {"seed": 7}}),
    "/hf/{model} of an image": Asked(
        f"/hf/{MODEL}", {"inputs": IMAGE, "parameters": {"prompt": "a cat"}}
    ),
}
"""One good request of each operation that has a body; more of one by a word behind its path."""
