"""CLIP, T5 and UMT5 compared with transformers in float32, on random weights and odd sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
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

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.text import clip, t5, umt5
from models.weights.loader import load
from tests.parity.tiny import randomize

TOLERANCE = 1e-5
"""Tolerance relative to the largest value. Float32 rounds at 6e-8; after about a hundred roundings
the sums differ in order. The largest measured error is 2e-6.
"""

CLIP = {
    "vocab_size": 97,
    "hidden_size": 30,
    "intermediate_size": 44,
    "projection_dim": 17,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "max_position_embeddings": 19,
    "eos_token_id": 96,
    "bos_token_id": 95,
    "pad_token_id": 96,
}
T5 = {
    "vocab_size": 83,
    "d_model": 26,
    "d_kv": 7,
    "d_ff": 45,
    "num_layers": 3,
    "num_heads": 5,
    "feed_forward_proj": "gated-gelu",
}
UMT5 = {
    "vocab_size": 83,
    "d_model": 34,
    "d_kv": 9,
    "d_ff": 51,
    "num_layers": 4,
    "num_heads": 3,
}


run = nnx.jit(lambda model, *inputs: model(*inputs))


def agree(output: jax.Array, reference: torch.Tensor) -> None:
    expected = reference.numpy()
    assert output.shape == expected.shape
    assert float(np.abs(expected).max()) > 0.1  # a reference of zeros would accept anything
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


def clip_reference(projection: bool = False, **overrides: Any) -> Any:
    kind = transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel
    return randomize(kind(transformers.CLIPTextConfig(**(CLIP | overrides))), seed=3)


def t5_reference(**overrides: Any) -> Any:
    return randomize(transformers.T5EncoderModel(transformers.T5Config(**(T5 | overrides))), seed=4)


def atelier_clip(folder: Path, projection: bool = False) -> clip.ClipTextModel:
    kind = clip.ClipTextModelWithProjection if projection else clip.ClipTextModel
    config = clip.ClipConfig.from_dict(read_config(folder.parent, folder.name))
    abstract = abstract_module(kind, config)
    return load(abstract, folder, clip.RENAMES, dtype=jnp.float32)


def atelier_t5(folder: Path) -> t5.T5Encoder:
    config = t5.T5Config.from_dict(read_config(folder.parent, folder.name))
    abstract = abstract_module(t5.T5Encoder, config)
    return load(abstract, folder, t5.RENAMES, dtype=jnp.float32)


def umt5_reference(**overrides: Any) -> Any:
    config = transformers.UMT5Config(**(UMT5 | overrides))
    return randomize(transformers.UMT5EncoderModel(config), seed=5)


def atelier_umt5(folder: Path) -> umt5.UMT5Encoder:
    config = umt5.UMT5Config.from_dict(read_config(folder.parent, folder.name))
    abstract = abstract_module(umt5.UMT5Encoder, config)
    return load(abstract, folder, umt5.RENAMES, dtype=jnp.float32)


def umt5_features(reference: Any, ids: np.ndarray, mask: np.ndarray | None) -> torch.Tensor:
    with torch.no_grad():
        mask_arguments = {} if mask is None else {"attention_mask": torch.tensor(mask)}
        return reference(torch.tensor(ids), **mask_arguments).last_hidden_state


def rekeyed(folder: Path, rename: Callable[[str], str]) -> None:
    """Rewrite a folder's only weight file with renamed keys and unchanged tensors."""
    file = folder / "model.safetensors"
    save_file({rename(key): tensor for key, tensor in load_file(file).items()}, file)


def tokens(vocab: int, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, vocab, shape, dtype=np.int32)


