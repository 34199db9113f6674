"""The LTX-2 authors' names of the transformer's arrays, in single files and in adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_ltx2_lora_to_diffusers
from diffusers.loaders.single_file_utils import convert_ltx2_transformer_to_diffusers

from models.adapters.layer_names import names
from models.checkpoint.key_mapping import target
from models.loading.abstract import abstract_module
from models.ltx.config import LTX2Config
from models.ltx.connectors import TextConnectors
from models.ltx.connectors_config import ConnectorsConfig
from models.ltx.key_mapping import AUTHORS_RENAMES, CONNECTORS_SPELLING, TRANSFORMER_SPELLING
from models.ltx.key_mapping import TRANSFORMER as RENAMES
from models.ltx.network import LTX2Transformer
from tests.parity.tiny_ltx import (
    CONNECTORS,
    CONNECTORS_ODD,
    TRANSFORMER,
    TRANSFORMER_ODD,
    connectors,
    transformer,
)

PARTS = {
    "audio_prompt_adaln.": "audio_prompt_adaln_single.",
    "prompt_adaln.": "prompt_adaln_single.",
    "audio_time_embed.": "audio_adaln_single.",
    "time_embed.": "adaln_single.",
    "audio_proj_in.": "audio_patchify_proj.",
    "proj_in.": "patchify_proj.",
    "av_cross_attn_video_scale_shift.": "av_ca_video_scale_shift_adaln_single.",
    "av_cross_attn_video_a2v_gate.": "av_ca_a2v_gate_adaln_single.",
    "av_cross_attn_audio_scale_shift.": "av_ca_audio_scale_shift_adaln_single.",
    "av_cross_attn_audio_v2a_gate.": "av_ca_v2a_gate_adaln_single.",
    "video_a2v_cross_attn_scale_shift_table": "scale_shift_table_a2v_ca_video",
    "audio_a2v_cross_attn_scale_shift_table": "scale_shift_table_a2v_ca_audio",
}
CONFIGS = {"2.3": TRANSFORMER, "2.0, odd": TRANSFORMER_ODD}


def authors(key: str) -> str:
    """Return the authors' name of an array."""
    key = key.replace(".norm_q.", ".q_norm.").replace(".norm_k.", ".k_norm.")
    for part, original in PARTS.items():
        head, matched, suffix = key.rpartition(part)
        if matched and (not head or head.endswith(".")):
            return head + original + suffix
    return key


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_authors_keys_are_diffusers(config: Mapping[str, Any]) -> None:
    """Compare with diffusers' conversion, which does not support 2.3's text modulation yet."""
    for key in transformer(1, **config).state_dict():
        original = authors(key)
        if "prompt_adaln." not in key:
            converted = convert_ltx2_transformer_to_diffusers({original: 0})
            assert [*converted] == [key]
        renamed, expected = target(original, AUTHORS_RENAMES), target(key, RENAMES)
        assert renamed is not None and expected is not None
        assert renamed._replace(rule=0) == expected._replace(rule=0), key


def test_adapters_by_the_authors_names() -> None:
    network = abstract_module(LTX2Transformer, LTX2Config(**TRANSFORMER))
    places = names(TRANSFORMER_SPELLING, network).names
    for key, module in transformer(1, **TRANSFORMER).named_modules():
        if type(module).__name__ != "Linear":
            continue
        original = authors(f"{key}.weight").removesuffix(".weight")
        (converted,) = _convert_non_diffusers_ltx2_lora_to_diffusers(
            {f"diffusion_model.{original}": 0}
        )
        assert converted == f"transformer.{key}"
        assert places[original] == places[key], key


@pytest.mark.parametrize(
    ("config", "originals"),
    [
        (CONNECTORS, ("video_aggregate_embed", "audio_aggregate_embed")),
        (CONNECTORS_ODD, ("aggregate_embed",)),
    ],
    ids=["2.3", "2.0, odd"],
)
def test_adapters_of_the_text_projections(
    config: Mapping[str, Any], originals: tuple[str, ...]
) -> None:
    """Adapters of the text projections have the authors' names, or those that diffusers' conversion
    gives."""
    network = abstract_module(TextConnectors, ConnectorsConfig.from_dict(config))
    layers = names(CONNECTORS_SPELLING, network)
    for number, original in enumerate(originals):
        name = f"text_embedding_projection.{original}"
        (converted,) = _convert_non_diffusers_ltx2_lora_to_diffusers(
            {name: 0}, non_diffusers_prefix="text_embedding_projection"
        )
        for spelled in (name, converted):
            named = layers.find(spelled)
            assert named is not None and named.network == "connectors", spelled
            assert [place.path for place in named.layers] == [f"projections.{number}"]


@pytest.mark.parametrize("config", [CONNECTORS, CONNECTORS_ODD], ids=["2.3", "2.0, odd"])
def test_adapters_of_the_connectors_by_the_authors_names(config: Mapping[str, Any]) -> None:
    """The connectors are a part of the authors' transformer, and of its adapters."""
    network = abstract_module(TextConnectors, ConnectorsConfig.from_dict(config))
    layers, count = names(CONNECTORS_SPELLING, network), 0
    for key, module in connectors(1, **config).named_modules():
        stream, is_connector, block = key.partition("_connector.transformer_blocks.")
        if is_connector and type(module).__name__ == "Linear":
            original = f"{stream}_embeddings_connector.transformer_1d_blocks.{block}"
            named, expected = layers.find(f"diffusion_model.{original}"), layers.find(key)
            assert named is not None and named == expected, key
            count += 1
    assert count >= 10
