"""Suite entries of Flux and of its tools."""

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
    T5,
    TRUE_CFG,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    drawn_with_controls,
    image_file,
    tiny,
)

flux = partial(tiny, "tiny:make_flux")
SIZES = {"num_attention_heads": 8, "num_layers": 1, "num_single_layers": 2}
FLUX = flux(transformer=SIZES, clip=CLIP, t5=T5)
MIN_FLUX = flux(transformer={"num_layers": 1, "num_single_layers": 1})


def _flux_tool(kind: str, further: int, vae: Fields, **more: int) -> Callable[[Path], Path]:
    """Return a function that writes a checkpoint of that pipeline of diffusers.

    Args:
        further: Input channels of a token in addition to the latents'.
    """

    def make(folder: Path) -> Path:
        import diffusers

        sizes = {"in_channels": 16 + further, "out_channels": 16, "num_single_layers": 1, **more}
        return flux(
            kind=getattr(diffusers, kind),
            transformer={"num_layers": 1, **sizes},
            vae=vae,
            clip=CLIP,
            t5=T5,
        )(folder)

    return make


def _tool(
    place: int,
    kind: str,
    published: Mapping[str, str],
    images: Mapping[str, bytes],
    further: int = 0,
    guided: Fields | None = None,
    size: tuple[int, int] = (48, 80),
    vae: Fields | None = None,
    **of_reference: Any,
) -> SuiteEntry:
    """Entry of a tool of Flux.

    Args:
        guided: Fields of guidance, if the tool has a negative prompt.
        size: Size of a request, whose tokens divide by none of the layouts.
        of_reference: Arguments of diffusers' call.
    """
    sides = dict(zip(("width", "height"), size, strict=True))
    least = {"width": 64, "height": 64} if vae else {}
    return SuiteEntry(
        place,
        make=_flux_tool(kind, further, vae or {}, num_attention_heads=8),
        least=_flux_tool(kind, further, vae or {}),
        request={**FEW, "guidance_scale": 4.0, **sides, **(guided or {})},
        smallest_request={**SMALLEST, "max_sequence_length": 16, **least},
        reference=partial(drawn_by_diffusers, images=images, **of_reference),
        guided=guided or {},
        unguided={},
        published=published,
        images=images,
        has_strength=False,
    )


SMALL_SIGLIP: Fields = {"image_size": 17, "num_hidden_layers": 1}


