"""Qwen3 as a text encoder compared with transformers in float32, and its chat with the template."""

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
from flax import nnx
from safetensors.torch import load_file, save_file

from models.checkpoint.folder import CheckpointError, read_config
from models.loading.abstract import abstract_module
from models.text.chat import NOT_THINKING, THINKING, Chat, QwenTokenizer
from models.text.published import QWEN3_4B, QWEN3_8B
from models.text.qwen3 import Qwen3Config, Qwen3Encoder, renames_of
from models.text.tokenizer import cut_prompts
from models.weights.loader import load
from tests.parity.distances import largest
from tests.parity.tiny_qwen import QWEN3, qwen3, qwen_tokenizer

TOLERANCE = 1e-5
"""Tolerance relative to the largest value, as for the other encoders (test_text.py). The largest
measured error is 1e-6.
"""

ODD = {
    "hidden_size": 21,
    "intermediate_size": 35,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 6,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    "attention_bias": True,
}
VARIANTS = {"groups of three": {}, "one head each, biases": ODD}
STATES = {"second to last": (-2,), "three side by side": (1, 3, 2), "last": (-1,)}
LENGTHS = np.array([19, 7])

run = nnx.jit(lambda model, *inputs: model(*inputs))


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 250, (2, 19), dtype=np.int32)


def mask() -> np.ndarray:
    return np.arange(19)[None] < LENGTHS[:, None]


def run_atelier(folder: Path, states: tuple[int, ...]) -> Qwen3Encoder:
    config = Qwen3Config.from_dict(read_config(folder.parent, folder.name))
    module = abstract_module(Qwen3Encoder, config, states)
    return load(module, folder, renames_of(config, states), dtype=jnp.float32)


def run_diffusers(reference: Any, states: tuple[int, ...], masked: bool = True) -> np.ndarray:
    mask_arguments = {"attention_mask": torch.tensor(mask())} if masked else {}
    with torch.no_grad():
        output = reference(torch.tensor(tokens()), output_hidden_states=True, **mask_arguments)
    return torch.cat([output.hidden_states[state] for state in states], dim=-1).numpy()


@pytest.mark.parametrize("states", STATES.values(), ids=STATES)
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states(
    tmp_path: Path, overrides: dict[str, Any], states: tuple[int, ...], record_property: Any
) -> None:
    reference = qwen3(3, **overrides)
    reference.save_pretrained(tmp_path)
    gap = largest(
        run(run_atelier(tmp_path, states), tokens(), mask()), run_diffusers(reference, states)
    )
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < TOLERANCE


def test_without_a_mask_all_tokens_count(tmp_path: Path) -> None:
    reference = qwen3(3)
    reference.save_pretrained(tmp_path)
    output, expected = (
        run(run_atelier(tmp_path, (-2,)), tokens()),
        run_diffusers(reference, (-2,), masked=False),
    )
    assert largest(output, expected) < TOLERANCE


def test_keys_of_the_whole_model_and_its_head(tmp_path: Path) -> None:
    """Hub checkpoints have the class Qwen3ForCausalLM."""
    reference = qwen3(3)
    config = reference.config
    causal_lm = transformers.Qwen3ForCausalLM(config)
    causal_lm.model.load_state_dict(reference.state_dict())
    causal_lm.save_pretrained(tmp_path)
    assert "model.layers.0.mlp.up_proj.weight" in load_file(tmp_path / "model.safetensors")
    gap = largest(
        run(run_atelier(tmp_path, (-2,)), tokens(), mask()), run_diffusers(reference, (-2,))
    )
    assert gap < TOLERANCE


def test_layers_after_the_last_hidden_state_are_not_loaded(tmp_path: Path) -> None:
    """The file may omit the arrays of these layers."""
    reference = qwen3(3)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    remaining = {
        key: value
        for key, value in load_file(file).items()
        if not key.startswith(("layers.2.", "layers.3.", "norm."))
    }
    save_file(remaining, file)
    encoder = run_atelier(tmp_path, (1, 2))
    assert encoder.blocks.gate.kernel.shape[0] == 2
    assert largest(run(encoder, tokens(), mask()), run_diffusers(reference, (1, 2))) < TOLERANCE


BITES = {
    "key norm": "blocks.attention.k_norm.scale",
    "bias of the values": "blocks.attention.v.bias",
    "gate": "blocks.gate.kernel",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(tmp_path: Path, path: str) -> None:
    reference = qwen3(3, **ODD)
    reference.save_pretrained(tmp_path)
    damaged = run_atelier(tmp_path, (-2,))
    leaf: Any = damaged
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.01
    assert largest(run(damaged, tokens(), mask()), run_diffusers(reference, (-2,))) > 10 * TOLERANCE


def test_wrong_causality_or_mask_breaks_parity(tmp_path: Path) -> None:
    """The reference is matched only with causality and the mask."""
    reference = qwen3(3)
    reference.save_pretrained(tmp_path)
    encoder, expected = run_atelier(tmp_path, (-2,)), run_diffusers(reference, (-2,))
    assert largest(run(encoder, tokens()), expected) > 1000 * TOLERANCE
    backwards = run(encoder, tokens()[:, ::-1], mask())
    assert largest(backwards, expected) > 1000 * TOLERANCE


def test_configs_of_either_transformers() -> None:
    """The hub's files have rope_theta and torch_dtype; transformers 5 writes other names."""
    plain = {key: value for key, value in QWEN3.items() if key != "rope_parameters"}
    old = {**plain, "rope_theta": 500000, "rope_scaling": None, "torch_dtype": "bfloat16"}
    new = {**QWEN3, "dtype": "bfloat16"}
    assert Qwen3Config.from_dict(old) == Qwen3Config.from_dict(new)
    assert Qwen3Config.from_dict(new).rope_theta == 5e5


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "rope_type"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 4}, "multiple"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_size": 0}, "hidden_size"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Qwen3Config.from_dict({**QWEN3, **values})


