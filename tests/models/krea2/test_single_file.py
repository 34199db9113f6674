"""Single Krea 2 files with the authors' keys give the same weights as the folder.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import Krea2Transformer2DModel
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import UnsupportedCheckpoint
from models.flow.chat_pipeline import ChatNetworks
from tests.models.single_files import (
    PREFIXES,
    Tensors,
    are_equal,
    assert_converted,
    assert_refused,
    assert_the_rest_is_the_bases,
    weights,
    write,
)
from tests.parity.tiny_krea2 import make_krea2

WIDE = {"num_layers": 11}
"""Enough blocks for two-digit indices."""
BLOCK_NAMES = (
    *((f".attn.to_{letter}.", f".attn.w{letter}.") for letter in "qkv"),
    (".attn.to_out.0.", ".attn.wo."),
    (".attn.to_gate.", ".attn.gate."),
    (".attn.norm_q.weight", ".attn.qknorm.qnorm.scale"),
    (".attn.norm_k.weight", ".attn.qknorm.knorm.scale"),
    (".ff.", ".mlp."),
    (".norm1.weight", ".prenorm.scale"),
    (".norm2.weight", ".postnorm.scale"),
)
"""Parts of diffusers' names in a block, with the authors' equivalents."""
NAMES = (
    ("img_in.", "first."),
    ("time_embed.linear_1.", "tmlp.0."),
    ("time_embed.linear_2.", "tmlp.2."),
    ("time_mod_proj.", "tproj.1."),
    ("txt_in.norm.weight", "txtmlp.0.scale"),
    ("txt_in.linear_1.", "txtmlp.1."),
    ("txt_in.linear_2.", "txtmlp.3."),
    ("text_fusion.", "txtfusion."),
    ("final_layer.linear.", "last.linear."),
    ("final_layer.norm.weight", "last.norm.scale"),
    ("final_layer.scale_shift_table", "last.modulation.lin"),
)


def authors(folder: Path) -> Tensors:
    """Return the transformer's arrays under the authors' keys."""
    renamed: Tensors = {}
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    for key, tensor in stored.items():
        for name, original in NAMES:
            key = key.replace(name, original) if key.startswith(name) else key
        for name, original in BLOCK_NAMES:
            key = key.replace(name, original)
        if key.endswith(".scale_shift_table"):
            key, tensor = key.replace("scale_shift_table", "mod.lin"), tensor.flatten()
        renamed[key.replace("transformer_blocks.", "blocks.")] = tensor
    return renamed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_krea2(tmp_path_factory.mktemp("krea2") / "base", transformer=WIDE)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base folder with other weights, to make networks read from the base recognizable."""
    return make_krea2(tmp_path_factory.mktemp("other") / "base", transformer=WIDE, seed=50)


@pytest.fixture(scope="module")
def whole(folder: Path) -> ChatNetworks:
    return weights(folder)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_transformer_file_uses_its_base_for_other_parts(
    folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, prefix: str
) -> None:
    named = {prefix + key: t for key, t in authors(folder).items()}
    assert_the_rest_is_the_bases(named, other, whole, tmp_path / "krea2_turbo.safetensors")


def test_diffusers_own_names(folder: Path, whole: ChatNetworks, tmp_path: Path) -> None:
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    assert are_equal(weights(write(stored, tmp_path / "own.safetensors"), folder), whole)


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    file = write({"vae.decoder.conv_in.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="no Krea 2 transformer in it"):
        weights(file, folder)
    assert_refused("blocks.10.attn.wq.weight", authors(folder), folder, tmp_path)
    assert_refused("blocks.10.mod.lin", authors(folder), folder, tmp_path)


def test_the_writer_against_diffusers(folder: Path) -> None:
    network = Krea2Transformer2DModel.from_pretrained(folder, subfolder="transformer")
    convert = single_file_utils.convert_krea2_transformer_checkpoint_to_diffusers
    assert_converted(convert(authors(folder)), network)
