"""Single files with the authors' or ComfyUI's keys give the same weights as a folder.

The writers of these files are themselves compared with diffusers' own conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    Flux2Transformer2DModel,
    Krea2Transformer2DModel,
    ZImageTransformer2DModel,
)
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from models.checkpoint.folder import UnsupportedCheckpoint, WeightsError
from models.flow.chat_pipeline import ChatNetworks
from tests.models.flux.original_writer import in_eight_bits
from tests.models.flux2 import original_writer as flux2
from tests.models.krea2 import original_writer as krea2
from tests.models.qwenimage import original_writer as qwenimage
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
from tests.models.zimage import original_writer as zimage
from tests.parity.tiny_flux2 import make_flux2, make_flux2_dev
from tests.parity.tiny_krea2 import make_krea2
from tests.parity.tiny_qwenimage import make_qwenimage
from tests.parity.tiny_zimage import make_zimage

LAYERS = {
    "base_dim": 4,
    "dim_mult": [1, 2, 4, 4],
    "temperal_downsample": [False, True, True],
    "num_res_blocks": 2,
}
"""Published sizes of Qwen-Image's autoencoder, the only ones that diffusers' conversion
supports."""


@dataclass(frozen=True)
class Family:
    """A family's files, written from a folder with enough blocks for two-digit indices."""

    make: Callable[..., Path]
    sizes: dict[str, Any]
    file: str
    """Published name of a file of the transformer."""
    transformer: Callable[[Path], Tensors]
    """Returns the transformer's arrays under the file's keys."""
    missing: tuple[str, ...]
    """Keys without any of which a file is refused."""
    of_autoencoder: str
    name: str
    convert: Callable[[Tensors], Tensors]
    """Diffusers' conversion of the written `converted` network."""
    network: Any
    component: str = "transformer"
    converted: Callable[[Path], Tensors] | None = None
    all_in_one: dict[str, Callable[[Path], Tensors]] = field(default_factory=dict)
    """Return the arrays of complete checkpoints."""
    eight_bits: dict[str, Callable[[Path], Tensors]] = field(default_factory=dict)
    """Return the arrays to be stored in 8 bits, fused layers among them."""


def of_flux2(folder: Path) -> Tensors:
    return flux2.transformer(folder / "transformer")


def stored(folder: Path) -> Tensors:
    return load_file(folder / "transformer/diffusion_pytorch_model.safetensors")


FAMILIES = {
    "zimage": Family(
        make_zimage,
        {"transformer": {"n_layers": 11}},
        "z_image_turbo.safetensors",
        zimage.transformer,
        ("layers.10.attention.qkv.weight",),
        "vae.decoder.conv_in.weight",
        "Z-Image",
        single_file_utils.convert_z_image_transformer_checkpoint_to_diffusers,
        ZImageTransformer2DModel,
        all_in_one={"qwen3_4b": zimage.all_in_one},
        eight_bits={"comfys": zimage.transformer},
    ),
    "flux2": Family(
        make_flux2,
        {"transformer": {"num_single_layers": 11}},
        "flux-2-klein-4b.safetensors",
        of_flux2,
        ("single_blocks.10.linear1.weight",),
        "vae.bn.running_mean",
        r"FLUX\.2",
        single_file_utils.convert_flux2_transformer_checkpoint_to_diffusers,
        Flux2Transformer2DModel,
        all_in_one={
            "qwen3_4b": lambda folder: flux2.all_in_one(folder, flux2.vae(folder / "vae")),
            # the latents' convolutions are separate from encoder and decoder
            "qwen3_8b": lambda folder: flux2.all_in_one(
                folder, plain_vae(folder / "vae"), "qwen3_8b"
            ),
        },
        eight_bits={"authors": of_flux2, "diffusers": stored},
    ),
    "krea2": Family(
        make_krea2,
        {"transformer": {"num_layers": 11}},
        "krea2_turbo.safetensors",
        krea2.transformer,
        ("blocks.10.attn.wq.weight", "blocks.10.mod.lin"),
        "vae.decoder.conv_in.weight",
        "Krea 2",
        single_file_utils.convert_krea2_transformer_checkpoint_to_diffusers,
        Krea2Transformer2DModel,
    ),
    "qwenimage": Family(
        make_qwenimage,
        {"transformer": {"num_layers": 11}, "vae": LAYERS},
        "qwen_image.safetensors",
        qwenimage.transformer,
        ("transformer_blocks.10.attn.to_q.weight",),
        "vae.decoder.conv1.weight",
        "Qwen-Image",
        single_file_utils.convert_wan_vae_to_diffusers,
        AutoencoderKLQwenImage,
        component="vae",
        converted=qwenimage.authors_vae,
        all_in_one={"qwen25_7b": qwenimage.all_in_one},
        eight_bits={"with the encoder": qwenimage.all_in_one},
    ),
}


