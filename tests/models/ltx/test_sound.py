"""Audio decoder and vocoders of LTX-2.0 and 2.3 at full size, and refused configs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from diffusers import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE
from flax import nnx

from models.checkpoint import key_mapping
from models.checkpoint.key_mapping import Renames
from models.loading.abstract import abstract_module
from models.ltx.audio_vae import LTX2AudioDecoder
from models.ltx.audio_vae_config import LTX2AudioVaeConfig
from models.ltx.key_mapping import AUDIO_VAE, vocoder_renames
from models.ltx.sound import AudioParts, decode_audio
from models.ltx.vocoder import vocoder_of
from models.ltx.vocoder_config import ExtendedVocoderConfig, VocoderConfig, read_vocoder_config
from models.weights.loader import flat_parameters
from tests.parity import tiny_ltx

VOCODERS: dict[str, tuple[Any, Any, int]] = {
    "2.0": (VocoderConfig(), LTX2Vocoder, 24000),
    "2.3": (ExtendedVocoderConfig(), LTX2VocoderWithBWE, 48000),
}
"""Config, reference class, and samples per second."""
SECONDS = 5


def stored_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return torch's shape of a leaf."""
    return (*shape[:-3:-1], *shape[:-2]) if path.endswith("kernel") else shape


def check_names(module: nnx.Module, reference: Any, renames: Renames) -> None:
    """Check that stored tensors and leaves correspond one to one."""
    leaves = {path: tuple(leaf.shape) for path, leaf in flat_parameters(module).items()}
    keys = {}
    for key, tensor in reference.state_dict().items():
        target = key_mapping.target(key, renames)
        assert target is not None, key
        if target.path:
            shape = tuple(tensor.shape)
            squeezed = shape[:2] if len(leaves[target.path]) == 2 else shape
            assert squeezed == stored_shape(target.path, leaves[target.path]), key
            assert target.path not in keys
            keys[target.path] = key
    assert keys.keys() == leaves.keys()


def test_every_tensor_of_the_published_decoder_has_its_place() -> None:
    with torch.device("meta"):
        reference = AutoencoderKLLTX2Audio()
    config = LTX2AudioVaeConfig.from_dict(dict(reference.config))
    assert config == LTX2AudioVaeConfig()
    assert (config.features, config.latents_per_s) == (128, 25)
    check_names(abstract_module(LTX2AudioDecoder, config), reference, AUDIO_VAE)


@pytest.mark.parametrize("version", VOCODERS)
def test_every_tensor_of_the_published_vocoder_has_its_place(version: str) -> None:
    config, kind, _ = VOCODERS[version]
    with torch.device("meta"):
        reference = kind()
    written = {**reference.config, "_class_name": kind.__name__}
    assert read_vocoder_config(written) == config
    check_names(abstract_module(vocoder_of, config), reference, vocoder_renames(config))


@pytest.mark.parametrize("version", VOCODERS)
def test_full_size_sound_is_as_long_as_its_tokens(version: str) -> None:
    """The first token covers one spectrogram frame of 10 ms, each further token four."""
    config, _, rate = VOCODERS[version]
    vae = LTX2AudioVaeConfig()
    parts = AudioParts(
        abstract_module(LTX2AudioDecoder, vae, param_dtype=jnp.bfloat16),
        abstract_module(vocoder_of, config, param_dtype=jnp.bfloat16),
    )
    tokens = round(SECONDS * vae.latents_per_s)
    latents = jax.ShapeDtypeStruct((1, tokens, vae.features), jnp.bfloat16)
    sound = nnx.eval_shape(decode_audio, parts, latents)
    assert config.output_sampling_rate == rate
    assert sound.shape == (1, 2, (4 * tokens - 3) * rate // 100)
    assert sound.dtype == jnp.float32


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"norm_type": "group"}, "norm_type"),
        ({"causality_axis": "width"}, "causality_axis"),
        ({"mid_block_add_attention": True}, "mid_block_add_attention"),
        ({"attn_resolutions": [64]}, "attn_resolutions"),
        ({"latent_channels": 5}, "base_channels"),
    ],
    ids=str,
)
def test_decoders_that_are_not_served(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LTX2AudioVaeConfig.from_dict({**tiny_ltx.AUDIO_VAE, **values})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"act_fn": "relu"}, "act_fn"),
        ({"final_act_fn": "sin"}, "final_act_fn"),
        ({"act_fn": "leaky_relu"}, "antialias"),
        ({"upsample_factors": [5]}, "upsample_kernel_sizes"),
        ({"hidden_channels": 10}, "hidden_channels"),
        ({"window_length": 20}, "window_length"),
        ({"output_sampling_rate": 2500}, "output_sampling_rate"),
        ({"hop_length": 5}, "hop_length"),
        ({"bwe_in_channels": 9}, "bwe_in_channels"),
        ({"_class_name": "Vocos"}, "Vocos"),
    ],
    ids=str,
)
def test_vocoders_that_are_not_served(values: dict[str, Any], named: str) -> None:
    config = {"_class_name": "LTX2VocoderWithBWE", **tiny_ltx.EXTENDED, **values}
    with pytest.raises(ValueError, match=named):
        read_vocoder_config(config)