def clip_tokens() -> np.ndarray:
    """Two prompts: an early end of text, followed by padding of the same id, and a late one."""
    ids = tokens(94, (2, 19))
    ids[0, 7:] = 96
    ids[1, -1] = 96
    return ids


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"hidden_act": "gelu"},
        {"eos_token_id": 2},
        {"num_hidden_layers": 1, "num_attention_heads": 2, "layer_norm_eps": 1e-2},
    ],
    ids=str,
)
@pytest.mark.parametrize("projection", [False, True])
def test_clip(tmp_path: Path, projection: bool, overrides: dict[str, Any]) -> None:
    reference = clip_reference(projection, **overrides)
    reference.save_pretrained(tmp_path)
    ids = clip_tokens()
    with torch.no_grad():
        reference_output = reference(torch.tensor(ids), output_hidden_states=True)
    output = run(atelier_clip(tmp_path, projection), ids)
    agree(output.last_hidden_state, reference_output.last_hidden_state)
    agree(
        output.pooled,
        reference_output.text_embeds if projection else reference_output.pooler_output,
    )
    for hidden, reference_states in zip(
        output.hidden_states, reference_output.hidden_states, strict=True
    ):
        agree(hidden, reference_states)


def test_legacy_clip_pools_at_the_largest_id(tmp_path: Path) -> None:
    """An eos_token_id of 2 is ignored, even if the prompt contains a 2."""
    reference = clip_reference(eos_token_id=2)
    reference.save_pretrained(tmp_path)
    ids = clip_tokens()
    ids[:, 1] = 2
    with torch.no_grad():
        expected = reference(torch.tensor(ids)).pooler_output
    agree(run(atelier_clip(tmp_path), ids).pooled, expected)


def test_fewer_tokens_than_positions(tmp_path: Path) -> None:
    reference = clip_reference()
    reference.save_pretrained(tmp_path)
    ids = clip_tokens()[:, :9]
    with torch.no_grad():
        expected = reference(torch.tensor(ids)).last_hidden_state
    agree(run(atelier_clip(tmp_path), ids).last_hidden_state, expected)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"feed_forward_proj": "relu"},
        {"num_layers": 1, "num_heads": 3, "d_kv": 11, "layer_norm_epsilon": 1e-2},
        {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 20},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_t5(tmp_path: Path, masked: bool, overrides: dict[str, Any]) -> None:
    reference = t5_reference(**overrides)
    reference.save_pretrained(tmp_path)
    ids = tokens(83, (2, 43))
    mask = np.arange(43)[None] < np.array([[43], [11]]) if masked else None
    with torch.no_grad():
        expected = reference(
            torch.tensor(ids), attention_mask=None if mask is None else torch.tensor(mask)
        ).last_hidden_state
    agree(run(atelier_t5(tmp_path), ids, mask), expected)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"feed_forward_proj": "relu", "num_layers": 1},
        {"num_heads": 5, "d_kv": 6, "layer_norm_epsilon": 1e-2},
        {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 20},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_umt5(tmp_path: Path, masked: bool, overrides: dict[str, Any]) -> None:
    reference = umt5_reference(**overrides)
    reference.save_pretrained(tmp_path)
    ids = tokens(83, (2, 43))
    mask = np.arange(43)[None] < np.array([[43], [11]]) if masked else None
    agree(run(atelier_umt5(tmp_path), ids, mask), umt5_features(reference, ids, mask))


def test_every_umt5_layer_has_its_own_bias(tmp_path: Path) -> None:
    """The test requires a mismatch with the first layer's bias in all layers, as in T5."""
    reference = umt5_reference()
    reference.save_pretrained(tmp_path)
    encoder, ids = atelier_umt5(tmp_path), tokens(83, (2, 43))
    table = encoder.blocks.relative_bias.embedding
    table[...] = jnp.broadcast_to(table[...][:1], table.shape)
    expected = umt5_features(reference, ids, None).numpy()
    assert np.abs(run(encoder, ids) - expected).max() > 1e4 * TOLERANCE * np.abs(expected).max()


def test_wrong_umt5_mask_breaks_parity(tmp_path: Path) -> None:
    reference = umt5_reference()
    reference.save_pretrained(tmp_path)
    ids, mask = tokens(83, (1, 43)), np.arange(43)[None] < 11
    expected = umt5_features(reference, ids, mask).numpy()[:, :11]
    output = run(atelier_umt5(tmp_path), ids)[:, :11]
    assert np.abs(output - expected).max() > 1e4 * TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (12, 20), (48, 800), (4, 3)])