def cases(*values: str) -> pytest.MarkDecorator:
    """Return the parameters (family, value) of a test: the values, or those named by fields."""
    pairs = [
        (name, value)
        for name, family in FAMILIES.items()
        for named in values
        for value in (getattr(family, named) if named in ("all_in_one", "eight_bits") else [named])
    ]
    return pytest.mark.parametrize(("family", "case"), pairs, indirect=["family"], scope="module")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family.make(tmp_path_factory.mktemp("one") / "base", **family.sizes)


@pytest.fixture(scope="module")
def other(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base folder with other weights, to make networks read from the base recognizable."""
    return family.make(tmp_path_factory.mktemp("other") / "base", **family.sizes, seed=50)


@pytest.fixture(scope="module")
def whole(folder: Path) -> ChatNetworks:
    return weights(folder)


@cases(*PREFIXES)
def test_transformer_file_uses_its_base_for_other_parts(
    family: Family, folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, case: str
) -> None:
    named = {case + key: t for key, t in family.transformer(folder).items()}
    assert_the_rest_is_the_bases(named, other, whole, tmp_path / family.file)


@cases("all_in_one")
def test_all_networks_in_one_file(
    family: Family, folder: Path, other: Path, whole: ChatNetworks, tmp_path: Path, case: str
) -> None:
    tensors = family.all_in_one[case](folder)
    assert_all_are_read(tensors, other, whole, tmp_path / "all.safetensors")


def test_all_networks_of_dev_in_one_file(tmp_path: Path) -> None:
    """ComfyUI's files also contain the tokenizer, and lack the encoder's last layers."""
    folder, other = (make_flux2_dev(tmp_path / str(seed), seed=seed) for seed in (0, 50))
    tensors = {
        **flux2.all_in_one(folder, flux2.vae(folder / "vae"), "mistral3_24b"),
        "tekken_model": torch.zeros(3, dtype=torch.uint8),
    }
    read = {key: t for key, t in tensors.items() if ".layers.30." not in key}
    assert len(read) < len(tensors) and "model.diffusion_model.guidance_in.in_layer.weight" in read
    assert_all_are_read(read, other, weights(folder), tmp_path / "all.safetensors")


@pytest.mark.parametrize("family", ["zimage", "flux2", "krea2"], indirect=True, scope="module")
def test_diffusers_own_names(folder: Path, whole: ChatNetworks, tmp_path: Path) -> None:
    file = write(stored(folder), tmp_path / "own.safetensors")
    assert are_equal(weights(file, folder), whole)


@cases("eight_bits")
def test_scaled_8_bit_floats(family: Family, folder: Path, tmp_path: Path, case: str) -> None:
    """Includes scales of fused layers and of encoders. Torch computes the expected products."""
    packed = in_eight_bits(tensors := family.eight_bits[case](folder))
    has_encoder = any(key.startswith("text_") for key in tensors)
    assert has_encoder == any(
        key.startswith("text_") and key.endswith("scale_weight") for key in packed
    )
    assert_scales_are_multiplied(packed, folder, tmp_path)


def test_files_that_do_not_fit_are_refused(family: Family, folder: Path, tmp_path: Path) -> None:
    file = write({family.of_autoencoder: torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match=f"no {family.name} transformer in it"):
        weights(file, folder)
    for key in family.missing:
        assert_refused(key, family.transformer(folder), folder, tmp_path)


def test_the_marker_of_references_at_time_zero(tmp_path: Path) -> None:
    """ComfyUI's file of Edit 2511 has the marker; with a base of another kind it is refused."""
    sizes = FAMILIES["qwenimage"].sizes
    at_zero = {**sizes, "transformer": {**sizes["transformer"], "zero_cond_t": True}}
    other, base = (
        make_qwenimage(tmp_path / name, **of) for name, of in (("other", sizes), ("base", at_zero))
    )
    named = stored(base) | {"__index_timestep_zero__": torch.tensor([])}
    file = write(named, tmp_path / "qwen_image_edit_2511.safetensors")
    assert weights(file, base).transformer is not None
    with pytest.raises(WeightsError, match="__index_timestep_zero__"):
        weights(file, other)


def test_the_writer_against_diffusers(family: Family, folder: Path) -> None:
    network = family.network.from_pretrained(folder, subfolder=family.component)
    converted = family.converted or family.transformer
    assert_converted(family.convert(converted(folder)), network)


@pytest.mark.parametrize("original", [True, False], ids=["authors' keys", "diffusers' keys"])
def test_a_smaller_decoder_in_a_vae_file(original: bool, tmp_path: Path) -> None:
    """The config is the base's; FLUX.2-small-decoder is shared as a single file, too."""
    folder = make_flux2(tmp_path / "base")
    smaller = {"decoder_block_out_channels": (4, 8, 12)}
    small = make_flux2(tmp_path / "small", vae=smaller, seed=50)
    stored_vae = small / "vae/diffusion_pytorch_model.safetensors"
    tensors = flux2.vae(small / "vae") if original else load_file(stored_vae)
    file = write(tensors, tmp_path / "full_encoder_small_decoder.safetensors")
    loaded = weights(folder, parts={"vae": str(file)})
    assert are_equal(loaded.vae, weights(small).vae)
