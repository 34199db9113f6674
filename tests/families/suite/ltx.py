"""Suite entry of LTX-2."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np

from tests.families.suite.entry import (
    FEW,
    SMALLEST,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    tiny,
)

LAYERS: Fields = {
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
}
CONNECTORS: Fields = {"video_connector_num_layers": 1, "audio_connector_num_layers": 1}
WIDE: Fields = {
    "num_attention_heads": 8,
    "attention_head_dim": 8,
    "cross_attention_dim": 64,
    "audio_num_attention_heads": 8,
    "audio_attention_head_dim": 6,
    "audio_cross_attention_dim": 48,
    "num_layers": 2,
}
DECODERS: dict[str, Fields] = {
    "audio_vae": {"num_res_blocks": 1},
    "vocoder": {
        "resnet_kernel_sizes": [3],
        "resnet_dilations": [[1]],
        "bwe_resnet_dilations": [[1]],
    },
    "latent_upsampler": {"num_blocks_per_stage": 1},
}
"""Decoders with one block where there may be several: they are half of the compilation.
tests/parity has all blocks."""
SCALES: Fields = {
    "guidance_scale": 3.0,
    "audio_guidance_scale": 5.0,
    "stg_scale": 0.7,
    "modality_scale": 2.0,
}
UNGUIDED: Fields = {**dict.fromkeys(SCALES, 1.0), "stg_scale": 0.0}


ltx = partial(
    tiny,
    "tiny_ltx_pipeline:make_ltx",
    connectors=CONNECTORS,
    text_encoder=LAYERS,
    **DECODERS,
)


def _drawn(folder: Path, request: Fields) -> np.ndarray:
    """Generate a request with diffusers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised by diffusers itself
        return drawn_by_diffusers(
            folder,
            request,
            frames=True,
            spatio_temporal_guidance_blocks=[1],
            **dict.fromkeys(("audio_stg_scale", "audio_modality_scale", "audio_guidance_rescale")),
        )


LTX = SuiteEntry(
    place=19,
    make=ltx(transformer=WIDE),
    least=ltx(transformer={"num_layers": 2}),
    request={
        **FEW,
        **SCALES,
        "width": 96,
        "height": 160,
        "num_frames": 9,
        "max_sequence_length": 24,
    },
    smallest_request={
        **SMALLEST,
        **SCALES,
        "prompt": "a red circle moves",
        "negative_prompt": "",
        "width": 64,
        "height": 32,
        "num_frames": 5,
        "fps": 24,
        "num_inference_steps": 4,
        "max_sequence_length": 24,
        "guidance_rescale": 0.7,
    },
    reference=_drawn,
    guided=SCALES,
    unguided=UNGUIDED,
    published={"ltx-2.3": "LTX-2.3", "ltx-2": "LTX-2"},
    has_strength=False,
    step_caches=False,
    step_plans=False,
    weighted_prompts=False,
)
ENTRIES = {"ltx": LTX}
