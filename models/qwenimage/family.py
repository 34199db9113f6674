"""Qwen-Image and Qwen-Image-Edit: their checkpoints, and the configs of the published ones.

Source: Qwen/Qwen-Image, whose transformer has diffusers' defaults (`QwenImageConfig`) throughout;
Qwen/Qwen-Image-Edit, and its 2509 and 2511.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.interface.family import (
    Family,
    PublishedCheckpoint,
    SingleFiles,
    config_files,
    with_control,
)
from models.sampling.published import FLOW_MATCH
from models.text.published import QWEN2_5_VL_7B
from models.vae.published import QWEN_IMAGE as VAE
from models.vision.preprocess import FILE as PREPROCESSOR

PIPELINES = ("QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline")
EDIT, EDIT_INPAINT = "QwenImageEditPipeline", "QwenImageEditInpaintPipeline"
EDIT_PLUS = "QwenImageEditPlusPipeline"

TRANSFORMER: Mapping[str, Any] = {}
QWEN_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN2_5_VL_7B,
    "vae": VAE,
}
EDIT_2511 = {**QWEN_IMAGE, "transformer": {**TRANSFORMER, "zero_cond_t": True}}
CONTROLNET: Mapping[str, Any] = {"num_layers": 5}
"""InstantX/Qwen-Image-ControlNet-Union: five double blocks, no modes (its README)."""
PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
"""Image processor of the text encoder."""
SCHEDULER = {
    **FLOW_MATCH,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}

FILES = config_files(PIPELINES[0], SCHEDULER, QWEN_IMAGE)


def _edit(pipeline: str, networks: Mapping[str, Mapping[str, Any]]) -> PublishedCheckpoint:
    files = config_files(pipeline, SCHEDULER, networks)
    return PublishedCheckpoint({**files, f"processor/{PREPROCESSOR}": PROCESSOR})


FAMILY = Family(
    "qwenimage",
    "Qwen-Image",
    {
        **dict.fromkeys(PIPELINES, f"{__package__}.load"),
        **dict.fromkeys((EDIT, EDIT_INPAINT, EDIT_PLUS), f"{__package__}.edit.load"),
    },
    options=frozenset({"controls", "token_buckets"}),
    single_files=SingleFiles(("text_encoder", "vae"), "transformer_blocks and txt_norm"),
    published={
        "qwen-image": PublishedCheckpoint(FILES),
        "qwen-image-controlnet-union": with_control(FILES, CONTROLNET),
        "qwen-image-edit": _edit(EDIT, QWEN_IMAGE),
        "qwen-image-edit-2509": _edit(EDIT_PLUS, QWEN_IMAGE),
        "qwen-image-edit-2511": _edit(EDIT_PLUS, EDIT_2511),
    },
)
