"""Qwen-Image's weights under the keys of the authors and of ComfyUI, for tests."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from tests.models.single_files import Tensors
from tests.models.vae.original_writer import authors_keys


def transformer(folder: Path) -> Tensors:
    return load_file(folder / "transformer/diffusion_pytorch_model.safetensors")


def authors_vae(folder: Path) -> Tensors:
    """Return the autoencoder's arrays under the authors' keys."""
    stored = load_file(folder / "vae/diffusion_pytorch_model.safetensors")
    return authors_keys(stored)


def all_in_one(folder: Path) -> Tensors:
    """Return the arrays of ComfyUI's complete checkpoints."""
    text = load_file(folder / "text_encoder/model.safetensors")
    prefix = "text_encoders.qwen25_7b.transformer."
    return {
        **{f"model.diffusion_model.{key}": t for key, t in transformer(folder).items()},
        **{prefix + key.replace("model.language_model", "model"): t for key, t in text.items()},
        **{f"vae.{key}": t for key, t in authors_vae(folder).items()},
    }
