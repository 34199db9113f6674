"""diffusers' pipelines from the same configs, with random weights made on the device. As on the
other side, prompts are blank: the encoders' full number of tokens, all text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

Json = Mapping[str, Any]

CONFIGS: Mapping[str, tuple[str, str]] = {
    "CLIPTextModel": ("CLIPTextConfig", "CLIPTextModel"),
    "CLIPTextModelWithProjection": ("CLIPTextConfig", "CLIPTextModelWithProjection"),
    "T5EncoderModel": ("T5Config", "T5EncoderModel"),
    "UMT5EncoderModel": ("UMT5Config", "UMT5EncoderModel"),
}
"""Config class and model class in transformers, by text encoder."""

FLUX = {
    "transformer": "FluxTransformer2DModel",
    "vae": "AutoencoderKL",
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "T5EncoderModel",
}
SDXL = {
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
}
WAN = {
    "transformer": "WanTransformer3DModel",
    "transformer_2": "WanTransformer3DModel",
    "vae": "AutoencoderKLWan",
    "text_encoder": "UMT5EncoderModel",
}
PARTS: Mapping[str, Mapping[str, str]] = {
    "FluxPipeline": FLUX,
    "StableDiffusionXLPipeline": SDXL,
    "WanPipeline": WAN,
}
"""Networks and their classes, by pipeline."""

FLOAT32 = ("AutoencoderKLWan",)
"""Networks that both sides run in float32, as diffusers recommends."""


class BlankTokenizer:
    """Tokenizer that returns token ids of zero."""

    def __init__(self, length: int) -> None:
        self.model_max_length = length

    def __call__(
        self,
        prompt: str | Sequence[str],
        padding: Any = None,
        max_length: int | None = None,
        **how: Any,
    ) -> transformers.BatchEncoding:
        count = 1 if isinstance(prompt, str) else len(prompt)
        length = 1 if padding == "longest" else max_length or self.model_max_length
        ids = torch.zeros(count, length, dtype=torch.long)
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": ids + 1})

    def tokenize(self, prompt: str) -> list[str]:
        """Return no tokens; diffusers searches them for textual inversions."""
        return []


def made(folder: Path, device: str, dtype: torch.dtype) -> Any:
    """Make the pipeline of a folder of configs.

    Raises: ValueError: a kind of pipeline that is not compared.
    """
    index = read(folder / "model_index.json")
    kind = index["_class_name"]
    if kind not in PARTS:
        raise ValueError(f"{kind} is not compared here, but {', '.join(PARTS)}")
    names = {
        name: class_name for name, class_name in PARTS[kind].items() if (folder / name).is_dir()
    }
    networks = {
        name: network(read(folder / name / "config.json"), class_name, device, dtype)
        for name, class_name in names.items()
    }
    clip = networks["text_encoder"].config
    length = getattr(clip, "max_position_embeddings", None) or 512
    tokenizers = {"tokenizer": BlankTokenizer(length)}
    if kind != "WanPipeline":
        tokenizers["tokenizer_2"] = BlankTokenizer(length)
    options = {
        "WanPipeline": lambda: {
            "transformer_2": networks.get("transformer_2"),
            "boundary_ratio": index.get("boundary_ratio"),
            "expand_timesteps": bool(index.get("expand_timesteps")),
        },
        "StableDiffusionXLPipeline": lambda: {"add_watermarker": False},
        "FluxPipeline": dict,
    }[kind]()
    pipeline = getattr(diffusers, kind)(
        scheduler=scheduler(folder, index), **{**networks, **tokenizers, **options}
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def network(config: Json, which: str, device: str, dtype: torch.dtype) -> Any:
    """Make a network on the device in its dtype, with torch's random initialization."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if which in FLOAT32 else dtype)
    try:
        with torch.device(device):
            return maker(config, which)().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(usual)


def maker(config: Json, which: str) -> Callable[[], Any]:
    if which in CONFIGS:
        config_class, model_class = (getattr(transformers, name) for name in CONFIGS[which])
        return lambda: model_class(config_class(**config))
    kind = getattr(diffusers, which)
    return lambda: kind.from_config(
        {name: value for name, value in config.items() if not name.startswith("_")}
    )


def scheduler(folder: Path, index: Json) -> Any:
    config = read(folder / "scheduler" / "scheduler_config.json")
    return getattr(diffusers, index["scheduler"][-1]).from_config(config)


def read(file: Path) -> Any:
    return json.loads(file.read_text())
