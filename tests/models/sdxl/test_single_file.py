"""One SDXL file with the original keys gives the same parameters as diffusers' folder.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.loaders import single_file_utils
from flax import nnx
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModelWithProjection

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint, WeightsError
from models.checkpoint.key_mapping import Target, target
from models.checkpoint.single_file import NetworkFile
from models.loading.abstract import abstract_module
from models.sdxl import single_file
from models.sdxl.compatibility import Parts
from models.sdxl.config import UNetConfig
from models.sdxl.key_mapping import RENAMES
from models.sdxl.network import UNet
from models.sdxl.single_file_keys import unet_renames
from models.text import clip
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL as Vae
from models.vae.key_mapping import RENAMES as VAE_RENAMES
from models.weights.loader import flat_parameters, load
from tests.models.sdxl.original_writer import unet as original_unet
from tests.models.sdxl.original_writer import write_original, write_refiner
from tests.models.sdxl.test_config import SDXL_BASE
from tests.models.single_files import write
from tests.parity.tiny_sdxl import make_refiner, make_sdxl

LAYOUT: dict[str, Any] = {
    "unet": {
        "in_channels": 9,
        "block_out_channels": (4, 8, 12),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 2,
        "transformer_layers_per_block": (1, 1, 2),
        "attention_head_dim": (1, 2, 3),
        "use_linear_projection": False,
    },
    "vae": {"block_out_channels": (4, 8, 12), "layers_per_block": 2},
}
"""Block numbering equal to SDXL's, with the channels of inpainting."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sdxl(tmp_path_factory.mktemp("sdxl"), **LAYOUT)


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return write_original(folder, folder / "all_in_one.safetensors")


def config_of(folder: Path, component: str) -> dict[str, Any]:
    return json.loads((folder / component / "config.json").read_text())


@cache
def abstract(folder: Path) -> dict[str, nnx.Module]:
    """Abstract modules by component. The base of an inpainting fine-tune has four channels."""
    texts = [clip.ClipConfig.from_dict(config_of(folder, f"text_encoder{n}")) for n in ("", "_2")]
    return {
        "unet": abstract_module(UNet, UNetConfig.from_dict(config_of(folder, "unet"))),
        "vae": abstract_module(Vae, VaeConfig.from_dict(config_of(folder, "vae"))),
        "text_encoder": abstract_module(clip.ClipTextModel, texts[0]),
        "text_encoder_2": abstract_module(clip.ClipTextModelWithProjection, texts[1]),
    }


def components(folder: Path, file: Path) -> dict[str, NetworkFile]:
    base = config_of(folder, "unet") | {"in_channels": 4}
    unet = UNetConfig.from_dict(single_file.unet_config(file, base))
    vae = VaeConfig.from_dict(config_of(folder, "vae"))
    text, text_2 = (
        clip.ClipConfig.from_dict(config_of(folder, f"text_encoder{n}")) for n in ("", "_2")
    )
    return dict(single_file.components(file, Parts(unet, text, text_2, vae)))


@pytest.mark.parametrize("name", ["unet", *single_file.PREFIXES])
def test_every_parameter_is_the_folders(folder: Path, file: Path, name: str) -> None:
    tables = {"unet": RENAMES, "vae": VAE_RENAMES}
    module = abstract(folder)[name]
    expected = load(module, folder / name, tables.get(name, clip.RENAMES), dtype=jnp.float32)
    output = load(module, *components(folder, file)[name], dtype=jnp.float32)
    pairs = flat_parameters(expected), flat_parameters(output)
    assert pairs[0].keys() == pairs[1].keys()
    for path, leaf in pairs[0].items():
        np.testing.assert_array_equal(pairs[1][path].get_value(), leaf.get_value(), err_msg=path)


class TestTheWriterAgainstDiffusers:
    """Comparison with the conversions of diffusers' `from_single_file`."""

    def check(self, converted: dict[str, torch.Tensor], network: torch.nn.Module) -> None:
        expected = network.state_dict()
        assert converted.keys() == expected.keys()
        for key, tensor in expected.items():
            assert converted[key].reshape(tensor.shape).equal(tensor), key

    def test_unet(self, folder: Path, file: Path) -> None:
        network = UNet2DConditionModel.from_pretrained(folder, subfolder="unet")
        config = dict(network.config)
        self.check(single_file_utils.convert_ldm_unet_checkpoint(load_file(file), config), network)

    def test_vae(self, folder: Path, file: Path) -> None:
        network = AutoencoderKL.from_pretrained(folder, subfolder="vae")
        config = dict(network.config)
        self.check(single_file_utils.convert_ldm_vae_checkpoint(load_file(file), config), network)

    def test_second_text_encoder(self, folder: Path, file: Path) -> None:
        network = CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2")
        converted = single_file_utils.convert_open_clip_checkpoint(
            network, load_file(file), prefix="conditioner.embedders.1.model."
        )
        self.check(in_names_of(network, converted), network)

    def test_first_text_encoder(self, folder: Path, file: Path) -> None:
        stored = load_file(folder / "text_encoder/model.safetensors")
        converted = single_file_utils.convert_ldm_clip_checkpoint(load_file(file))
        short = {key.removeprefix("text_model."): t for key, t in converted.items()}
        for key, tensor in stored.items():
            assert short[key.removeprefix("text_model.")].equal(tensor), key


