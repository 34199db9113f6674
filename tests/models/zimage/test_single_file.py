"""Single Z-Image files with ComfyUI's keys give the same weights as the folder.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from diffusers import ZImageTransformer2DModel
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import UnsupportedCheckpoint
from models.flow.chat_pipeline import ChatNetworks
from tests.models.flux.original_writer import in_eight_bits
from tests.models.sdxl.original_writer import vae
from tests.models.single_files import (
    PREFIXES,
    Tensors,
    are_equal,
    assert_all_are_read,
    assert_converted,
    assert_refused,
    assert_scales_are_multiplied,
    assert_the_rest_is_the_bases,
    weights,
    write,
)
from tests.parity.tiny_zimage import make_zimage

WIDE = {"n_layers": 11}
"""Enough blocks for two-digit indices."""
NAMES = (
    ("all_final_layer.2-1.", "final_layer."),
    ("all_x_embedder.2-1.", "x_embedder."),
    (".attention.to_out.0.", ".attention.out."),
    (".attention.norm_q.", ".attention.q_norm."),
    (".attention.norm_k.", ".attention.k_norm."),
)
"""Parts of diffusers' names, with ComfyUI's equivalents."""


def comfys(folder: Path) -> Tensors:
    """Return the transformer's arrays under ComfyUI's keys."""
    renamed: Tensors = {"norm_final.weight": torch.ones(3)}
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    for key, tensor in stored.items():
        match = re.fullmatch(r"(.+\.attention\.)to_([qkv])\.weight", key)
        if match is None:
            for part, original in NAMES:
                key = key.replace(part, original)
            renamed[key] = tensor
        elif match[2] == "q":
            parts = [stored[f"{match[1]}to_{letter}.weight"] for letter in "qkv"]
            renamed[f"{match[1]}qkv.weight"] = torch.cat(parts)
    return renamed


def all_in_one(folder: Path) -> Tensors:
    """Return the arrays of ComfyUI's complete checkpoints."""
    text = load_file(folder / "text_encoder/model.safetensors")
    return {
        **{f"model.diffusion_model.{key}": t for key, t in comfys(folder).items()},
        **{f"text_encoders.qwen3_4b.transformer.model.{key}": t for key, t in text.items()},
        **{f"vae.{key}": t for key, t in vae(folder / "vae").items()},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_zimage(tmp_path_factory.mktemp("zimage") / "base", transformer=WIDE)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base folder with other weights, to make networks read from the base recognizable."""
    return make_zimage(tmp_path_factory.mktemp("other") / "base", transformer=WIDE, seed=50)


@pytest.fixture(scope="module")
def whole(folder: Path) -> ChatNetworks:
    return weights(folder)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_transformer_file_uses_its_base_for_other_parts(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, prefix: str
) -> None:
    named = {prefix + key: t for key, t in comfys(folder).items()}
    assert_the_rest_is_the_bases(named, other, whole, tmp_path / "z_image_turbo.safetensors")


def test_all_networks_in_one_file(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path
) -> None:
    assert_all_are_read(all_in_one(folder), other, whole, tmp_path / "all.safetensors")


def test_diffusers_own_names(folder: Path, whole: ChatNetworks, tmp_path: Path) -> None:
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    assert are_equal(weights(write(stored, tmp_path / "own.safetensors"), folder), whole)


def test_scaled_8_bit_floats(folder: Path, tmp_path: Path) -> None:
    """Includes a fused layer. Torch computes the expected products."""
    packed = in_eight_bits(comfys(folder))
    assert_scales_are_multiplied(packed, folder, tmp_path)


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    file = write({"vae.decoder.conv_in.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="no Z-Image transformer in it"):
        weights(file, folder)
    assert_refused("layers.10.attention.qkv.weight", comfys(folder), folder, tmp_path)


def test_the_writer_against_diffusers(folder: Path) -> None:
    network = ZImageTransformer2DModel.from_pretrained(folder, subfolder="transformer")
    convert = single_file_utils.convert_z_image_transformer_checkpoint_to_diffusers
    assert_converted(convert(comfys(folder)), network)
