"""Writes a trained demo model as a checkpoint folder in diffusers' layout."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from models.checkpoint.key_mapping import Renames, source
from models.text.clip import ClipConfig
from models.text.t5 import T5Config
from models.weights.loader import flat_parameters

DIFFUSERS_FILE = "diffusion_pytorch_model.safetensors"
TRANSFORMERS_FILE = "model.safetensors"
DIFFUSERS_VERSION = "0.36.0"
STORED = np.float16
"""Dtype on disk: half the size, with ten bits of precision."""

Windows = tuple[tuple[str, int], ...]
"""Expression for a checkpoint key, and number of trailing axes of size one. Torch stores a 1 x 1
convolution where this project has a matrix."""


class SavedNetwork(NamedTuple):
    """Network of a checkpoint, with its renames and config."""

    module: nnx.Module
    renames: Renames
    config: Mapping[str, Any]
    """Contents of its `config.json`."""
    windows: Windows = ()

    @property
    def file(self) -> str:
        """File name of the weights in diffusers or transformers."""
        return DIFFUSERS_FILE if "_class_name" in self.config else TRANSFORMERS_FILE


class Checkpoint(NamedTuple):
    """Contents of a demo checkpoint folder in diffusers' layout."""

    model_index: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """Defaults of request fields, for `atelier.json`."""
    parts: Mapping[str, SavedNetwork]
    write_tokenizers: Callable[[Path], object]
    reference_px: int | None = None
    """Side of the square references that its adapters are trained with."""


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint, and replace `folder` once all files are written."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    index = {"_diffusers_version": DIFFUSERS_VERSION, **checkpoint.model_index}
    write_json(partial / "model_index.json", index)
    write_json(partial / "scheduler" / "scheduler_config.json", checkpoint.scheduler)
    reference = {} if checkpoint.reference_px is None else {"reference_px": checkpoint.reference_px}
    write_json(partial / "atelier.json", {"defaults": checkpoint.defaults, **reference})
    checkpoint.write_tokenizers(partial)
    for name, part in checkpoint.parts.items():
        write_json(partial / name / "config.json", part.config)
        save_file(tensors(part), partial / name / part.file, metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def tensors(part: SavedNetwork) -> dict[str, np.ndarray]:
    """Return every parameter by its checkpoint key, in torch's memory layout."""
    stored = {}
    for path, leaf in flat_parameters(part.module).items():
        array = np.asarray(leaf[...], STORED)
        # Renames may match a stack's full path, so the leaf's axes decide if it is stacked.
        stacked = leaf.axes[0] == "layers"
        layers: list[tuple[int | None, np.ndarray]] = (
            list(enumerate(array)) if stacked else [(None, array)]
        )
        for layer, values in layers:
            key = source(path, layer, part.renames)
            if key is None:
                raise ValueError(f"{path}[{layer}] has no name in the checkpoint")
            stored[key] = _as_torch(path, key, values, part.windows)
    return stored


def diffusers_config(class_name: str, config: Any) -> dict[str, Any]:
    """Return a network's config in diffusers' format."""
    return {"_class_name": class_name, **dataclasses.asdict(config)}


def clip_config(architecture: str, config: ClipConfig) -> dict[str, Any]:
    """Return a CLIP text encoder's config in transformers' format."""
    return {
        "architectures": [architecture],
        "model_type": "clip_text_model",
        **dataclasses.asdict(config),
        "bos_token_id": config.vocab_size - 2,
        "pad_token_id": config.eos_token_id,
    }


def t5_config(architecture: str, model_type: str, config: T5Config) -> dict[str, Any]:
    """Return a T5 encoder's config in transformers' format."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **dataclasses.asdict(config),
        "is_encoder_decoder": False,
        "use_cache": False,
        "tie_word_embeddings": False,
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def gated(renames: Renames) -> Renames:
    """Return T5's renames that prefer the names of the gated feed-forward."""
    name = r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_1\.weight"
    return ((name, r"blocks.feed_forward.up.kernel[\1]"), *renames)


def _as_torch(path: str, key: str, array: np.ndarray, windows: Windows) -> np.ndarray:
    if path.endswith("kernel"):
        array = np.moveaxis(array, (-1, -2), (0, 1))
        axes = next((count for name, count in windows if re.fullmatch(name, key)), 0)
        array = array.reshape(*array.shape, *(1,) * axes)
    return np.ascontiguousarray(array)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
