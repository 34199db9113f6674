"""Gemma 3's language model as a text encoder compared with transformers, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import load_file, save_file

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.text.gemma3 import Gemma3Config, Gemma3Encoder, RopeBase, renames_of
from models.text.published import GEMMA3_12B
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.test_qwen3 import run, tokens
from tests.parity.tiny_gemma import GEMMA3, gemma3

TOLERANCE = 1e-5
"""Tolerance relative to the largest value of each state, as for the other encoders."""

ODD: dict[str, Any] = {
    "hidden_size": 21,
    "intermediate_size": 35,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 6,
    "rms_norm_eps": 1e-3,
    "query_pre_attn_scalar": 7,
    "sliding_window": 3,
    "attention_bias": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]
    + ["sliding_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e2},
    },
}
VARIANTS = {"groups of three": {}, "one head each, biases": ODD}
LENGTHS = np.array([19, 7])


def mask() -> np.ndarray:
    """Mask with padding on the left."""
    return np.arange(19)[None] >= 19 - LENGTHS[:, None]


def run_atelier(folder: Path) -> Gemma3Encoder:
    config = Gemma3Config.from_dict(read_config(folder.parent, folder.name))
    return load(
        abstract_module(Gemma3Encoder, config), folder, renames_of(config), dtype=jnp.float32
    )


def run_diffusers(reference: Any) -> np.ndarray:
    with torch.no_grad():
        output = reference(
            torch.tensor(tokens()), attention_mask=torch.tensor(mask()), output_hidden_states=True
        )
    return torch.stack(output.hidden_states, dim=-1).numpy()


def worst(output: jax.Array, expected: np.ndarray) -> float:
    """Largest relative error of a state, without padding."""
    assert output.shape == expected.shape
    is_token = mask()[..., None]
    return max(
        largest(output[..., state] * is_token, expected[..., state] * is_token)
        for state in range(expected.shape[-1])
    )


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states(tmp_path: Path, overrides: dict[str, Any], record_property: Any) -> None:
    reference = gemma3(3, **overrides)
    reference.save_pretrained(tmp_path)
    states = run(run_atelier(tmp_path), tokens(), mask())
    expected = run_diffusers(reference)
    assert expected.shape[-1] == (GEMMA3 | overrides)["num_hidden_layers"] + 1
    gap = worst(states, expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < TOLERANCE


def test_padding_changes_no_word(tmp_path: Path) -> None:
    reference = gemma3(3)
    reference.save_pretrained(tmp_path)
    encoder = run_atelier(tmp_path)
    other_padding = np.where(mask(), tokens(), 1)
    output, repeated = (np.asarray(run(encoder, ids, mask())) for ids in (tokens(), other_padding))
    assert np.abs(output - repeated)[mask()].max() == 0
    assert np.isfinite(output).all()


HUB = {
    "later 4": {"model.language_model.": "language_model.model.", "model.vision": "vision"},
    "5": {},
}


@pytest.mark.parametrize("prefixes", HUB.values(), ids=HUB)
def test_keys_of_the_hubs_files(tmp_path: Path, prefixes: dict[str, str]) -> None:
    """Key names of various writers, with the head and the vision network."""
    reference = gemma3(3)
    reference.save_pretrained(tmp_path)
    stored = {key: value.clone() for key, value in reference.state_dict().items()}
    for new, old in prefixes.items():
        stored = {key.replace(new, old): value for key, value in stored.items()}
    assert any("vision" in key for key in stored) and "lm_head.weight" in stored
    save_file(stored, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors").keys() == stored.keys()
    assert worst(run(run_atelier(tmp_path), tokens(), mask()), run_diffusers(reference)) < TOLERANCE


BITES = {
    "norm behind attention": "blocks.attended_norm.scale",
    "norm behind the feed-forward": "blocks.fed_norm.scale",
    "norm of the keys": "blocks.attention.k_norm.scale",
    "last norm": "final_norm.scale",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(tmp_path: Path, path: str) -> None:
    reference = gemma3(3, **ODD)
    reference.save_pretrained(tmp_path)
    damaged = run_atelier(tmp_path)
    leaf: Any = damaged
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.01
    assert worst(run(damaged, tokens(), mask()), run_diffusers(reference)) > 10 * TOLERANCE


CHANGES: dict[str, Any] = {
    "window": {"sliding_window": 6},
    "scale of the logits": {"query_pre_attn_scalar": 13},
    "kinds of layers": {"layer_types": GEMMA3["layer_types"][::-1]},
    "factor of positions": {
        "rope_parameters": {
            **GEMMA3["rope_parameters"],
            "full_attention": {"rope_type": "linear", "factor": 7.0, "rope_theta": 5e5},
        }
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_wrong_config_breaks_parity(tmp_path: Path, change: dict[str, Any]) -> None:
    reference = gemma3(3)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] |= change
    file.write_text(json.dumps(config))
    assert (
        worst(run(run_atelier(tmp_path), tokens(), mask()), run_diffusers(reference))
        > 10 * TOLERANCE
    )


def test_configs_of_either_transformers() -> None:
    """Version 4 writes a pattern and two bases; version 5 lists all layer types and RoPE
    parameters.
    """
    plain = {k: v for k, v in GEMMA3.items() if k not in ("rope_parameters", "layer_types")}
    old = {
        **plain,
        "sliding_window_pattern": 2,
        "rope_theta": 5e5,
        "rope_local_base_freq": 1e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert Gemma3Config.from_dict({"text_config": old}) == Gemma3Config.from_dict(GEMMA3)
    assert Gemma3Config.from_dict(old).full == RopeBase(5e5, 8.0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ({"num_key_value_heads": 4}, "multiple"),
        ({"hidden_size": 0}, "hidden_size"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Gemma3Config.from_dict({**GEMMA3, **values})


def test_published_size() -> None:
    """Parameters of Gemma 3 12B's language model, in billions."""
    module = abstract_module(Gemma3Encoder, Gemma3Config.from_dict(GEMMA3_12B))
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    assert round(sum(leaf.size for leaf in leaves) / 1e9, 2) == 11.77
