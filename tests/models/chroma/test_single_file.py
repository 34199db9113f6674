"""Single files of Chroma give the same weights as the folder, and unsupported configs are refused.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ChromaTransformer2DModel
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import UnsupportedCheckpoint
from models.chroma.config import ChromaConfig
from tests.models.chroma import original_writer as writer
from tests.models.single_files import (
    are_equal,
    assert_converted,
    assert_refused,
    assert_the_rest_is_the_bases,
    weights,
    write,
)
from tests.parity.tiny_chroma import make_chroma

WIDE = {"num_layers": 1, "num_single_layers": 11}
"""Enough blocks for two-digit indices."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chroma(tmp_path_factory.mktemp("chroma") / "base", transformer=WIDE)


def test_transformer_file_uses_its_base_for_other_parts(folder: Path, tmp_path: Path) -> None:
    """The base has other weights, so a transformer read from the base would be noticed."""
    other = make_chroma(tmp_path / "other", transformer=WIDE, seed=50)
    named = {f"model.diffusion_model.{key}": t for key, t in writer.transformer(folder).items()}
    assert_the_rest_is_the_bases(named, other, weights(folder), tmp_path / "chroma.safetensors")


def test_diffusers_own_names_in_one_file(folder: Path, tmp_path: Path) -> None:
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    file = write(stored, tmp_path / "own.safetensors")
    assert are_equal(weights(file, folder), weights(folder))


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    file = write({"vae.decoder.conv_in.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="no Chroma transformer in it"):
        weights(file, folder)
    for key in ("single_blocks.10.linear1.weight", "distilled_guidance_layer.norms.1.scale"):
        assert_refused(key, writer.transformer(folder), folder, tmp_path)


def test_the_writer_against_diffusers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch `torch.split`: diffusers' conversion has the published width as a constant."""
    split = torch.split

    def in_proportion(tensor: torch.Tensor, sizes: tuple[int, ...], dim: int) -> object:
        return split(tensor, [len(tensor) * size // sum(sizes) for size in sizes], dim)

    monkeypatch.setattr(torch, "split", in_proportion)
    network = ChromaTransformer2DModel.from_pretrained(folder, subfolder="transformer")
    convert = single_file_utils.convert_chroma_transformer_checkpoint_to_diffusers
    assert_converted(convert(writer.transformer(folder)), network)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"approximator_num_channels": 66}, "approximator_num_channels"),
        ({"out_channels": 128}, "out_channels"),
        ({"patch_size": 2}, "patch_size"),
        ({"axes_dims_rope": [16, 56, 58]}, "axes_dims_rope"),
        ({"approximator_layers": -1}, "approximator_layers"),
    ],
    ids=str,
)
def test_unsupported_configs_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ChromaConfig.from_dict(values)
