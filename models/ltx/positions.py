"""Positions of LTX-2's tokens: the centre of each token, in seconds and pixels.

Source: diffusers transformer_ltx2.py, LTX2AudioVideoRotaryPosEmbed.
"""

from __future__ import annotations

import numpy as np

from models.ltx.config import LTX2Config


def video_places(config: LTX2Config, grid: tuple[int, int, int], fps: float) -> np.ndarray:
    """Return the centres of video latents, [tokens, 3]: seconds, rows and columns of pixels.

    Args:
        grid: frames, rows and columns of latents.
    """
    scales = np.array(config.vae_scale_factors, np.float32)
    starts = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1)
    starts = starts.reshape(-1, 3).astype(np.float32)
    edges = [starts * scales, (starts + 1) * scales]
    for bounds in edges:
        bounds[:, 0] = _causal(bounds[:, 0], scales[0], config.causal_offset) / np.float32(fps)
    return (edges[0] + edges[1]) / np.float32(2)


def audio_places(config: LTX2Config, latents: int) -> np.ndarray:
    """Return the centres of audio latents in time, [tokens, 1], in seconds."""
    scale = np.float32(config.audio_scale_factor)
    hop, rate = np.float32(config.audio_hop_length), np.float32(config.audio_sampling_rate)
    starts = np.arange(latents, dtype=np.float32)
    start, end = (
        _causal(bounds * scale, scale, config.causal_offset) * hop / rate
        for bounds in (starts, starts + 1)
    )
    return ((start + end) / np.float32(2))[:, None]


def _causal(bounds: np.ndarray, scale: np.float32, offset: int) -> np.ndarray:
    """Shift time bounds so that the first latent covers `offset` frames instead of `scale`."""
    moved: np.ndarray = np.maximum(bounds + np.float32(offset) - scale, np.float32(0))
    return moved
