"""Tiny random Qwen-Image checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKLQwenImage,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditInpaintPipeline,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import BatchEncoding
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.parity.tiny import Config, randomize
from tests.parity.tiny_qwen import OF_IMAGES, VISION, qwen25, qwen_tokenizer

_TRANSFORMER: Config = {
    "num_layers": 3,
    "num_attention_heads": 3,
    "axes_dims_rope": (4, 6, 10),
}
_VAE: Config = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True],
}
_SCHEDULER: Config = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 4,
    "max_image_seq_len": 60,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}


def make_qwenimage(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    seed: int = 0,
    kind: type[DiffusionPipeline] = QwenImagePipeline,
    markers: tuple[str, ...] = (),
    **save_kwargs: Any,
) -> Path:
    """Writes a complete checkpoint in diffusers' layout to `folder` and returns it.

    Each dict overrides single values of that part's small default config; sizes that two parts
    share follow the part that makes them.
    """
    text = qwen25(seed + 2, **(text_encoder or {}))
    image = make_vae(seed + 1, **(vae or {}))
    given = _TRANSFORMER | (transformer or {})
    sizes = {
        "attention_head_dim": sum(given["axes_dims_rope"]),
        "in_channels": 4 * image.config.z_dim,
        "out_channels": image.config.z_dim,
        "joint_attention_dim": text.config.text_config.hidden_size,
    }
    network = randomize(QwenImageTransformer2DModel(**(given | sizes)), seed + 3)
    for name, parameter in network.named_parameters():
        if ".norm_" in name and name.endswith("weight"):
            parameter.data *= 1.5  # attention that picks a few keys: else single words are hidden
    kind(
        scheduler=FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {}))),
        vae=image,
        text_encoder=text,
        tokenizer=qwen_tokenizer(markers),
        transformer=network,
    ).save_pretrained(folder, **save_kwargs)
    return folder


_SMALLER: Config = {
    "base_dim": 2,
    "dim_mult": [1, 1, 2, 2, 2],
    "temperal_downsample": [False, False, True, True],
}
"""An autoencoder for images of a megapixel, which every edit has."""


def make_edit(
    folder: Path,
    *,
    processor: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    vision: Config | None = None,
    kind: type[DiffusionPipeline] = QwenImageEditPipeline,
    **how: Any,
) -> Path:
    """Writes a complete checkpoint of Qwen-Image-Edit, whose encoder sees few patches."""
    text = {**(text_encoder or {}), "vision": vision or {}}
    made = _SMALLER | (vae or {})
    make_qwenimage(folder, vae=made, text_encoder=text, markers=OF_IMAGES, **how)
    eyes = {**VISION, **(vision or {})}
    sizes = {
        "patch_size": eyes["patch_size"],
        "merge_size": eyes.get("spatial_merge_size", 2),
        "temporal_patch_size": eyes.get("temporal_patch_size", 2),
        "size": {"shortest_edge": 256, "longest_edge": 2500},
    }
    Qwen2VLImageProcessorPil(**(sizes | (processor or {}))).save_pretrained(folder / "processor")
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("QwenImagePipeline", kind.__name__))
    return folder


class Processor:
    """What Qwen2VLProcessor does with texts of images; it is not to be had without torchvision.

    A video processor, which needs that, is part of it.
    """

    def __init__(self, tokenizer: Any, image_processor: Any) -> None:
        self.tokenizer, self.image_processor = tokenizer, image_processor

    def __call__(self, text: list[str], images: Any, **how: Any) -> BatchEncoding:
        seen = self.image_processor(images, return_tensors=how["return_tensors"])
        patches = seen["image_grid_thw"].prod(dim=-1).tolist()
        marks = [OF_IMAGES[2] * (count // self.image_processor.merge_size**2) for count in patches]
        texts = [_filled(one.split(OF_IMAGES[2]), marks) for one in text]
        return BatchEncoding({**self.tokenizer(texts, **how), **seen})


def _filled(parts: list[str], marks: list[str]) -> str:
    return "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=True))


EDITS = {
    kind.__name__: kind
    for kind in (QwenImageEditPipeline, QwenImageEditInpaintPipeline, QwenImageEditPlusPipeline)
}


def edits(folder: Path, kind: str | None = None) -> Any:
    """diffusers' pipeline of a checkpoint, whose encoder is told which tokens are an image's.

    Without that, transformers 5 places them like words; 4 looked for itself.

    Args:
        kind: class of the pipeline; None: as the checkpoint's index says.
    """
    parts = QwenImagePipeline.from_pretrained(folder).components
    patches = Qwen2VLImageProcessorPil.from_pretrained(folder / "processor")
    kind = kind or json.loads((folder / "model_index.json").read_text())["_class_name"]
    made = EDITS[kind](**parts, processor=Processor(parts["tokenizer"], patches))
    plain = made.text_encoder.forward
    pad = parts["tokenizer"].convert_tokens_to_ids(OF_IMAGES[2])
    made.text_encoder.config.image_token_id = pad

    def told(input_ids: Any, **given: Any) -> Any:
        return plain(input_ids, mm_token_type_ids=(input_ids == pad).int(), **given)

    made.text_encoder.forward = told
    return made


def make_vae(seed: int, **overrides: Any) -> AutoencoderKLQwenImage:
    """An autoencoder whose latents have means and deviations by channel."""
    given = _VAE | overrides
    channels = range(given["z_dim"])
    statistics = {
        "latents_mean": [0.3 * channel - 0.5 for channel in channels],
        "latents_std": [0.8 + 0.2 * channel for channel in channels],
    }
    made = randomize(AutoencoderKLQwenImage(**given, **statistics), seed)
    for name, parameter in made.named_parameters():
        if name.endswith("gamma"):
            parameter.data = 1 + 0.2 * parameter.data
    made.decoder.conv_out.weight.data *= 1.2  # most pixels inside [-1, 1]: a clipped one is blind
    return made  # type: ignore[return-value]
