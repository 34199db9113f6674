"""Single Qwen-Image files, of the transformer or with ComfyUI's keys, give the folder's weights.

The written autoencoder is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import UnsupportedCheckpoint, WeightsError
from models.flow.chat_pipeline import ChatNetworks
from tests.models.flux.original_writer import in_eight_bits
from tests.models.single_files import (
    PREFIXES,
    Tensors,
    assert_all_are_read,
    assert_converted,
    assert_refused,
    assert_scales_are_multiplied,
    assert_the_rest_is_the_bases,
    weights,
    write,
)
from tests.models.vae.original_writer import authors_keys
from tests.parity.tiny_qwenimage import make_qwenimage

WIDE = {"num_layers": 11}
"""Enough blocks for two-digit indices."""
LAYERS = {
    "base_dim": 4,
    "dim_mult": [1, 2, 4, 4],
    "temperal_downsample": [False, True, True],
    "num_res_blocks": 2,
}
"""Published sizes of the autoencoder, the only ones that diffusers' conversion supports."""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwenimage(tmp_path_factory.mktemp("one") / "base", transformer=WIDE, vae=LAYERS)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base folder with other weights, to make networks read from the base recognizable."""
    base = tmp_path_factory.mktemp("other") / "base"
    return make_qwenimage(base, transformer=WIDE, vae=LAYERS, seed=50)


@pytest.fixture(scope="module")
def whole(folder: Path) -> ChatNetworks:
    return weights(folder)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_transformer_file_uses_its_base_for_other_parts(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, prefix: str
) -> None:
    named = {prefix + key: t for key, t in transformer(folder).items()}
    assert_the_rest_is_the_bases(named, other, whole, tmp_path / "qwen_image.safetensors")


def test_all_networks_in_one_file(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path
) -> None:
    assert_all_are_read(all_in_one(folder), other, whole, tmp_path / "all.safetensors")


def test_scaled_8_bit_floats(folder: Path, tmp_path: Path) -> None:
    """Includes the encoder's scales. Torch computes the expected products."""
    packed = in_eight_bits(all_in_one(folder))
    assert any(key.startswith("text_") and key.endswith("scale_weight") for key in packed)
    assert_scales_are_multiplied(packed, folder, tmp_path)


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    file = write({"vae.decoder.conv1.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="no Qwen-Image transformer in it"):
        weights(file, folder)
    assert_refused("transformer_blocks.10.attn.to_q.weight", transformer(folder), folder, tmp_path)


def test_the_marker_of_references_at_time_zero(
    other: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """ComfyUI's file of Edit 2511 has the marker; with a base of another kind it is refused."""
    root, at_zero = tmp_path_factory.mktemp("zero"), {**WIDE, "zero_cond_t": True}
    base = make_qwenimage(root / "base", transformer=at_zero, vae=LAYERS)
    named = transformer(base) | {"__index_timestep_zero__": torch.tensor([])}
    file = write(named, root / "qwen_image_edit_2511.safetensors")
    assert weights(file, base).transformer is not None
    with pytest.raises(WeightsError, match="__index_timestep_zero__"):
        weights(file, other)


def test_the_writer_against_diffusers(folder: Path) -> None:
    network = AutoencoderKLQwenImage.from_pretrained(folder, subfolder="vae")
    convert = single_file_utils.convert_wan_vae_to_diffusers
    assert_converted(convert(authors_vae(folder)), network)
