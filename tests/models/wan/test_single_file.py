"""Single files of Wan's transformer give the same weights as the folder.

The writer of these files is itself compared with diffusers' own conversion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file, save_file

from models import registry
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint, WeightsError
from models.checkpoint.key_mapping import target
from models.wan.authors_names import AUTHORS_RENAMES
from models.wan.key_mapping import RENAMES
from models.weights.loader import flat_parameters
from tests import coarse
from tests.models.single_files import Tensors, are_equal, weights, write
from tests.models.vae.original_writer import authors_keys
from tests.parity.test_wan_vace_transformer import Case, load_atelier, make
from tests.parity.tiny import Config
from tests.parity.tiny_wan import VAE_2_2, make_wan

DIFFUSION = "diffusion_pytorch_model.safetensors"
STORED = f"transformer/{DIFFUSION}"
NET = "motion_encoder.enc.net_app.convs"
RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
    (r"condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
    (r"condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
    (r"condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
    (r"condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
    (r"condition_embedder\.image_embedder\.pos_embed", "img_emb.emb_pos"),
    (r"^scale_shift_table", "head.modulation"),
    (r"^proj_out", "head.head"),
    (r"scale_shift_table", "modulation"),
    (r"attn1\.", "self_attn."),
    (r"attn2\.", "cross_attn."),
    (r"add_([kv])_proj", r"\1_img"),
    (r"norm_added_k", "norm_k_img"),
    (r"to_out\.0", "o"),
    (r"to_([qkv])", r"\1"),
    (r"(blocks\.\d+\.)norm2", r"\1norm3"),
    (r"ffn\.net\.0\.proj", "ffn.0"),
    (r"ffn\.net\.2", "ffn.2"),
    (r"(vace_blocks\.0\.)proj_in", r"\1before_proj"),
    (r"(vace_blocks\.\d+\.)proj_out", r"\1after_proj"),
    (r"face_adapter\.(\d+)\.norm_([qk])", r"face_adapter.fuser_blocks.\1.\2_norm"),
    (r"face_adapter\.(\d+)\.q\.", r"face_adapter.fuser_blocks.\1.linear1_q."),
    (r"face_adapter\.(\d+)\.to_out\.", r"face_adapter.fuser_blocks.\1.linear2."),
    (r"face_encoder\.(conv\d\w*)\.", r"face_encoder.\1.conv."),
    (r"motion_encoder\.motion_synthesis_weight", "motion_encoder.dec.direction.weight"),
    (r"motion_encoder\.motion_network", "motion_encoder.enc.fc"),
    (r"motion_encoder\.conv_in\.weight", f"{NET}.0.0.weight"),
    (r"motion_encoder\.conv_in\.act_fn", f"{NET}.0.1"),
    (r"motion_encoder\.conv_out", f"{NET}.8"),
    (r"(res_blocks\.\d+\.conv1)\.weight", r"\1.0.weight"),
    (r"(res_blocks\.\d+\.conv1)\.act_fn", r"\1.1"),
    (r"(res_blocks\.\d+\.conv2)\.weight", r"\1.1.weight"),
    (r"(res_blocks\.\d+\.conv2)\.act_fn", r"\1.2"),
    (r"(res_blocks\.\d+\.)conv_skip", r"\1skip.1"),
    (r"motion_encoder\.res_blocks\.(\d+)", lambda block: f"{NET}.{int(block[1]) + 1}"),
)
"""diffusers' names → the authors' names. The first of two matching rules applies."""


def authors(stored: Tensors) -> Tensors:
    named = {}
    for key, tensor in stored.items():
        for expression, replacement in RULES:
            key = re.sub(expression, replacement, key)
        bias_of_image = key.startswith(NET) and key.endswith("bias")
        named[key] = tensor[None, :, None, None] if bias_of_image else tensor
    for key in [key for key in named if key.startswith("face_adapter") and ".k." in key]:
        halves = [named.pop(name) for name in (key, key.replace(".k.", ".v."))]
        block, array = key.split(".")[1::2]
        named[f"face_adapter.fuser_blocks.{block}.linear1_kv.{array}"] = torch.cat(halves)
    return named


FACES: Config = {
    "motion_encoder_size": 512,
    "motion_encoder_channel_sizes": {str(4 << n): 3 + n % 3 for n in range(8)},
}
"""Face images of the authors' size; diffusers' conversion supports no other files."""
KINDS: Mapping[str, Config] = {
    "text": {},
    "image": {"from_image": True},
    "vace": {"vace": {}},
    "animate": {"animate": FACES},
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of Wan 2.1. Those for images and of VACE have more layers."""
    return make_wan(tmp_path_factory.mktemp("wan") / "base", **KINDS[request.param])


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("names", ["authors", "diffusers"])
def test_transformer_file_uses_its_base_for_other_parts(
    folder: Path, tmp_path: Path, prefix: str, names: str
) -> None:
    stored = load_file(folder / STORED)
    named = authors(stored) if names == "authors" else stored
    file = write({prefix + key: t for key, t in named.items()}, tmp_path / "wan.safetensors")
    weights_of_base = load_file(folder / STORED)
    save_file({key: torch.zeros_like(t) for key, t in weights_of_base.items()}, folder / STORED)
    try:
        loaded = weights(file, folder)  # the base's own transformer is all zeros
    finally:
        save_file(weights_of_base, folder / STORED)
    assert are_equal(loaded, weights(folder))


