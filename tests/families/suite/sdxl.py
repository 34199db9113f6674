"""Suite entries of SDXL, its refiner, ControlNets and IP-Adapters."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.loading.sources import ControlSource
from tests.families.suite.entry import (
    CLIP,
    FEW,
    SMALLEST,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    image_file,
    tiny,
)

UNET = {"block_out_channels": (16, 32), "transformer_layers_per_block": 1}


sdxl = partial(tiny, "tiny_sdxl:make_sdxl")
SDXL = sdxl(unet={"attention_head_dim": (8, 8), **UNET}, clip=CLIP, clip_2=CLIP)
MIN_SDXL = sdxl(unet={"attention_head_dim": (2, 4), **UNET})

REFINER_UNET = {"block_out_channels": (16, 32, 32), "transformer_layers_per_block": 1}
refiner = partial(tiny, "tiny_sdxl:make_refiner")
REFINER = refiner(unet={"attention_head_dim": 8, **REFINER_UNET}, clip_2=CLIP)
MIN_REFINER = refiner(unet={"attention_head_dim": 4, **REFINER_UNET})

ADAPTER = "ip-adapter/plus.safetensors"


def _with_ip_adapter(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Return a function that also writes an IP-Adapter of five tokens."""

    def both(folder: Path) -> Path:
        from diffusers import UNet2DConditionModel

        from tests.parity.tiny_ip_adapter import make_encoder, make_plus

        make(folder)
        unet = UNet2DConditionModel.from_pretrained(folder / "unet")
        file = folder / ADAPTER
        encoder = make_encoder(file.parent / "image_encoder", num_hidden_layers=1)
        make_plus(file, unet, encoder.config.hidden_size)
        return folder

    return both


def _drawn_with_ip_adapter(
    folder: Path, request: Fields, images: Mapping[str, bytes]
) -> np.ndarray:
    """Generate a request with diffusers. All image prompts have one scale."""
    place = Path(ADAPTER)

    def prepared(pipeline: Any) -> dict[str, Any]:
        pipeline.load_ip_adapter(str(folder), subfolder=f"{place.parent}", weight_name=place.name)
        pipeline.set_ip_adapter_scale(request["image_prompts"][0]["scale"])
        opened = [Image.open(io.BytesIO(file)) for file in images.values()]
        return {"ip_adapter_image": [opened]}

    fields = {name: value for name, value in request.items() if name != "image_prompts"}
    return drawn_by_diffusers(folder, fields, before=prepared)


def _drawn_from_image(folder: Path, request: Fields, image: bytes) -> np.ndarray:
    """Generate a request with diffusers' SDXL from an image, whose size that pipeline keeps."""
    fields = dict(request)
    size = fields.pop("width"), fields.pop("height")
    resized = Image.open(io.BytesIO(image)).resize(size, Image.Resampling.LANCZOS)
    return drawn_by_diffusers(folder, fields, image=resized)


BESIDE = "refiner"


def _refined(
    make: Callable[[Path], Path], refiner: Callable[[Path], Path]
) -> Callable[[Path], Path]:
    """Return a function that also writes a refiner."""

    def both(folder: Path) -> Path:
        make(folder)
        refiner(folder / BESIDE)
        return folder

    return both


def _drawn_by_two(folder: Path, request: Fields) -> np.ndarray:
    """Generate a request with diffusers' base and refiner, both with the base's autoencoder."""
    import torch
    from diffusers import StableDiffusionXLImg2ImgPipeline, StableDiffusionXLPipeline

    base: Any = StableDiffusionXLPipeline.from_pretrained(folder)
    refiner: Any = StableDiffusionXLImg2ImgPipeline.from_pretrained(folder / BESIDE, vae=base.vae)
    arguments = {name: value for name, value in request.items() if name not in ("seed", "refiner")}
    switch, generator = request["refiner"]["switch"], torch.Generator("cpu")
    generator.manual_seed(request["seed"])
    for pipeline in (base, refiner):
        pipeline.set_progress_bar_config(disable=True)
    latents = base(
        **arguments, denoising_end=switch, generator=generator, output_type="latent"
    ).images
    refiner_arguments = {
        name: value for name, value in arguments.items() if name not in ("width", "height")
    }
    output = refiner(
        **refiner_arguments,
        denoising_start=switch,
        image=latents,
        generator=generator,
        output_type="np",
    )
    return (output.images[0] * 255).round().astype(np.uint8)


HALF: Fields = {"refiner": {"switch": 0.5}}

LATER: tuple[Fields, ...] = (HALF, {"refiner": None}, {"refiner": {"switch": 0.3}}, HALF)
"""Refiners of the rows of one batch: from two steps on, which share programs, and none."""

BY_PLUS: Fields = {"image_prompts": [{"scale": 0.6}, {"name": "plus", "scale": 0.6}]}

PLAIN_CONTROLS = ("edges", "depth")

UNION = {"num_control_type": 6, "num_trans_head": 2}


def _with_controls(make: Callable[[Path], Path], **heads: Any) -> Callable[[Path], Path]:
    """Return a function that also writes two ControlNets and a union."""

    def both(folder: Path) -> Path:
        from tests.parity.tiny_sdxl import make_control

        make(folder)
        for seed, name in enumerate(PLAIN_CONTROLS, 5):
            make_control(folder / "controls" / name, folder, seed, **heads)
        make_control(folder / "controls" / "union", folder, 7, **UNION, **heads)
        return folder

    return both


