"""Single files in the community's formats give the same weights as the folder.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.flux.pipeline import FluxNetworks
from tests.models.flux import original_writer as writer
from tests.models.single_files import (
    PREFIXES,
    are_equal,
    assert_all_are_read,
    assert_converted,
    assert_refused,
    assert_scales_are_multiplied,
    assert_the_rest_is_the_bases,
    weights,
    write,
)
from tests.parity.tiny import make_flux

WIDE = {"num_layers": 2, "num_single_layers": 11}
"""Enough blocks for two-digit indices, and an odd number of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux(tmp_path_factory.mktemp("flux") / "base", transformer=WIDE)


@pytest.fixture(scope="module")
def whole(folder: Path) -> FluxNetworks:
    return weights(folder)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_transformer_file_uses_its_base_for_other_parts(
    folder: Path, whole: FluxNetworks, tmp_path: Path, prefix: str
) -> None:
    """The base has other weights, so a transformer read from the base would be noticed."""
    other = make_flux(tmp_path / "other", transformer=WIDE, seed=50)
    named = {prefix + key: t for key, t in writer.transformer(folder / "transformer").items()}
    assert_the_rest_is_the_bases(named, other, whole, tmp_path / "flux1-dev.safetensors")


def test_all_networks_in_one_file(folder: Path, whole: FluxNetworks, tmp_path: Path) -> None:
    other = make_flux(tmp_path / "other", transformer=WIDE, seed=50)
    assert_all_are_read(writer.all_in_one(folder), other, whole, tmp_path / "all.safetensors")


def test_diffusers_own_names_in_one_file(folder: Path, whole: FluxNetworks, tmp_path: Path) -> None:
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    assert are_equal(weights(write(stored, tmp_path / "own.safetensors"), folder), whole)


@pytest.mark.parametrize("name", ["scale_weight", "weight_scale"])
def test_scaled_8_bit_floats_are_multiplied_out(
    folder: Path, whole: FluxNetworks, tmp_path: Path, name: str
) -> None:
    """Torch computes the expected products."""
    packed = writer.in_eight_bits(writer.transformer(folder / "transformer"), name)
    small = assert_scales_are_multiplied(packed, folder, tmp_path, name)
    assert not are_equal(small.transformer, whole.transformer), "8 bits lose something"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_unscaled_8_bit_floats_are_read_unchanged(
    folder: Path, tmp_path: Path, kind: torch.dtype, dtype: str
) -> None:
    stored = writer.transformer(folder / "transformer")
    packed = {key: t.to(kind) if t.ndim == 2 else t for key, t in stored.items()}
    plain = {key: t.float() for key, t in packed.items()}
    small = weights(write(packed, tmp_path / "small.safetensors"), folder)
    assert are_equal(small, weights(write(plain, tmp_path / "plain.safetensors"), folder))


def test_scales_of_rows(folder: Path, tmp_path: Path) -> None:
    stored = writer.transformer(folder / "transformer")
    key = "single_blocks.0.linear1"  # several leaves share this tensor
    scale = torch.linspace(0.5, 2, len(stored[f"{key}.weight"]))[:, None]
    packed = stored[f"{key}.weight"].to(torch.float8_e4m3fn)
    small = stored | {f"{key}.weight": packed, f"{key}.weight_scale": scale}
    plain = stored | {f"{key}.weight": packed.float() * scale}
    assert are_equal(
        weights(write(small, tmp_path / "small.safetensors"), folder),
        weights(write(plain, tmp_path / "plain.safetensors"), folder),
    )


def test_scales_of_blocks_are_refused(folder: Path, tmp_path: Path) -> None:
    stored = writer.in_eight_bits(writer.transformer(folder / "transformer"))
    stored["img_in.scale_weight"] = torch.ones(2, 3)
    file = write(stored, tmp_path / "blocks.safetensors")
    with pytest.raises(CheckpointError, match=r"img_in\.scale_weight has the shape \[2, 3\]"):
        weights(file, folder)


def test_a_file_without_a_transformer_is_refused(folder: Path, tmp_path: Path) -> None:
    file = write({"vae.decoder.conv_in.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="no Flux transformer in it"):
        weights(file, folder)


def test_file_of_another_size_names_the_mismatch(folder: Path, tmp_path: Path) -> None:
    stored = writer.transformer(folder / "transformer")
    stored["img_in.weight"] = torch.zeros(len(stored["img_in.weight"]), 6)
    file = write(stored, tmp_path / "fill.safetensors")
    with pytest.raises(
        CheckpointError, match=r"misshapen: img_in\.weight should be .* is \[\d+, 6\]"
    ):
        weights(file, folder)
    assert_refused("double_blocks.1.txt_attn.qkv.weight", stored, folder, tmp_path)


class TestTheWriterAgainstDiffusers:
    def test_transformer(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Patch `torch.split`: diffusers' conversion has the published width as a constant."""
        split = torch.split

        def in_proportion(tensor: torch.Tensor, sizes: tuple[int, ...], dim: int) -> object:
            return split(tensor, [len(tensor) * size // sum(sizes) for size in sizes], dim)

        monkeypatch.setattr(torch, "split", in_proportion)
        network = FluxTransformer2DModel.from_pretrained(folder, subfolder="transformer")
        convert = single_file_utils.convert_flux_transformer_checkpoint_to_diffusers
        converted = convert(writer.transformer(folder / "transformer"))
        assert_converted(converted, network)

    def test_vae(self, folder: Path) -> None:
        network = AutoencoderKL.from_pretrained(folder, subfolder="vae")
        named = {key: t for key, t in writer.all_in_one(folder).items() if key.startswith("vae.")}
        converted = single_file_utils.convert_ldm_vae_checkpoint(named, dict(network.config))
        for key, tensor in network.state_dict().items():
            assert converted[key].reshape(tensor.shape).equal(tensor), key