def _with_redux(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Return a function that also writes a Redux of nine tokens."""

    def both(folder: Path) -> Path:
        from tests.parity.tiny_redux import make_redux

        make_redux(folder / "redux", siglip=SMALL_SIGLIP)
        return make(folder)

    return both


def _drawn_after_redux(folder: Path, request: Fields, images: Mapping[str, bytes]) -> np.ndarray:
    """Generate a request with diffusers' two pipelines. Each scale is both scales of the first."""
    from diffusers import FluxPipeline, FluxPriorReduxPipeline

    flux = FluxPipeline.from_pretrained(folder)
    names = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    parts = {name: flux.components[name] for name in names}
    prior = FluxPriorReduxPipeline.from_pretrained(folder / "redux", **parts)
    scales = [entry["scale"] for entry in request["image_prompts"]]
    embeddings = prior(
        [Image.open(io.BytesIO(file)) for file in images.values()],
        prompt=[request["prompt"]] * len(images),
        prompt_embeds_scale=scales,
        pooled_prompt_embeds_scale=scales,
    )
    fields = {
        name: value for name, value in request.items() if name not in ("prompt", "image_prompts")
    }
    return drawn_by_diffusers(folder, {**fields, **embeddings})


IMAGE_PROMPTS: Fields = {"image_prompts": [{"scale": 0.6}, {"name": "redux", "scale": 0.7}]}

PLAIN = SuiteEntry(
    place=0,
    make=FLUX,
    least=MIN_FLUX,
    request={**FEW, "width": 48, "height": 80, **TRUE_CFG},
    smallest_request={**SMALLEST, "max_sequence_length": 16, "true_cfg_scale": 1.0},
    reference=drawn_by_diffusers,
    guided=TRUE_CFG,
    unguided={},
    published={"flux-dev": "FLUX.1 dev", "flux-schnell": "FLUX.1 schnell"},
)

PLAIN_CONTROLS = ("edges", "depth")


def _with_controls(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Return a function that also writes two ControlNets and a union of other blocks."""

    def both(folder: Path) -> Path:
        from tests.parity.tiny_flux_controls import make_control

        make(folder)
        for seed, name in enumerate(PLAIN_CONTROLS, 5):
            make_control(folder / "controls" / name, folder, seed)
        union = {"num_mode": 3, "num_layers": 1, "num_single_layers": 0}
        make_control(folder / "controls" / "union", folder, 7, **union)
        return folder

    return both


BOTH: Fields = {
    "control": [
        {"name": "edges", "scale": 0.7, "end": 0.5},
        {"name": "depth", "scale": 0.5},
    ]
}
UNLIKE: tuple[Fields, ...] = (
    BOTH,
    {"control": [{"name": "canny", "scale": 0.9, "start": 0.3}]},
    {"control": []},
    {"control": [{"name": "depth", "scale": 0.6}, {"name": "canny", "scale": 0.4}]},
    {"control": [{"name": "tile", "scale": 0.9}]},
)
"""Controls of the rows of one batch: two networks, one network, or none."""

ENTRIES: Mapping[str, SuiteEntry] = {
    "flux": PLAIN,
    "flux-controlnet": replace(
        PLAIN,
        place=20,
        make=_with_controls(FLUX),
        least=_with_controls(MIN_FLUX),
        request={**PLAIN.request, "guidance_scale": 3.5, **BOTH},
        smallest_request={**PLAIN.smallest_request, **BOTH},
        reference=partial(
            drawn_with_controls,
            images={str(index): image_file(9 + index) for index in range(2)},
            family="Flux",
        ),
        published={
            "flux-controlnet-union": "FLUX.1 dev with ControlNet Union",
            "flux-controlnet-union-pro-2": "FLUX.1 dev with ControlNet Union-Pro-2.0",
        },
        images={f"control.{index}.image": image_file(9 + index) for index in range(2)},
        image_fields=BOTH,
        controls={
            **{name: ControlSource(f"controls/{name}") for name in PLAIN_CONTROLS},
            **{mode: ControlSource("controls/union", mode) for mode in ("canny", "tile")},
        },
        max_controls=2,
        batch_variants=UNLIKE,
    ),
    "flux-redux": SuiteEntry(
        place=13,
        make=_with_redux(FLUX),
        least=_with_redux(MIN_FLUX),
        request={**FEW, "width": 48, "height": 80, **TRUE_CFG, **IMAGE_PROMPTS},
        smallest_request={
            **SMALLEST,
            "max_sequence_length": 16,
            "true_cfg_scale": 1.0,
            **IMAGE_PROMPTS,
        },
        reference=partial(
            _drawn_after_redux, images={str(index): image_file(5 + index) for index in range(2)}
        ),
        guided=TRUE_CFG,
        unguided=TRUE_CFG,
        published={"flux-redux": "FLUX.1 dev with Redux"},
        images={f"image_prompts.{index}.image": image_file(5 + index) for index in range(2)},
        image_fields=IMAGE_PROMPTS,
        image_prompts={"redux": "redux"},
    ),
    "flux-fill": _tool(
        14,
        "FluxFillPipeline",
        {"flux-fill": "FLUX.1 Fill dev"},
        {"image": image_file(1), "mask_image": image_file(2, "L")},
        further=4 * (4 + 16),
    ),
    "flux-control": _tool(
        15,
        "FluxControlPipeline",
        {"flux-canny": "FLUX.1 Canny dev", "flux-depth": "FLUX.1 Depth dev"},
        {"control_image": image_file(3)},
        further=4 * 4,
    ),
    "flux-kontext": _tool(
        16,
        "FluxKontextPipeline",
        {"flux-kontext": "FLUX.1 Kontext dev"},
        {"image": image_file(4)},
        guided=TRUE_CFG,
        size=(192, 192),
        vae={"block_out_channels": (4, 4, 4, 4, 8, 8), "norm_num_groups": 2},
        max_area=192 * 192,
    ),
}