def _drawn_with_controls(folder: Path, request: Fields, images: Mapping[str, bytes]) -> np.ndarray:
    """Generate a request with diffusers, with ControlNets that are not unions."""
    import diffusers

    entries = request["control"]
    kind: Any = diffusers.ControlNetModel
    nets = [kind.from_pretrained(folder / "controls" / entry["name"]) for entry in entries]
    pipeline: Any = diffusers.StableDiffusionXLControlNetPipeline
    more = {
        "image": [Image.open(io.BytesIO(file)) for file in images.values()],
        "controlnet_conditioning_scale": [entry["scale"] for entry in entries],
        "control_guidance_start": [entry.get("start", 0.0) for entry in entries],
        "control_guidance_end": [entry.get("end", 1.0) for entry in entries],
    }
    fields = {name: value for name, value in request.items() if name != "control"}
    return drawn_by_diffusers(
        folder, fields, of=partial(pipeline.from_pretrained, controlnet=nets), **more
    )


BOTH: Fields = {
    "control": [
        {"name": "edges", "scale": 0.7, "end": 0.5},
        {"name": "depth", "scale": 0.5},
    ]
}

UNLIKE: tuple[Fields, ...] = (
    BOTH,
    {
        "control": [
            {"name": "hed", "scale": 0.7, "end": 0.5},
            {"name": "openpose", "scale": 0.9, "start": 0.3},
        ]
    },
    {"control": [{"name": "openpose", "scale": 0.9, "start": 0.3}]},
    {"control": []},
    {"control": [{"name": "depth", "scale": 0.6}, {"name": "openpose", "scale": 0.4}]},
    {"control": [{"name": "hed", "scale": 0.9}]},
)
"""Controls of the rows of one batch: two networks, one network in one run or alone, or none."""

PLAIN = SuiteEntry(
    place=1,
    make=SDXL,
    least=MIN_SDXL,
    request={**FEW, "width": 40, "height": 72, "guidance_scale": 4.0},
    smallest_request={**SMALLEST, "negative_prompt": "", "guidance_scale": 5.0},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 4.0},
    unguided={"guidance_scale": 1.0},
    published={"sdxl": "SDXL base 1.0"},
    components={"unet": "unet"},
    step_caches=False,
)

ENTRIES: Mapping[str, SuiteEntry] = {
    "sdxl": PLAIN,
    "sdxl-controlnet": replace(
        PLAIN,
        place=7,
        make=_with_controls(SDXL, attention_head_dim=(8, 8), **UNET),
        least=_with_controls(MIN_SDXL, attention_head_dim=(2, 4), **UNET),
        request={**PLAIN.request, **BOTH},
        smallest_request={**PLAIN.smallest_request, **BOTH},
        reference=partial(
            _drawn_with_controls, images={str(index): image_file(9 + index) for index in range(2)}
        ),
        published={
            "sdxl-controlnet": "SDXL base 1.0 with ControlNet",
            "sdxl-controlnet-mid": "SDXL base 1.0 with ControlNet mid",
            "sdxl-controlnet-small": "SDXL base 1.0 with ControlNet small",
            "sdxl-controlnet-union": "SDXL base 1.0 with ControlNet Union promax",
        },
        images={f"control.{index}.image": image_file(9 + index) for index in range(2)},
        image_fields=BOTH,
        controls={
            **{name: ControlSource(f"controls/{name}") for name in PLAIN_CONTROLS},
            **{mode: ControlSource("controls/union", mode) for mode in ("openpose", "hed")},
        },
        max_controls=2,
        batch_variants=UNLIKE,
    ),
    "sdxl-ip-adapter": replace(
        PLAIN,
        place=9,
        make=_with_ip_adapter(SDXL),
        least=_with_ip_adapter(MIN_SDXL),
        request={**PLAIN.request, **BY_PLUS},
        smallest_request={**PLAIN.smallest_request, **BY_PLUS},
        reference=partial(
            _drawn_with_ip_adapter, images={str(index): image_file(7 + index) for index in range(2)}
        ),
        published={"sdxl-ip-adapter": "SDXL base 1.0 with IP-Adapter Plus"},
        images={f"image_prompts.{index}.image": image_file(7 + index) for index in range(2)},
        image_fields=BY_PLUS,
        image_prompts={"plus": ADAPTER},
    ),
    "sdxl-refiner": replace(
        PLAIN,
        place=11,
        make=REFINER,
        least=MIN_REFINER,
        request={**PLAIN.request, "strength": 0.9, "aesthetic_score": 7.5},
        smallest_request={**PLAIN.smallest_request, "strength": 1.0},
        reference=partial(_drawn_from_image, image=image_file(9)),
        published={"sdxl-refiner": "SDXL refiner 1.0"},
        images={"image": image_file(9)},
    ),
    "sdxl-refined": replace(
        PLAIN,
        place=12,
        make=_refined(SDXL, REFINER),
        least=_refined(MIN_SDXL, MIN_REFINER),
        request={**PLAIN.request, **HALF},
        smallest_request={**PLAIN.smallest_request, "refiner": {"switch": 0.8}},
        reference=_drawn_by_two,
        published={"sdxl-refined": "SDXL base 1.0 with its refiner"},
        components={"unet": "unet", "refiner": f"{BESIDE}/unet"},
        image_fields=HALF,
        refiner=BESIDE,
        batch_variants=LATER,
    ),
}
