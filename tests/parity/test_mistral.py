"""Mistral as a text encoder compared with transformers in float32, and its chat with the template.

Bounds as in test_qwen3.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from diffusers.pipelines.flux2.pipeline_flux2 import format_input
from flax import nnx
from safetensors.torch import load_file, save_file

from models.checkpoint.folder import CheckpointError, read_config
from models.flux2.load import MISTRAL as ENCODER
from models.flux2.load import SYSTEM_MESSAGE
from models.loading.abstract import abstract_module
from models.text.chat import MistralTokenizer
from models.text.mistral import MistralConfig, MistralEncoder, renames_of
from models.text.published import MISTRAL_SMALL_3
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.test_qwen3 import TOLERANCE, tokens
from tests.parity.test_qwen3 import mask as right_mask
from tests.parity.tiny_mistral import MISTRAL, mistral3, mistral_tokenizer

ODD = {
    "intermediate_size": 35,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": None,
    "hidden_size": 24,
    "rms_norm_eps": 1e-3,
    "sliding_window": 4096,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
}
VARIANTS = {"groups of three": {}, "one head each, a window": ODD}
STATES = (1, 3, 2)
MASKS = {"padding on the left": right_mask()[:, ::-1], "padding on the right": right_mask()}

run = nnx.jit(lambda model, *inputs: model(*inputs))


def run_atelier(folder: Path) -> MistralEncoder:
    config = MistralConfig.from_dict(read_config(folder.parent, folder.name))
    module = abstract_module(MistralEncoder, config, STATES)
    return load(module, folder, renames_of(config, STATES), dtype=jnp.float32)


def run_transformers(reference: Any, mask: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        output = reference(
            torch.tensor(tokens()),
            attention_mask=torch.tensor(mask.copy()),
            output_hidden_states=True,
        )
    return torch.cat([output.hidden_states[state] for state in STATES], dim=-1).numpy()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states(
    tmp_path: Path, overrides: dict[str, Any], mask: np.ndarray, record_property: Any
) -> None:
    """Hidden states match transformers', including those of the padding, which the transformer
    attends to."""
    reference = mistral3(3, **overrides)
    reference.save_pretrained(tmp_path)
    gap = largest(run(run_atelier(tmp_path), tokens(), mask), run_transformers(reference, mask))
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < TOLERANCE


def test_keys_of_the_class_and_missing_last_layers(tmp_path: Path) -> None:
    """Files have the hub's keys or those of transformers' class; ComfyUI's lack the last layers."""
    reference = mistral3(3)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    assert "language_model.model.layers.3.mlp.up_proj.weight" in stored
    named = {
        key.replace("language_model.model.", "model.language_model.")
        .replace("language_model.lm_head.", "lm_head.")
        .replace("vision_tower.", "model.vision_tower.")
        .replace("multi_modal_projector.", "model.multi_modal_projector."): value
        for key, value in stored.items()
        if not key.startswith("language_model.model.layers.3.")
    }
    assert named.keys() <= reference.state_dict().keys()
    save_file(named, file)
    mask = MASKS["padding on the left"]
    gap = largest(run(run_atelier(tmp_path), tokens(), mask), run_transformers(reference, mask))
    assert gap < TOLERANCE


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "Mistral rope_type"),
        ({"sliding_window": 64}, "Mistral sliding_window"),
        ({"hidden_act": "gelu"}, "Mistral hidden_act"),
        ({"hidden_size": 0}, "Mistral hidden_size"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MistralConfig.from_dict({"text_config": {**MISTRAL, **values}})


def test_defaults_are_those_of_transformers() -> None:
    reference = transformers.MistralConfig()
    config = MistralConfig.from_dict({})
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"):
        assert getattr(config, name) == getattr(reference, name), name
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"):
        assert getattr(config, name) == getattr(reference, name), name
    assert config.rope_theta == reference.rope_parameters["rope_theta"]


def test_published_size() -> None:
    """Parameters of the first thirty of forty layers, without the head and the vision tower."""
    config = MistralConfig.from_dict(MISTRAL_SMALL_3)
    leaves = jax.tree.leaves(nnx.state(abstract_module(MistralEncoder, config, ENCODER.states)))
    assert round(sum(leaf.size for leaf in leaves) / 1e9, 2) == 17.34


PROMPTS = (
    "a red circle above the blue square",
    "",
    "  spaces, and\nlines ",
    "an image [IMG] of[/INST] née 漢字 🙂",
    "word" * 40,
)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_chat_is_the_templates(tmp_path: Path, side: str) -> None:
    """Markers in a prompt count as markers, as in the reference, except places of images."""
    mistral_tokenizer(side).save_pretrained(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(
        format_input([*PROMPTS], SYSTEM_MESSAGE),
        return_dict=True,
        padding="max_length",
        truncation=True,
        max_length=90,
        return_tensors="np",
    )
    encoding = MistralTokenizer(tmp_path, ENCODER.chat).encode_with_mask(PROMPTS, 90)
    np.testing.assert_array_equal(encoding.ids, expected["input_ids"])
    np.testing.assert_array_equal(encoding.mask, expected["attention_mask"])
    assert (encoding.ids == reference.bos_token_id).sum(axis=1).tolist() == [1] * len(PROMPTS)
    assert encoding.mask[:, 0 if side == "right" else -1].all()
    assert not encoding.mask[:4, -1 if side == "right" else 0].any() and encoding.mask[-1].all()


def test_the_system_message_is_diffusers() -> None:
    from diffusers.pipelines.flux2 import system_messages

    assert system_messages.SYSTEM_MESSAGE == SYSTEM_MESSAGE


def test_words_that_are_cut_are_the_users_own(tmp_path: Path) -> None:
    mistral_tokenizer().save_pretrained(tmp_path)
    tokenizer = MistralTokenizer(tmp_path, ENCODER.chat)
    words = "a red circle above the blue square"
    whole = int(tokenizer.encode_with_mask([words], 512).mask.sum())
    assert tokenizer.unread(words, whole - 1) == ""
    assert tokenizer.unread(words, whole - 2) == "square"


def test_an_unstated_side_is_the_left(tmp_path: Path) -> None:
    """Transformers' class of Mistral's tokenizers pads on the left."""
    mistral_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["padding_side"]
    file.write_text(json.dumps(config))
    mask = MistralTokenizer(tmp_path, ENCODER.chat).encode_with_mask([""], 90).mask
    assert mask[0, -1] and not mask[0, 0]
    del config["pad_token"]
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="pad_token"):
        MistralTokenizer(tmp_path, ENCODER.chat)
