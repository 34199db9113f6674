"""Qwen2.5-VL's language model as a text encoder compared with transformers, in float32."""

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
from models.text.published import QWEN2_5_VL_7B
from models.text.qwen25 import Qwen25Config, Qwen25Encoder, renames_of
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.test_qwen3 import TOLERANCE, mask, run, tokens
from tests.parity.tiny_qwen import QWEN25, qwen25

ODD = {
    "hidden_size": 42,
    "intermediate_size": 35,
    "num_hidden_layers": 3,
    "num_attention_heads": 7,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 1, 1]},
}
VARIANTS = {"groups of two": {}, "one head of keys": ODD}
LAST = (-1,)


def run_atelier(folder: Path, states: tuple[int, ...] = LAST) -> Qwen25Encoder:
    config = Qwen25Config.from_dict(read_config(folder.parent, folder.name))
    module = abstract_module(Qwen25Encoder, config, states)
    return load(module, folder, renames_of(config, states), dtype=jnp.float32)


def run_diffusers(reference: Any, states: tuple[int, ...] = LAST) -> np.ndarray:
    with torch.no_grad():
        output = reference(
            torch.tensor(tokens()), attention_mask=torch.tensor(mask()), output_hidden_states=True
        )
    return torch.cat([output.hidden_states[state] for state in states], dim=-1).numpy()


def read(states: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Zero the padding: positions differ there, and the pipelines drop it."""
    return states * mask()[..., None]


@pytest.mark.parametrize("states", [(-1,), (2, 1)])
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states(
    tmp_path: Path, overrides: dict[str, Any], states: tuple[int, ...], record_property: Any
) -> None:
    reference = qwen25(3, **overrides)
    reference.save_pretrained(tmp_path)
    output = run(run_atelier(tmp_path, states), tokens(), mask())
    gap = largest(read(output), read(run_diffusers(reference, states)))
    record_property("relative", gap)
    assert gap < TOLERANCE


HUB = {
    "transformers 4.49": {"model.language_model.": "model.", "model.visual.": "visual."},
    "later 4": {"model.language_model.": "language_model.model.", "model.visual.": "visual."},
    "5": {},
}


@pytest.mark.parametrize("prefixes", HUB.values(), ids=HUB)
def test_keys_of_the_hubs_files(tmp_path: Path, prefixes: dict[str, str]) -> None:
    """Key names of various writers, with the head and the vision network."""
    reference = qwen25(3)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {_whole(key): value for key, value in load_file(file).items()}
    for new, old in prefixes.items():
        stored = {key.replace(new, old): value for key, value in stored.items()}
    assert any("visual.blocks.0" in key for key in stored) and "lm_head.weight" in stored
    save_file(stored, file)
    assert (
        largest(read(run(run_atelier(tmp_path), tokens(), mask())), read(run_diffusers(reference)))
        < TOLERANCE
    )


def _whole(key: str) -> str:
    """Key in the form that transformers 5 has in memory."""
    if key.startswith("visual."):
        return f"model.{key}"
    plain = key.startswith("model.") and not key.startswith(("model.lang", "model.vis"))
    return key.replace("model.", "model.language_model.", 1) if plain else key


BITES = {
    "bias of the queries": "blocks.attention.q.bias",
    "bias of the values": "blocks.attention.v.bias",
    "last norm": "final_norm.scale",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(tmp_path: Path, path: str) -> None:
    reference = qwen25(3, **ODD)
    reference.save_pretrained(tmp_path)
    damaged = run_atelier(tmp_path)
    leaf: Any = damaged
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.01
    assert (
        largest(read(run(damaged, tokens(), mask())), read(run_diffusers(reference)))
        > 10 * TOLERANCE
    )


def test_wrong_causality_or_rope_base_breaks_parity(tmp_path: Path) -> None:
    reference = qwen25(3)
    reference.save_pretrained(tmp_path)
    expected = read(run_diffusers(reference))
    backwards = run(run_atelier(tmp_path), tokens()[:, ::-1], mask())
    assert largest(read(backwards), expected) > 1000 * TOLERANCE
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["rope_parameters"]["rope_theta"] = 4e5
    file.write_text(json.dumps(config))
    assert largest(read(run(run_atelier(tmp_path), tokens(), mask())), expected) > 10 * TOLERANCE


def test_configs_of_either_transformers() -> None:
    """The hub's files have all fields at the top level and rope_scaling; transformers 5 splits
    them.
    """
    plain = {key: value for key, value in QWEN25.items() if key != "rope_parameters"}
    scaling = {"mrope_section": [1, 2, 2], "type": "mrope"}
    old = {**plain, "rope_theta": 5e5, "rope_scaling": scaling, "vision_config": {"hidden_size": 8}}
    assert Qwen25Config.from_dict(old) == Qwen25Config.from_dict({"text_config": QWEN25})
    assert Qwen25Config.from_dict(old).rope_theta == 5e5


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"hidden_size": 41}, "hidden_size"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Qwen25Config.from_dict({**QWEN25, **values})


def test_a_state_that_no_layer_leads_to() -> None:
    with pytest.raises(ValueError, match="hidden state"):
        Qwen25Config.from_dict(QWEN25).state(0)


def test_published_size() -> None:
    """Parameters in billions, without the vision network and the head of half a billion."""
    module = abstract_module(Qwen25Encoder, Qwen25Config.from_dict(QWEN2_5_VL_7B), LAST)
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    assert round(sum(leaf.size for leaf in leaves) / 1e9, 2) == 7.07