def test_the_writer_against_diffusers(folder: Path) -> None:
    stored = load_file(folder / STORED)
    converted = single_file_utils.convert_wan_transformer_to_diffusers(authors(stored))
    assert converted.keys() == stored.keys()
    assert all(converted[key].equal(tensor) for key, tensor in stored.items())


def test_scaled_8_bit_floats_are_multiplied_out(folder: Path, tmp_path: Path) -> None:
    stored = authors(load_file(folder / STORED))
    key, scale = "blocks.0.ffn.0", torch.tensor(0.25)
    packed = (stored[f"{key}.weight"] / scale).to(torch.float8_e4m3fn)
    small = stored | {f"{key}.weight": packed, f"{key}.scale_weight": scale}
    plain = stored | {f"{key}.weight": packed.float() * scale}
    assert are_equal(
        weights(write(small, tmp_path / "small.safetensors"), folder),
        weights(write(plain, tmp_path / "plain.safetensors"), folder),
    )


def test_unsupported_file_has_its_reason(folder: Path, tmp_path: Path) -> None:
    two = {"transformer": {"num_layers": 1}, "transformer_2": {"num_layers": 1}}
    experts = make_wan(tmp_path / "experts", **two, boundary_ratio=0.5)
    file = write(authors(load_file(folder / STORED)), tmp_path / "high.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="its base has 2 experts"):
        weights(file, experts)
    other = write({"lora_unet.weight": torch.zeros(2)}, tmp_path / "lora.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="no Wan transformer in it"):
        weights(other, experts)
    with pytest.raises(CheckpointError, match="swap_experts is set, but one file"):
        registry.load("tiny", str(file), "float32", {}, base=str(experts), swap_experts=True)


ENCODER_RULES = (
    (r"shared\.", "token_embedding."),
    (r"encoder\.final_layer_norm", "norm"),
    (r"encoder\.block", "blocks"),
    (r"layer\.0\.SelfAttention\.relative_attention_bias", "pos_embedding.embedding"),
    (r"layer\.0\.SelfAttention", "attn"),
    (r"layer\.1\.DenseReluDense\.wi_0", "ffn.gate.0"),
    (r"layer\.1\.DenseReluDense\.wi_1", "ffn.fc1"),
    (r"layer\.1\.DenseReluDense\.wo", "ffn.fc2"),
    (r"layer\.0\.layer_norm", "norm1"),
    (r"layer\.1\.layer_norm", "norm2"),
)
"""transformers' names of UMT5 → the names in files of Wan's authors."""


def authors_encoder(stored: Tensors) -> Tensors:
    named = {}
    for key, tensor in stored.items():
        for expression, replacement in ENCODER_RULES:
            key = re.sub(expression, replacement, key)
        named[key] = tensor
    return named


def test_files_are_the_parts_of_wan_22(tmp_path: Path) -> None:
    """Both experts, the encoder and the residual VAE have the authors' keys.

    The base has other weights; one file has a prefix, and the encoder's a tokenizer.
    """
    two: Config = {"transformer": {"num_layers": 1}, "transformer_2": {"num_layers": 1}}
    two["vae"] = {**VAE_2_2, "num_res_blocks": 2}
    folder, base = (
        make_wan(tmp_path / name, **two, boundary_ratio=0.5, seed=seed)
        for name, seed in (("folder", 0), ("base", 50))
    )
    files = [
        write(
            {prefix + key: t for key, t in authors(load_file(folder / part / DIFFUSION)).items()},
            tmp_path / f"{part}.safetensors",
        )
        for part, prefix in (("transformer", ""), ("transformer_2", "model.diffusion_model."))
    ]
    encoder = authors_encoder(load_file(folder / "text_encoder" / "model.safetensors"))
    assert "blocks.0.ffn.gate.0.weight" in encoder
    encoder["spiece_model"] = torch.ones(7, dtype=torch.uint8)
    text = write(encoder, tmp_path / "umt5-xxl-enc.safetensors")
    frames = authors_keys(load_file(folder / "vae" / DIFFUSION), is_residual=True)
    vae = write(frames, tmp_path / "wan2.2_vae.safetensors")
    with coarse.compiled():
        loaded = registry.load(
            *("tiny", str(files[0]), "float32", {}),
            base=str(base),
            parts={"transformer_2": str(files[1]), "text_encoder": str(text), "vae": str(vae)},
        ).weights
    expected = weights(folder)
    assert are_equal(loaded.t5, expected.t5)
    assert are_equal(loaded.transformer, expected.transformer)
    assert are_equal(loaded.transformer_2, expected.transformer_2)
    assert are_equal(loaded.vae, expected.vae)
    assert not are_equal(loaded.vae, weights(base).vae)


def test_files_of_animate(tmp_path: Path) -> None:
    """Blur kernels in some files are ignored. The 8-bit floats of the face encoder are scaled."""
    folder = make_wan(tmp_path / "base", animate=FACES)
    stored = authors(load_file(folder / STORED))
    key, scale = f"{NET}.2.conv2.1", torch.tensor(0.25)
    packed = (stored[f"{key}.weight"] / scale).to(torch.float8_e4m3fn)
    blurred = stored | {f"{NET}.{n}.conv2.0.kernel": torch.ones(4, 4) for n in range(1, 8)}
    small = blurred | {f"{key}.weight": packed, f"{key}.scale_weight": scale}
    plain = stored | {f"{key}.weight": packed.float() * scale}
    loaded = weights(write(small, tmp_path / "small.safetensors"), folder)
    assert are_equal(loaded, weights(write(plain, tmp_path / "plain.safetensors"), folder))
    assert not are_equal(loaded, weights(folder))


def test_files_and_bases_of_animate_belong_together(folder: Path, tmp_path: Path) -> None:
    base = make_wan(tmp_path / "base", animate={})
    file = write(authors(load_file(folder / STORED)), tmp_path / "other.safetensors")
    if "face_encoder.padding_tokens" not in load_file(file):
        with pytest.raises(UnsupportedCheckpoint, match="its base is Wan Animate"):
            weights(file, base)
        return
    with pytest.raises(WeightsError, match=r"convs\.7\.conv1"):  # for larger images
        weights(file, base)
    with pytest.raises(WeightsError, match=r"stray: .*pose_patch_embedding"):
        weights(file, make_wan(tmp_path / "image", from_image=True))
    short = {key: t for key, t in load_file(file).items() if key != f"{NET}.1.skip.1.weight"}
    with pytest.raises(WeightsError, match=r"missing: .*convs\.1\.skip\.1\.weight"):
        weights(write(short, tmp_path / "short.safetensors"), folder)


def test_a_vace_transformer_has_every_array_by_its_authors_name(tmp_path: Path) -> None:
    """The writer's names are those that diffusers' own conversion reads."""
    make(tmp_path, Case({"vace_layers": (0, 2), "vace_in_channels": 14}))
    stored = load_file(tmp_path / STORED)
    named = authors(stored)
    leaves = flat_parameters(load_atelier(tmp_path))
    assert {match.path for key in named if (match := target(key, AUTHORS_RENAMES))} == {*leaves}
    for key, authors_key in zip(stored, named, strict=True):
        targets = [target(key, RENAMES), target(authors_key, AUTHORS_RENAMES)]
        assert len({goal and (goal.path, goal.layer) for goal in targets}) == 1, (key, authors_key)
    converted = single_file_utils.convert_wan_transformer_to_diffusers(dict(named))
    assert converted.keys() == stored.keys()
    assert all(converted[key].equal(tensor) for key, tensor in stored.items())
