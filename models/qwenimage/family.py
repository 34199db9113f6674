"""Qwen-Image and Qwen-Image-Edit: their checkpoints, and the configs of the published ones.

Source: Qwen/Qwen-Image, whose transformer has diffusers' defaults (`QwenImageConfig`) throughout;
Qwen/Qwen-Image-Edit, and its 2509 and 2511.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.interface.family import Family, PublishedCheckpoint, SingleFiles, config_files
from models.sampling.published import FLOW_MATCH
from models.text.published import QWEN2_5_VL_7B
from models.vae.published import WAN_2_1
from models.vision.preprocess import FILE as PREPROCESSOR

PIPELINES = ("QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline")
EDIT, EDIT_INPAINT = "QwenImageEditPipeline", "QwenImageEditInpaintPipeline"
EDIT_PLUS = "QwenImageEditPlusPipeline"

TRANSFORMER: Mapping[str, Any] = {}
QWEN_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN2_5_VL_7B,
    "vae": {**WAN_2_1, "dropout": 0.0, "input_channels": 3},
}
EDIT_2511 = {**QWEN_IMAGE, "transformer": {**TRANSFORMER, "zero_cond_t": True}}
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
    options=frozenset({"token_buckets"}),
    single_files=SingleFiles(("text_encoder", "vae"), "transformer_blocks and txt_norm"),
    published={
        "qwen-image": PublishedCheckpoint(config_files(PIPELINES[0], SCHEDULER, QWEN_IMAGE)),
        "qwen-image-edit": _edit(EDIT, QWEN_IMAGE),
        "qwen-image-edit-2509": _edit(EDIT_PLUS, QWEN_IMAGE),
        "qwen-image-edit-2511": _edit(EDIT_PLUS, EDIT_2511),
    },
)
