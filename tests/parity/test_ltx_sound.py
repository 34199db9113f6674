"""LTX-2's audio decoder and vocoders compared with diffusers' in float32, on random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.ltx.audio_vae import LTX2AudioDecoder
from models.ltx.audio_vae_config import LTX2AudioVaeConfig
from models.ltx.key_mapping import AUDIO_VAE, vocoder_renames
from models.ltx.sound import AudioParts, decode_audio
from models.ltx.vocoder import vocoder_of
from models.ltx.vocoder_config import read_vocoder_config
from models.weights.loader import flat_parameters, load
from tests.parity import tiny_ltx
from tests.parity.distances import relative
from tests.parity.tiny import Config

RELATIVE = 1e-5
"""Tolerance of spectrograms and of sound, relative by norm."""
VAES = {"as published": tiny_ltx.AUDIO_VAE, "odd": tiny_ltx.AUDIO_VAE_ODD}
VOCODERS = {
    "2.0": tiny_ltx.VOCODER,
    "odd": tiny_ltx.VOCODER_ODD,
    "2.3": tiny_ltx.EXTENDED,
    "2.3, odd": tiny_ltx.EXTENDED_ODD,
}
TOKENS = 7

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing config attribute `hop_length`:FutureWarning"),
]
"""The reference warns about even windows, and about a field that it reads from its config."""

call = nnx.jit(lambda model, x: model(x))
sound_of = nnx.jit(lambda parts, latents: decode_audio(parts, latents))


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def atelier_vae(reference: Any, folder: Path, dtype: Any = jnp.float32) -> LTX2AudioDecoder:
    reference.save_pretrained(folder)
    config = LTX2AudioVaeConfig.from_dict(read_config(folder.parent, folder.name))
    return load(abstract_module(LTX2AudioDecoder, config), folder, AUDIO_VAE, dtype=dtype)


def atelier_vocoder(reference: Any, folder: Path, dtype: Any = jnp.float32) -> Any:
    reference.save_pretrained(folder)
    config = read_vocoder_config(read_config(folder.parent, folder.name))
    renames = vocoder_renames(config)
    return load(abstract_module(vocoder_of, config), folder, renames, dtype=dtype)


def expected_mel(reference: Any, latents: np.ndarray) -> torch.Tensor:
    """Spectrogram [batch, channels, frames, bins], decoded as in diffusers' pipeline."""
    config = reference.config
    packed = torch.tensor(latents) * reference.latents_std + reference.latents_mean
    with torch.no_grad():
        unpacked = packed.unflatten(2, (-1, config.mel_bins // 4)).transpose(1, 2)
        return reference.decode(unpacked, return_dict=False)[0]


@pytest.mark.parametrize("config", VAES.values(), ids=VAES)
def test_spectrogram(config: Config, tmp_path: Path, record_property: Any) -> None:
    reference = tiny_ltx.audio_vae(3, **config)
    latents = drawn(2, TOKENS, config["base_channels"])
    expected = expected_mel(reference, latents).permute(0, 2, 3, 1).numpy()
    gap = relative(call(atelier_vae(reference, tmp_path), jnp.asarray(latents)), expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE


@pytest.mark.parametrize("config", VOCODERS.values(), ids=VOCODERS)
def test_waveform(config: Config, tmp_path: Path, record_property: Any) -> None:
    reference = tiny_ltx.vocoder(3, **config)
    channels = config.get("out_channels", 2)
    mel = drawn(2, channels, TOKENS, config["in_channels"] // channels)
    with torch.no_grad():
        expected = reference(torch.tensor(mel)).permute(0, 2, 1).numpy()
    flat = mel.transpose(0, 2, 1, 3).reshape(2, TOKENS, -1)
    gap = relative(call(atelier_vocoder(reference, tmp_path), jnp.asarray(flat)), expected)
    record_property("relative", gap)
    print(f"{gap:.1e} loudest {np.abs(expected).max():.2f}")
    assert gap < RELATIVE
    assert (np.abs(expected) < 0.999).mean() > 0.5  # clipped samples would hide errors


PAIRS = {
    "2.3": (tiny_ltx.AUDIO_VAE, tiny_ltx.EXTENDED),
    "odd": (tiny_ltx.AUDIO_VAE_ODD, tiny_ltx.EXTENDED_ODD),
}


@pytest.mark.parametrize(("vae", "vocoder"), PAIRS.values(), ids=PAIRS)
def test_sound_of_latents(
    vae: Config, vocoder: Config, tmp_path: Path, record_property: Any
) -> None:
    references = tiny_ltx.audio_vae(3, **vae), tiny_ltx.vocoder(4, **vocoder)
    latents = drawn(2, TOKENS, vae["base_channels"])
    with torch.no_grad():
        expected = references[1](expected_mel(references[0], latents)).numpy()
    parts = AudioParts(
        atelier_vae(references[0], tmp_path / "vae"),
        atelier_vocoder(references[1], tmp_path / "vocoder"),
    )
    sound = sound_of(parts, jnp.asarray(latents))
    gap = relative(sound, expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE
    single = sound_of(parts, jnp.asarray(latents[1:]))
    assert relative(sound[1:], np.asarray(single)) < RELATIVE  # independent of the other rows


def test_half_precision_weights_are_computed_in_float32(tmp_path: Path) -> None:
    references = (
        tiny_ltx.audio_vae(3, **tiny_ltx.AUDIO_VAE),
        tiny_ltx.vocoder(4, **tiny_ltx.EXTENDED),
    )
    computed = references[1].resampler.filter.clone()
    for reference in references:
        reference.bfloat16().float()
    references[1].resampler.filter = computed
    latents = drawn(1, TOKENS, 12)
    with torch.no_grad():
        expected = references[1](expected_mel(references[0], latents)).numpy()
    parts = AudioParts(
        atelier_vae(references[0], tmp_path / "vae", jnp.bfloat16),
        atelier_vocoder(references[1], tmp_path / "vocoder", jnp.bfloat16),
    )
    sound = sound_of(parts, jnp.asarray(latents))
    assert sound.dtype == jnp.float32
    assert relative(sound, expected) < RELATIVE


MEL_BITES = {
    "convolution of a block": "levels.1.blocks.0.second.kernel",
    "what goes around": "levels.0.blocks.0.around.kernel",
    "convolution of an upsampling": "levels.2.up.kernel",
    "bias in the middle": "mid.1.first.bias",
    "statistics": "latents_std",
}


@pytest.mark.parametrize("path", MEL_BITES.values(), ids=MEL_BITES)
def test_changed_decoder_array_breaks_parity(path: str, tmp_path: Path) -> None:
    reference = tiny_ltx.audio_vae(3, **tiny_ltx.AUDIO_VAE)
    damaged, latents = atelier_vae(reference, tmp_path), drawn(2, TOKENS, 12)
    leaf = flat_parameters(damaged)[path]
    leaf[...] = leaf[...] * 1.03
    expected = expected_mel(reference, latents).permute(0, 2, 3, 1).numpy()
    assert relative(call(damaged, jnp.asarray(latents)), expected) > 10 * RELATIVE


VOCODER_BITES = {
    "upsampling": "vocoder.levels.1.up.kernel",
    "second of a pair": "vocoder.levels.0.stacks.1.second.1.kernel",
    "frequency of a snake": "extension.levels.0.stacks.0.before_first.0.activation.alpha",
    "size of a snake": "vocoder.levels.1.stacks.0.before_second.0.activation.beta",
    "filter up": "vocoder.before_leave.up",
    "filter down": "extension.levels.1.stacks.0.before_first.1.down",
    "Fourier transform": "fourier.kernel",
    "mel bins": "mel.kernel",
}


@pytest.mark.parametrize("path", VOCODER_BITES.values(), ids=VOCODER_BITES)
def test_changed_vocoder_array_breaks_parity(path: str, tmp_path: Path) -> None:
    reference = tiny_ltx.vocoder(3, **tiny_ltx.EXTENDED)
    mel = drawn(1, 2, TOKENS, 16)
    with torch.no_grad():
        expected = reference(torch.tensor(mel)).permute(0, 2, 1).numpy()
    damaged = atelier_vocoder(reference, tmp_path)
    leaf = flat_parameters(damaged)[path]
    leaf[...] = leaf[...] * 1.03
    flat = jnp.asarray(mel.transpose(0, 2, 1, 3).reshape(1, TOKENS, -1))
    assert relative(call(damaged, flat), expected) > 10 * RELATIVE


@pytest.mark.parametrize(
    "change",
    [{"act_fn": "snake"}, {"final_act_fn": None}, {"resnet_dilations": [[1, 3, 2]]}],
    ids=str,
)
def test_wrong_config_breaks_parity(change: Config, tmp_path: Path) -> None:
    config_values = {**tiny_ltx.VOCODER_ODD, "act_fn": "snakebeta"}
    reference = tiny_ltx.vocoder(3, **config_values)
    mel = 3 * drawn(1, 1, TOKENS, 21)
    with torch.no_grad():
        expected = reference(torch.tensor(mel)).permute(0, 2, 1).numpy()
    reference.save_pretrained(tmp_path)
    config = read_vocoder_config({**read_config(tmp_path.parent, tmp_path.name), **change})
    unread = ((r"resnets.*\.beta", ""),) if config.act_fn == "snake" else ()
    renames = (*unread, *vocoder_renames(config))
    wrong_network = load(abstract_module(vocoder_of, config), tmp_path, renames, dtype=jnp.float32)
    assert relative(call(wrong_network, jnp.asarray(mel[:, 0])), expected) > 100 * RELATIVE
