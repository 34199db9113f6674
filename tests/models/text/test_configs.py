"""Text encoder configs: read from `config.json`, unsupported values refused by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import config as type_checks
from transformers import UMT5Config as Umt5

from models.text.clip import ClipConfig, ClipTextModel
from models.text.t5 import T5Config, T5Encoder
from models.text.umt5 import UMT5Config
from models.wan.published import UMT5_XXL


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable jaxtyping, so only Atelier's own checks can detect a wrong type."""
    monkeypatch.setattr(type_checks, "jaxtyping_disable", True)


CLIP_L = {
    "architectures": ["CLIPTextModel"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "quick_gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 77,
    "model_type": "clip_text_model",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "projection_dim": 768,
    "torch_dtype": "bfloat16",
    "vocab_size": 49408,
}
SMALL_CLIP = ClipConfig(vocab_size=20, hidden_size=16, intermediate_size=8, num_hidden_layers=2)
SMALL_T5 = T5Config(vocab_size=20, d_model=12, d_kv=3, d_ff=8, num_layers=2, num_heads=5)


def test_clip_from_a_hub_config() -> None:
    config = ClipConfig.from_dict(CLIP_L)
    assert (config.hidden_size, config.num_attention_heads, config.eos_token_id) == (768, 12, 2)


def test_t5_from_a_hub_config() -> None:
    config = T5Config.from_dict(
        {"d_model": 4096, "d_ff": 10240, "num_heads": 64, "feed_forward_proj": "gated-gelu"}
        | {"is_gated_act": True, "dense_act_fn": "gelu_new", "model_type": "t5"}
    )
    assert (config.d_model, config.num_heads, config.d_kv) == (4096, 64, 64)


def test_umt5_from_a_hub_config() -> None:
    config = UMT5Config.from_dict(UMT5_XXL)
    assert (config.vocab_size, config.d_ff, config.num_layers) == (256384, 10240, 24)
    assert UMT5Config() == UMT5Config.from_dict(Umt5().to_dict())  # defaults of transformers
    with pytest.raises(ValueError, match="relu, gated-gelu, not 'gated-silu'"):
        UMT5Config.from_dict({**UMT5_XXL, "feed_forward_proj": "gated-silu"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a positive integer, not 0"),
        ({"hidden_size": "768"}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer"),
        ({"hidden_size": 30, "num_attention_heads": 4}, "30 must be a multiple of"),
        ({"hidden_act": "swish"}, "one of quick_gelu, gelu, gelu_pytorch_tanh, not 'swish'"),
        ({"eos_token_id": [1, 2]}, "eos_token_id must be an integer"),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be a positive number"),
        ({"layer_norm_eps": None}, "layer_norm_eps must be a positive number"),
    ],
)
def test_clip_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipConfig.from_dict(CLIP_L | values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"d_model": -1}, "d_model must be a positive integer, not -1"),
        ({"num_layers": 2.0}, "num_layers must be a positive integer"),
        ({"feed_forward_proj": "gated-silu"}, "must be one of relu, gated-gelu, not 'gated-silu'"),
        ({"relative_attention_num_buckets": 7}, "not 7 and 128"),
        ({"relative_attention_max_distance": 8}, "not 32 and 8"),
        ({"layer_norm_epsilon": -1e-6}, "layer_norm_epsilon must be a positive number"),
    ],
)
def test_t5_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        T5Config.from_dict(values)


def features(tokens: int, dtype: DTypeLike = jnp.float32) -> tuple[jax.Array, jax.Array]:
    """Abstract outputs of both encoders for one prompt."""

    def both() -> tuple[jax.Array, jax.Array]:
        ids = jnp.zeros((1, tokens), jnp.int32)
        clip = ClipTextModel(SMALL_CLIP, rngs=nnx.Rngs(0), param_dtype=dtype)
        t5 = T5Encoder(SMALL_T5, rngs=nnx.Rngs(0), param_dtype=dtype)
        return clip(ids).last_hidden_state, t5(ids)

    return jax.eval_shape(both)


def test_clip_takes_no_more_tokens_than_positions() -> None:
    assert [array.shape for array in features(77)] == [(1, 77, 16), (1, 77, 12)]
    with pytest.raises(ValueError, match="78 tokens are more than this CLIP's 77 positions"):
        features(78)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_activations_follow_the_weights_dtype(dtype: DTypeLike) -> None:
    assert [array.dtype for array in features(9, dtype)] == [dtype, dtype]