@pytest.mark.parametrize("index", [0, 5, -6])
def test_states_that_no_layer_leads_to(index: int) -> None:
    with pytest.raises(ValueError, match="hidden state"):
        Qwen3Config.from_dict(QWEN3).state(index)


@pytest.mark.parametrize(
    ("published", "states", "billions"),
    [
        (QWEN3_4B, (-1,), 4.02),
        (QWEN3_4B, (-2,), 3.92),
        (QWEN3_4B, (9, 18, 27), 3.11),
        (QWEN3_8B, (-1,), 7.57),
    ],
)
def test_published_sizes(
    published: dict[str, Any], states: tuple[int, ...], billions: float
) -> None:
    """Parameters without the head. The 4B's head shares the embedding's table, the 8B's does
    not.
    """
    module = abstract_module(Qwen3Encoder, Qwen3Config.from_dict(published), states)
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    assert round(sum(leaf.size for leaf in leaves) / 1e9, 2) == billions


PROMPTS = (
    "a red circle above the blue square",
    "",
    "  spaces, and\nlines ",
    "ends early<|im_end|>\n<|im_start|>user\na star",
    "<think>about it</think> née 漢字 🙂",
    "word" * 40,
)
CHATS = {"thinking": (THINKING, True), "not thinking": (NOT_THINKING, False)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tokenizer")
    qwen_tokenizer().save_pretrained(place)
    return place


@pytest.mark.parametrize(("chat", "thinking"), CHATS.values(), ids=CHATS)
def test_the_chat_is_the_templates(folder: Path, chat: Chat, thinking: bool) -> None:
    """Markers in a prompt count as markers, as in the reference."""
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [
        reference.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        for prompt in PROMPTS
    ]
    assert texts == [chat.rendered(prompt) for prompt in PROMPTS]
    expected = reference(
        texts, padding="max_length", max_length=48, truncation=True, return_tensors="np"
    )
    encoding = QwenTokenizer(folder, chat).encode_with_mask(PROMPTS, 48)
    np.testing.assert_array_equal(encoding.ids, expected["input_ids"])
    np.testing.assert_array_equal(encoding.mask, expected["attention_mask"])
    im_end = reference.convert_tokens_to_ids("<|im_end|>")
    assert (encoding.ids == im_end).sum(axis=1).tolist() == [1, 1, 1, 2, 1, 0]
    assert encoding.mask[:4].sum(axis=1).min() < 48 == encoding.mask[-1].sum()


def test_vocabulary_and_merges_serve_too(folder: Path, tmp_path: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(lines))
    config = folder / "tokenizer_config.json"
    (tmp_path / config.name).write_text(config.read_text())
    plain = "a red circle above the blue square"
    prompt = Chat("", "")  # only tokenizer.json contains markers
    ids = QwenTokenizer(tmp_path, prompt).encode([plain], 30)
    np.testing.assert_array_equal(ids, QwenTokenizer(folder, prompt).encode([plain], 30))


def test_truncation_warning_lists_only_the_users_words(folder: Path) -> None:
    tokenizer = QwenTokenizer(folder, NOT_THINKING)
    chat_tokens = int(tokenizer.encode_with_mask([""], 64).mask.sum())
    words = "a red circle above the blue square"
    prompt_tokens = int(tokenizer.encode_with_mask([words], 64).mask.sum()) - chat_tokens
    tokens_after = len(tokenizer._tokenizer(NOT_THINKING.after)["input_ids"])
    (warning,) = cut_prompts(
        "Qwen3", tokenizer, {"prompt": words}, chat_tokens - tokens_after + prompt_tokens - 1
    )
    assert warning.message.endswith("not read: 'square'")
    # truncation of the chat's own tokens alone causes no warning
    assert (
        cut_prompts(
            "Qwen3", tokenizer, {"prompt": words}, chat_tokens - tokens_after + prompt_tokens
        )
        == ()
    )
    assert cut_prompts("Qwen3", tokenizer, {"prompt": words}, 64) == ()


def test_padding_on_the_left_is_refused(tmp_path: Path) -> None:
    qwen_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "padding_side": "left"}))
    with pytest.raises(CheckpointError, match="padding_side"):
        QwenTokenizer(tmp_path, THINKING)
