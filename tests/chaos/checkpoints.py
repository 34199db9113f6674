"""Tiny models with random weights: quick to compile, with steps of milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chaos.orders import CLIPS, PICTURES, REQUESTS
from tests.parity.tiny import make_flux
from tests.parity.tiny_wan import make_wan

SHAPE = ("width", "height", "num_frames", "max_sequence_length")


def make(folder: Path) -> dict[str, Path]:
    """Make checkpoints of both models; returns their folders by name."""
    flux, wan = folder / PICTURES, folder / CLIPS
    make_flux(flux, transformer={"num_layers": 1, "num_single_layers": 1})
    make_wan(wan, transformer={"num_layers": 1})
    _set_defaults(flux, REQUESTS["short"])
    _set_defaults(wan, REQUESTS["clip"])
    return {PICTURES: flux, CLIPS: wan}


def _set_defaults(folder: Path, request: dict[str, Any]) -> None:
    """Set the shape as default, so that pools warm it up."""
    shape = {name: request[name] for name in SHAPE if name in request}
    (folder / "atelier.json").write_text(json.dumps({"defaults": shape}))