def test_relative_buckets(buckets: int, distance: int) -> None:
    reference = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    positions = torch.arange(700)
    expected = reference(
        positions[None, :] - positions[:, None], num_buckets=buckets, max_distance=distance
    )
    np.testing.assert_array_equal(t5.relative_buckets(700, buckets, distance), expected.numpy())


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (12, 20), (48, 800)])
def test_umt5_has_the_same_buckets(buckets: int, distance: int) -> None:
    config = transformers.UMT5Config(
        relative_attention_num_buckets=buckets, relative_attention_max_distance=distance
    )
    reference = transformers.models.umt5.modeling_umt5.UMT5Attention(config)
    positions = torch.arange(700)
    expected = reference._relative_position_bucket(positions[None, :] - positions[:, None])
    np.testing.assert_array_equal(t5.relative_buckets(700, buckets, distance), expected.numpy())


def other_prefix(key: str) -> str:
    """transformers 4 writes `text_model.`; version 5 writes it for one of the classes and reads
    both.
    """
    if "projection" in key:
        return key
    return key.removeprefix("text_model.") if key.startswith("text_model.") else f"text_model.{key}"


@pytest.mark.parametrize("projection", [False, True])
def test_clip_keys_with_and_without_prefix(tmp_path: Path, projection: bool) -> None:
    reference = clip_reference(projection)
    reference.save_pretrained(tmp_path)
    rekeyed(tmp_path, other_prefix)
    file = tmp_path / "model.safetensors"
    positions = {other_prefix("embeddings.position_ids"): torch.arange(19)[None]}
    save_file(load_file(file) | positions, file)
    with torch.no_grad():
        expected = reference(torch.tensor(clip_tokens())).last_hidden_state
    agree(run(atelier_clip(tmp_path, projection), clip_tokens()).last_hidden_state, expected)


@pytest.mark.parametrize("names", [["shared"], ["encoder.embed_tokens"], None], ids=str)
def test_t5_embedding_under_either_name(tmp_path: Path, names: list[str] | None) -> None:
    reference = t5_reference()
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    arrays = load_file(file)
    table = arrays.pop("shared.weight")
    arrays.pop("encoder.embed_tokens.weight", None)
    stored_names = names or ["shared", "encoder.embed_tokens"]
    save_file(arrays | {f"{name}.weight": table.clone() for name in stored_names}, file)
    ids = tokens(83, (1, 9))
    with torch.no_grad():
        expected = reference(torch.tensor(ids)).last_hidden_state
    agree(run(atelier_t5(tmp_path), ids), expected)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shards", ["5GB", "6KB"])
def test_half_precision_files_and_shards(tmp_path: Path, stored: torch.dtype, shards: str) -> None:
    """Half-precision files loaded in float32 equal transformers exactly."""
    t5_reference().to(stored).save_pretrained(tmp_path, max_shard_size=shards)
    sharded = (tmp_path / "model.safetensors.index.json").is_file()
    assert sharded == (shards == "6KB")
    reference = transformers.T5EncoderModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = tokens(83, (1, 21))
    with torch.no_grad():
        expected = reference(torch.tensor(ids)).last_hidden_state
    agree(run(atelier_t5(tmp_path), ids), expected)


def test_variant_files(tmp_path: Path) -> None:
    reference = clip_reference()
    reference.save_pretrained(tmp_path, variant="fp16", max_shard_size="6KB")
    index = json.loads((tmp_path / "model.safetensors.index.fp16.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    with torch.no_grad():
        expected = reference(torch.tensor(clip_tokens())).last_hidden_state
    agree(run(atelier_clip(tmp_path), clip_tokens()).last_hidden_state, expected)


@pytest.mark.parametrize("key", ["mlp.fc2.bias", "layer_norm2.weight", "self_attn.k_proj.weight"])
def test_changed_clip_array_breaks_parity(tmp_path: Path, key: str) -> None:
    """A change of 1 % in one array of one layer exceeds the tolerance by far."""
    reference = clip_reference()
    reference.save_pretrained(tmp_path)
    with torch.no_grad():
        reference.get_parameter(f"encoder.layers.1.{key}").mul_(1.01)
        expected = reference(torch.tensor(clip_tokens())).last_hidden_state.numpy()
    output = run(atelier_clip(tmp_path), clip_tokens()).last_hidden_state
    assert np.abs(output - expected).max() > 30 * TOLERANCE * np.abs(expected).max()
