"""Single FLUX.2 files with the authors' keys give the same weights as the folder.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import Flux2Transformer2DModel
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import UnsupportedCheckpoint
from models.flow.chat_pipeline import ChatNetworks
from tests.models.flux.original_writer import in_eight_bits
from tests.models.flux2.original_writer import transformer, vae
from tests.models.sdxl.original_writer import vae as plain_vae
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
from tests.parity.tiny_flux2 import make_flux2, make_flux2_dev

WIDE = {"num_single_layers": 11}
"""Enough blocks for two-digit indices."""
SMALL = (4, 8, 12)
"""Widths of a decoder that is smaller than its encoder."""
WEIGHTS = "diffusion_pytorch_model.safetensors"
LANGUAGE_MODEL = "language_model.model."
OTHER_KEYS = ("vision_tower.", "multi_modal_projector.", "language_model.lm_head.")
"""Beginnings of keys of a Mistral Small 3."""


def all_in_one(folder: Path, autoencoder: Tensors, encoder: str = "qwen3_4b") -> Tensors:
    """Return the arrays of ComfyUI's complete checkpoints."""
    text = load_file(folder / "text_encoder/model.safetensors")
    of_transformer = transformer(folder / "transformer")
    return {
        **{f"model.diffusion_model.{key}": t for key, t in of_transformer.items()},
        **{
            f"text_encoders.{encoder}.transformer.model.{key.removeprefix(LANGUAGE_MODEL)}": t
            for key, t in text.items()
            if not key.startswith(OTHER_KEYS)
        },
        **{f"vae.{key}": t for key, t in autoencoder.items()},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux2(tmp_path_factory.mktemp("flux2") / "base", transformer=WIDE)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base folder with other weights, to make networks read from the base recognizable."""
    return make_flux2(tmp_path_factory.mktemp("other") / "base", transformer=WIDE, seed=50)


@pytest.fixture(scope="module")
def whole(folder: Path) -> ChatNetworks:
    return weights(folder)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_transformer_file_uses_its_base_for_other_parts(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, prefix: str
) -> None:
    named = {prefix + key: t for key, t in transformer(folder / "transformer").items()}
    assert_the_rest_is_the_bases(named, other, whole, tmp_path / "flux-2-klein-4b.safetensors")


@pytest.mark.parametrize("original", [True, False], ids=["authors' keys", "diffusers' keys"])
def test_a_smaller_decoder_in_a_vae_file(original: bool, folder: Path, tmp_path: Path) -> None:
    """The config is the base's; FLUX.2-small-decoder is shared as a single file, too."""
    smaller = {"decoder_block_out_channels": SMALL}
    small = make_flux2(tmp_path / "small", transformer=WIDE, vae=smaller, seed=50)
    tensors = vae(small / "vae") if original else load_file(small / "vae" / WEIGHTS)
    file = write(tensors, tmp_path / "full_encoder_small_decoder.safetensors")
    loaded = weights(folder, parts={"vae": str(file)})
    assert are_equal(loaded.vae, weights(small).vae)


@pytest.mark.parametrize("encoder", ["qwen3_4b", "qwen3_8b"])
def test_all_networks_in_one_file(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, encoder: str
) -> None:
    """The latents' convolutions are inside encoder and decoder, or separate from them."""
    autoencoder = (vae if encoder == "qwen3_4b" else plain_vae)(folder / "vae")
    tensors = all_in_one(folder, autoencoder, encoder)
    assert_all_are_read(tensors, other, whole, tmp_path / "all.safetensors")


def test_all_networks_of_dev_in_one_file(tmp_path: Path) -> None:
    """ComfyUI's files also contain the tokenizer, and lack the encoder's last layers."""
    folder, other = (make_flux2_dev(tmp_path / str(seed), seed=seed) for seed in (0, 50))
    tensors = {
        **all_in_one(folder, vae(folder / "vae"), "mistral3_24b"),
        "tekken_model": torch.zeros(3, dtype=torch.uint8),
    }
    read = {key: t for key, t in tensors.items() if ".layers.30." not in key}
    assert len(read) < len(tensors) and "model.diffusion_model.guidance_in.in_layer.weight" in read
    assert_all_are_read(read, other, weights(folder), tmp_path / "all.safetensors")


def test_diffusers_own_names(folder: Path, whole: ChatNetworks, tmp_path: Path) -> None:
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    assert are_equal(weights(write(stored, tmp_path / "own.safetensors"), folder), whole)


@pytest.mark.parametrize("kind", ["authors", "diffusers"])
def test_scaled_8_bit_floats(folder: Path, tmp_path: Path, kind: str) -> None:
    """Includes the scales of fused layers. Torch computes the expected products."""
    component = folder / "transformer"
    stored = load_file(component / "diffusion_pytorch_model.safetensors")
    packed = in_eight_bits(transformer(component) if kind == "authors" else stored)
    assert_scales_are_multiplied(packed, folder, tmp_path)


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    file = write({"vae.bn.running_mean": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match=r"no FLUX\.2 transformer in it"):
        weights(file, folder)
    assert_refused(
        "single_blocks.10.linear1.weight", transformer(folder / "transformer"), folder, tmp_path
    )


def test_the_writer_against_diffusers(folder: Path) -> None:
    network = Flux2Transformer2DModel.from_pretrained(folder, subfolder="transformer")
    convert = single_file_utils.convert_flux2_transformer_checkpoint_to_diffusers
    assert_converted(convert(transformer(folder / "transformer")), network)
