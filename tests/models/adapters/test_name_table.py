"""Layer names of adapters: complete for each model, and compact when registered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from models.adapters.files.adapter import AdapterError, LayerPosition
from models.adapters.files.name_table import packed, unpacked
from models.adapters.layer_names import adaptable
from tests.models.adapters.published_names import networks, published
from tests.test_arrows import HEAVY, ROOT

MODELS = ("flux", "sdxl", "wan")
MAX_BYTES = 24_000
"""Upper limit of the names' text, which every worker registration contains."""


@pytest.mark.parametrize("model", MODELS)
def test_every_layer_has_a_name(model: str) -> None:
    for spelling, network in networks(model):
        named = next(
            network_names
            for network_names in published(model).networks
            if network_names.network == spelling.network
        )
        places = {place for layers in named.names.values() for place in layers}
        assert [place for place, _ in adaptable(network) if place not in places] == []


@pytest.mark.parametrize("model", MODELS)
def test_name_table_round_trips(model: str) -> None:
    text = packed(published(model))
    assert unpacked(text) == published(model)
    assert len(text) < MAX_BYTES


@pytest.mark.parametrize(
    ("model", "name", "places"),
    [
        ("flux", "lora_unet_double_blocks_18_img_attn_qkv", "double_blocks.image.attention.q"),
        ("flux", "single_blocks.0.qkv_lora", "single_blocks.heads.q"),
        ("flux", "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1", "blocks"),
        ("sdxl", "lora_unet_input_blocks_8_1_transformer_blocks_9_ff_net_0_proj", "down_blocks.2"),
        ("sdxl", "lora_unet_output_blocks_5_2_conv", "up_blocks.1.upsample"),
        ("sdxl", "lora_unet_up_blocks_1_upsamplers_0_conv", "up_blocks.1.upsample"),
        ("sdxl", "lora_te2_text_model_encoder_layers_31_self_attn_q_proj", "blocks.q"),
        ("wan", "diffusion_model.blocks.39.cross_attn.o", "blocks.cross_attention.queries.out"),
        ("wan", "transformer.patch_embedding", "patches_in"),
        ("flux", "diffusion_model.double_blocks.0.img_attn_qkv", "double_blocks.image.attention.q"),
        ("flux", "diffusion_model.transformer_blocks_0_attn_to_q", "double_blocks.image"),
        ("flux", "lora_unet_single_transformer_blocks_0_attn_to_k_", "single_blocks.heads.k"),
        (
            "flux",
            "transformer.base_model.model.single_transformer_blocks.0.attn.to_k",
            "single_blocks.heads.k",
        ),
    ],
)
def test_a_name_is_found_by_its_prefix(model: str, name: str, places: str) -> None:
    match = published(model).of(None).find(name)
    assert match is not None and next(iter(match.layers)).path.startswith(places)


@pytest.mark.parametrize("name", ["", "lora_unet_", "transformer.", "blocks.40.self_attn.q"])
def test_an_unknown_name_is_not_found(name: str) -> None:
    assert published("wan").find(name) is None


def test_queries_keys_and_values_follow_each_other_in_a_fused_layer() -> None:
    match = published("flux").find("single_blocks.3.linear1")
    assert match is not None
    paths = [place.path.rpartition(".")[2] for place in match.layers]
    assert paths == ["q", "k", "v", "up"]
    assert {place.layer for place in match.layers} == {3}


@pytest.mark.parametrize(
    ("model", "joined", "same"),
    [
        ("flux", "transformer_blocks.7.attn.to_qkv", "double_blocks.7.img_attn.qkv"),
        ("flux", "transformer_blocks.7.attn.to_added_qkv", "double_blocks.7.txt_attn.qkv"),
        ("flux", "lora_unet_transformer_blocks_7_attn_to_qkv", "double_blocks.7.img_attn.qkv"),
    ],
)
def test_projections_that_diffusers_fuses(model: str, joined: str, same: str) -> None:
    """Layer names in adapters of networks after `fuse_qkv_projections`."""
    match, expected = published(model).find(joined), published(model).find(same)
    assert match is not None and expected is not None
    assert [*match.layers.items()] == [*expected.layers.items()]


def test_fused_projections_of_cross_attention() -> None:
    heads = "unet.mid_block.attentions.0.transformer_blocks.0.attn2."
    match = published("sdxl").find(f"{heads}to_kv")
    assert match is not None
    assert [place.path.rpartition(".")[2] for place in match.layers] == ["k", "v"]
    assert published("sdxl").find(f"{heads}to_qkv") is None


def test_a_file_is_for_the_expert_that_is_named() -> None:
    name = "blocks.0.self_attn.q"
    networks_of = {
        expert: published("wan").of(expert).find(name) for expert in (None, "high", "low")
    }
    assert {expert: match and match.network for expert, match in networks_of.items()} == {
        None: "transformer",
        "high": "transformer",
        "low": "transformer_2",
    }
    with pytest.raises(AdapterError, match="does not have: leave the expert out"):
        published("flux").of("low")


def test_places_are_plain_values() -> None:
    match = published("wan").find("blocks.2.ffn.0")
    assert match is not None and next(iter(match.layers)) == LayerPosition(
        "blocks.feed_forward.up", 2
    )


def test_a_front_end_reads_files_without_jax() -> None:
    heavy = (*HEAVY, "jaxtyping", "ml_dtypes", "safetensors")
    look = f"import sys, models.adapters.files.formats; print({{*{heavy}}} & {{*sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert loaded.strip() == "set()"
