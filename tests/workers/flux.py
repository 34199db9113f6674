"""The one shape of a tiny random Flux that these tests compile, and keep compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.families.suite import SUITE

REQUEST = SUITE["flux"].least_request
SLOTS = 2


def tuned(base: Path, folder: Path) -> Path:
    """Write a checkpoint of which one array is other than its base's, in files of its own."""
    shutil.copytree(base, folder)
    (file,) = (folder / "transformer").glob("*.safetensors")
    tensors = load_file(file)
    name = "x_embedder.weight"
    save_file({**tensors, name: tensors[name] * np.float32(1.5)}, file)
    return folder
