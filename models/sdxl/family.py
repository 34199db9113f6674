"""SDXL and its refiner: their checkpoints, and what their loader accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.interface.family import (
    Config,
    ConfigFiles,
    Family,
    PublishedCheckpoint,
    SingleFiles,
    config_files,
    with_control,
)
from models.sdxl import published

CLASSES: Mapping[str, str] = {
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
}
"""Network → its class in `model_index.json`. Other classes are different networks: a distilled
autoencoder, or a first encoder with a projection, whose pooled output diffusers would use."""

REFINER_ENCODER = "conditioner.embedders.0.model."
"""Prefix of the only text encoder's keys in files of the refiner."""
BASE, FROM_IMAGE = "StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"
PIPELINES = (BASE, FROM_IMAGE, "StableDiffusionXLInpaintPipeline")


def _files(pipeline: str, networks: Mapping[str, Config], **index: Any) -> ConfigFiles:
    classes = {name: ("", CLASSES[name]) for name in networks}
    tokenizers = {
        name.replace("text_encoder", "tokenizer"): ("transformers", "CLIPTokenizer")
        for name in networks
        if name.startswith("text_encoder")
    }
    return config_files(pipeline, published.SCHEDULER, networks, **classes, **tokenizers, **index)


SDXL = _files(BASE, published.SDXL_BASE)
REFINER = _files(
    FROM_IMAGE,
    published.SDXL_REFINER,
    requires_aesthetics_score=True,
    force_zeros_for_empty_prompt=False,
)

FAMILY = Family(
    "sdxl",
    "SDXL",
    dict.fromkeys(PIPELINES, f"{__package__}.load"),
    options=frozenset({"image_prompts", "controls", "refiner"}),
    single_files=SingleFiles(
        usual={
            "vae": ("first_stage_model.",),
            "text_encoder": ("conditioner.embedders.0.transformer.", REFINER_ENCODER),
            "text_encoder_2": ("conditioner.embedders.1.model.", REFINER_ENCODER),
        },
        bases={
            "": "stabilityai/stable-diffusion-xl-base-1.0",
            REFINER_ENCODER: "stabilityai/stable-diffusion-xl-refiner-1.0",
        },
    ),
    published={
        "sdxl": PublishedCheckpoint(SDXL),
        "sdxl-controlnet": with_control(SDXL, published.CONTROLNET),
        "sdxl-controlnet-mid": with_control(SDXL, published.CONTROLNET_MID),
        "sdxl-controlnet-small": with_control(SDXL, published.CONTROLNET_SMALL),
        "sdxl-controlnet-union": with_control(
            SDXL, published.CONTROLNET_UNION, "openpose", "depth", "canny"
        ),
        "sdxl-ip-adapter": PublishedCheckpoint(
            {
                **SDXL,
                "ip-adapter/plus.json": published.IP_ADAPTER_PLUS,
                "ip-adapter/image_encoder/config.json": published.CLIP_VISION_H,
            },
            image_prompts={"plus": "ip-adapter/plus.json"},
        ),
        "sdxl-refiner": PublishedCheckpoint(REFINER),
        "sdxl-refined": PublishedCheckpoint(
            {**SDXL, **{f"refiner/{path}": config for path, config in REFINER.items()}},
            refiner="refiner",
        ),
    },
)
