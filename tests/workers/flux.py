"""Request for a tiny random Flux. Its size is the only one that these tests compile."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.families.suite import SUITE

REQUEST = SUITE["flux"].smallest_request
SLOTS = 2


def tuned(base: Path, folder: Path) -> Path:
    """Write a checkpoint that differs from its base in one array."""
    shutil.copytree(base, folder)
    (file,) = (folder / "transformer").glob("*.safetensors")
    tensors = load_file(file)
    name = "x_embedder.weight"
    save_file({**tensors, name: tensors[name] * np.float32(1.5)}, file)
    return folder
