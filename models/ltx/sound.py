"""Audio decoding: latents to spectrograms, then to waveforms."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.ltx.audio_vae import LTX2AudioDecoder
from models.ltx.vocoder import ExtendedVocoder, Vocoder

Module = TypeVar("Module", bound=nnx.Module)


class AudioParts(NamedTuple):
    """Networks that decode audio latents: VAE decoder and vocoder."""

    vae: LTX2AudioDecoder
    vocoder: Vocoder | ExtendedVocoder


def decode_audio(
    parts: AudioParts, latents: Float[Array, "batch tokens features"]
) -> Float[Array, "batch channels samples"]:
    """Decode normalized audio tokens to a waveform, in [-1, 1] if the vocoder bounds it.

    Computation is in float32 for every storage dtype: half-precision errors accumulate over the
    vocoder's hundred consecutive convolutions.
    """
    vae, vocoder = (_wide(part) for part in parts)
    with jax.default_matmul_precision("highest"):
        mel = vae(latents.astype(jnp.float32))
        bins_of_all = mel.swapaxes(2, 3).reshape(*mel.shape[:2], -1)
        return vocoder(bins_of_all).swapaxes(1, 2)


def _wide(module: Module) -> Module:
    """Cast a network's arrays to float32."""
    graph, state = nnx.split(module)
    return nnx.merge(graph, jax.tree.map(lambda array: array.astype(jnp.float32), state))