def in_names_of(
    network: torch.nn.Module, converted: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Rename diffusers' CLIP arrays to the network's keys, with or without `text_model.`.

    diffusers follows transformers 4; version 5 omits the prefix.
    """
    names = {key.removeprefix("text_model."): key for key in network.state_dict()}
    return {names[key.removeprefix("text_model.")]: t for key, t in converted.items()}


@pytest.mark.parametrize(
    ("key", "path", "layer"),
    [
        ("input_blocks.0.0.weight", "conv_in.kernel", None),
        ("input_blocks.3.0.op.bias", "down_blocks.0.downsample.bias", None),
        (
            "input_blocks.4.0.skip_connection.weight",
            "down_blocks.1.resnets.0.conv_shortcut.kernel",
            None,
        ),
        (
            "input_blocks.7.1.transformer_blocks.9.attn2.to_k.weight",
            "down_blocks.2.attentions.0.layers.attn2.k.kernel",
            9,
        ),
        ("middle_block.1.proj_in.weight", "mid_block.attentions.0.proj_in.kernel", None),
        ("middle_block.2.out_layers.0.weight", "mid_block.resnets.1.norm2.scale", None),
        ("output_blocks.2.2.conv.weight", "up_blocks.0.upsample.kernel", None),
        ("output_blocks.5.2.conv.weight", "up_blocks.1.upsample.kernel", None),
        ("output_blocks.8.0.emb_layers.1.bias", "up_blocks.2.resnets.2.time_emb_proj.bias", None),
        ("label_emb.0.2.bias", "add_embedding.linear_2.bias", None),
    ],
)
def test_keys_of_sdxl_base(key: str, path: str, layer: int | None) -> None:
    goal = target(key, unet_renames(UNetConfig.from_dict(SDXL_BASE)))
    assert isinstance(goal, Target)
    assert (goal.path, goal.layer) == (path, layer)


def test_faults_are_named_as_in_the_file(folder: Path, file: Path, tmp_path: Path) -> None:
    tensors = load_file(file)
    prefix = "conditioner.embedders.1.model."
    del tensors[f"{prefix}transformer.resblocks.1.attn.in_proj_bias"]
    tensors[f"{prefix}text_projection"] = tensors[f"{prefix}text_projection"].T.contiguous()
    tensors[f"{prefix}transformer.resblocks.0.attn.in_proj_weight"] = torch.zeros(85, 28)
    tensors[f"{prefix}visual.proj"] = torch.zeros(2)
    save_file(tensors, tmp_path / "broken.safetensors")
    part = components(folder, tmp_path / "broken.safetensors")["text_encoder_2"]
    with pytest.raises(WeightsError) as raised:
        load(abstract(folder)["text_encoder_2"], *part, dtype=jnp.float32)
    error = raised.value
    assert error.component == "text_encoder_2 in broken.safetensors"
    assert error.missing == (f"{prefix}transformer.resblocks.1.attn.in_proj_bias",)
    assert error.stray == (f"{prefix}visual.proj",)
    assert set(error.misshapen) == {
        (f"{prefix}text_projection", (28, 21), (21, 28)),
        (f"{prefix}transformer.resblocks.0.attn.in_proj_weight", (84, 28), (85, 28)),
    }


def test_sdxl_is_detected(file: Path) -> None:
    assert single_file.check(file) == ("model.diffusion_model.", single_file.ORIGINAL)
    assert single_file.absent(file) == ()


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "diffusion_model.", ""])
@pytest.mark.parametrize("names", ["original", "diffusers"])
def test_unet_only(folder: Path, tmp_path: Path, prefix: str, names: str) -> None:
    """Files of ComfyUI's diffusion_models, and of SDXL-Lightning's UNet."""
    stored = load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
    named = original_unet(folder / "unet") if names == "original" else stored
    file = write({prefix + key: t for key, t in named.items()}, tmp_path / "unet.safetensors")
    assert single_file.absent(file) == (*single_file.PREFIXES,)
    (name, part), *others = components(folder, file).items()
    assert name == "unet" and not others
    module = abstract(folder)["unet"]
    expected = flat_parameters(load(module, folder / "unet", RENAMES, dtype=jnp.float32))
    for path, leaf in flat_parameters(load(module, *part, dtype=jnp.float32)).items():
        np.testing.assert_array_equal(leaf.get_value(), expected[path].get_value(), err_msg=path)


@pytest.mark.parametrize(
    ("mark", "said"), [("edm_mean", "Playground 2.5"), ("edm_vpred.sigma_max", "CosXL")]
)
def test_an_sdxl_of_another_training_is_refused(
    file: Path, tmp_path: Path, mark: str, said: str
) -> None:
    """The file has all parts of SDXL. Only the marker shows that no scheduler fits."""
    other = tmp_path / "other.safetensors"
    save_file(load_file(file) | {mark: torch.tensor(80.0)}, other)
    with pytest.raises(UnsupportedCheckpoint, match=said):
        single_file.check(other)


def test_single_file_markers_set_the_prediction_type(tmp_path: Path) -> None:
    base = {"prediction_type": "epsilon", "beta_start": 0.00085}
    for marks, changes in (
        (["x"], {}),
        (["v_pred"], {"prediction_type": "v_prediction"}),
        (["v_pred", "ztsnr"], {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}),
    ):
        save_file({mark: torch.zeros(0) for mark in marks}, tmp_path / "marked.safetensors")
        assert single_file.scheduler_config(tmp_path / "marked.safetensors", base) == base | changes


LAYER = "model.diffusion_model.input_blocks.1.0.in_layers.0.weight"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            ["cond_stage_model.transformer.text_model.final_layer_norm.bias", LAYER],
            "Diffusion 1 or 2",
        ),
        (["model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale"], "a Flux .*folder"),
        (["lora_unet_input_blocks_4_1_proj_in.lora_down.weight"], "a LoRA.*fuse_lora"),
        (["unet.down_blocks.1.attentions.0.proj_in.lora_A.weight"], "a LoRA.*fuse_lora"),
        (["conditioner.embedders.1.model.ln_final.bias"], "no UNet in it"),
        ([*single_file.ORIGINAL[:2], "input_hint_block.0.weight"], "no UNet in it"),
        (["controlnet_cond_embedding.conv_in.bias", *single_file.DIFFUSERS[:2]], "no UNet in it"),
        (["down_blocks.0.resnets.0.conv1.weight"], "complete folder"),
        (["model.diffusion_model.joint_blocks.0.x_block.mlp.fc1.bias"], "Stable Diffusion 3"),
        (["edm_mean", LAYER], "Playground 2.5"),
        (["something.else"], "not an SDXL checkpoint"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, keys: list[str], said: str) -> None:
    other = tmp_path / "other.safetensors"
    save_file({key: torch.zeros(1) for key in keys}, other)
    with pytest.raises(UnsupportedCheckpoint, match=said):
        single_file.check(other)


@pytest.mark.parametrize("name", ["model.ckpt", "model.pt"])
def test_a_pickle_is_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(V exit 1\ntR.")
    with pytest.raises(CheckpointError, match="never opened; where you trust it, convert it once"):
        single_file.check(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        single_file.check(tmp_path / "absent.safetensors")
    (tmp_path / "half.safetensors").write_bytes(b"\x10")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        single_file.check(tmp_path / "half.safetensors")


@pytest.fixture(scope="module")
def refiner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    unet = {"layers_per_block": 2, "transformer_layers_per_block": 1}
    vae = {"layers_per_block": 2}
    return make_refiner(tmp_path_factory.mktemp("refiner"), unet=unet, vae=vae)


@pytest.fixture(scope="module")
def refiners_file(refiner: Path) -> Path:
    return write_refiner(refiner, refiner / "refiner.safetensors")


class TestTheRefinersWriterAgainstDiffusers(TestTheWriterAgainstDiffusers):
    """Comparison for a refiner's file, whose only text encoder is embedder 0."""

    test_first_text_encoder = None

    @pytest.fixture
    def folder(self, refiner: Path) -> Path:
        return refiner

    @pytest.fixture
    def file(self, refiners_file: Path) -> Path:
        return refiners_file

    def test_second_text_encoder(self, folder: Path, file: Path) -> None:
        network = CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2")
        converted = single_file_utils.convert_open_clip_checkpoint(
            network, load_file(file), prefix="conditioner.embedders.0.model."
        )
        self.check(in_names_of(network, converted), network)


def test_refiner_is_detected(refiners_file: Path, file: Path) -> None:
    assert single_file.check(refiners_file)[1] is single_file.ORIGINAL
    prefixes = [single_file.prefixes_of(load_file(path)) for path in (refiners_file, file)]
    assert prefixes == [single_file.REFINER_PREFIXES, single_file.PREFIXES]
