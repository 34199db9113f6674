"""Wan's transformer in single files as they are shared, against the folder's weights.

The writer of these files is itself held against diffusers' own conversion of such files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file, save_file

from models import registry
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.checkpoint.key_mapping import target
from models.wan.authors_names import AUTHORS_RENAMES
from models.wan.key_mapping import RENAMES
from models.weights.loader import flat_parameters
from tests.models.single_files import Tensors, are_equal, weights, write
from tests.parity.test_wan_vace_transformer import Case, load_ours, make
from tests.parity.tiny_wan import Config, make_wan

STORED = "transformer/diffusion_pytorch_model.safetensors"
RULES = (
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
)
"""diffusers' names → the authors'; the first of two that would match comes first."""


def authors(stored: Tensors) -> Tensors:
    named = {}
    for key, tensor in stored.items():
        for expression, replacement in RULES:
            key = re.sub(expression, replacement, key)
        named[key] = tensor
    return named


KINDS: Mapping[str, Config] = {"text": {}, "image": {"from_image": True}, "vace": {"vace": {}}}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of Wan 2.1; those for images and of VACE have more layers."""
    return make_wan(tmp_path_factory.mktemp("wan") / "base", **KINDS[request.param])


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("names", ["authors", "diffusers"])
def test_a_transformer_alone_takes_the_rest_from_its_base(
    folder: Path, tmp_path: Path, prefix: str, names: str
) -> None:
    stored = load_file(folder / STORED)
    named = authors(stored) if names == "authors" else stored
    file = write({prefix + key: t for key, t in named.items()}, tmp_path / "wan.safetensors")
    weights_of_base = load_file(folder / STORED)
    save_file({key: torch.zeros_like(t) for key, t in weights_of_base.items()}, folder / STORED)
    try:
        made = weights(file, folder)  # of a base whose own transformer says nothing
    finally:
        save_file(weights_of_base, folder / STORED)
    assert are_equal(made, weights(folder))


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


def test_what_cannot_be_served_says_why(folder: Path, tmp_path: Path) -> None:
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


def test_a_vace_transformer_has_every_array_by_its_authors_name(tmp_path: Path) -> None:
    """And the writer's names are those that diffusers' own conversion reads."""
    make(tmp_path, Case({"vace_layers": (0, 2), "vace_in_channels": 14}))
    stored = load_file(tmp_path / STORED)
    named = authors(stored)
    ours = flat_parameters(load_ours(tmp_path))
    assert {found.path for key in named if (found := target(key, AUTHORS_RENAMES))} == {*ours}
    for key, theirs in zip(stored, named, strict=True):
        places = [target(key, RENAMES), target(theirs, AUTHORS_RENAMES)]
        assert len({place and (place.path, place.layer) for place in places}) == 1, (key, theirs)
    converted = single_file_utils.convert_wan_transformer_to_diffusers(dict(named))
    assert converted.keys() == stored.keys()
    assert all(converted[key].equal(tensor) for key, tensor in stored.items())
