"""What the conformance suite needs of each family: small checkpoints, requests, a reference."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models import registry
from models.interface.pipeline import Pipeline
from models.loading.sources import ControlSource, ImagePromptSource
from models.spec import video_files
from workers.media.video import encode_video

Fields = dict[str, Any]
CLIP, T5 = {"num_hidden_layers": 2}, {"num_layers": 1}


@dataclass(frozen=True)
class Family:
    """A family's entry."""

    make: Callable[[Path], Path]
    """Write a checkpoint of few layers whose eight heads divide over every layout. Imports torch,
    as `least` does."""
    least: Callable[[Path], Path]
    """Write the smallest checkpoint."""
    request: Fields
    """A guided request of `make`'s, whose tokens do not divide into four or eight."""
    least_request: Fields
    """A whole request of `least`'s."""
    reference: Callable[[Path, Fields], np.ndarray]
    """Draw a request by diffusers: uint8, as `Pipeline.decode` gives it."""
    guided: Fields
    unguided: Fields
    """What a request says to have a negative prompt, and to have none."""
    published: tuple[str, ...]
    """Names of its full-size checkpoints in `models.published`."""
    components: Mapping[str, str] = field(default_factory=lambda: {"transformer": "transformer"})
    """Denoising networks by name, and their folders in `make`'s checkpoint."""
    scale: str = "guidance_scale"
    """Field of requests whose value differs between rows of a batch."""
    step_caches: bool = True
    weighted_prompts: bool = True
    """True if prompts have weights: not of a chat model."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Files that come with both requests, by path."""
    largest_images: Mapping[str, bytes] = field(default_factory=dict)
    """The same of the size that they are priced at; empty: `images` are."""
    beside_images: Fields = field(default_factory=dict)
    """Fields that every request with them has."""
    image_prompts: Mapping[str, str] = field(default_factory=dict)
    """Networks that read images as prompts, by name: their places in the checkpoint's."""
    controls: Mapping[str, ControlSource] = field(default_factory=dict)
    """ControlNets by name: their places in the checkpoint's."""
    max_controls: int = 0
    refiner: str | None = None
    """Checkpoint of the last steps: its place in the checkpoint's."""
    company: tuple[Fields, ...] = ({},)
    """Fields in which requests of one batch differ, by turns."""


def loaded(name: str, folder: Path, dtype: str, **how: Any) -> Pipeline:
    """Load a checkpoint of an entry, with what lies beside it."""
    return registry.load(name, str(folder), dtype, {}, **beside(EVERY.get(name), folder), **how)


def settings_of(entry: Family | None, folder: Path) -> dict[str, Any]:
    """Return what a model's settings say of the networks beside an entry's checkpoint.

    Args:
        entry: None: of a model that has none.
    """
    if entry is None:
        return {}
    prompts, controls = entry.image_prompts.items(), entry.controls.items()
    return {
        "image_prompts": {name: {"source": str(folder / at)} for name, at in prompts},
        "controls": {
            name: {"source": str(folder / one.source), "mode": one.mode} for name, one in controls
        },
        "max_controls": entry.max_controls or 1,
        "refiner": entry.refiner and str(folder / entry.refiner),
    }


def beside(entry: Family | None, folder: Path) -> dict[str, Any]:
    """Return the same, as `registry.load` is told it."""
    kinds: dict[str, Any] = {"image_prompts": ImagePromptSource, "controls": ControlSource}
    return {
        field: {name: kinds[field](**one) for name, one in said.items()} if field in kinds else said
        for field, said in settings_of(entry, folder).items()
    }


def families() -> set[str]:
    """The names of all that the registry serves."""
    return {module.split(".")[1] for module in registry.FAMILIES.values()}


def _flux(folder: Path) -> Path:
    from tests.parity.tiny import make_flux

    sizes = {"num_attention_heads": 8, "num_layers": 1, "num_single_layers": 2}
    return make_flux(folder, transformer=sizes, clip=CLIP, t5=T5)


def _least_flux(folder: Path) -> Path:
    from tests.parity.tiny import make_flux

    return make_flux(folder, transformer={"num_layers": 1, "num_single_layers": 1})


def _flux_tool(kind: str, further: int, vae: Fields, **more: int) -> Callable[[Path], Path]:
    """Write a checkpoint of that pipeline of diffusers.

    Args:
        further: channels of a token that the network sees beside the latents'.
    """

    def make(folder: Path) -> Path:
        import diffusers

        from tests.parity.tiny import make_flux

        sizes = {"in_channels": 16 + further, "out_channels": 16, "num_single_layers": 1, **more}
        return make_flux(
            folder,
            kind=getattr(diffusers, kind),
            transformer={"num_layers": 1, **sizes},
            vae=vae,
            clip=CLIP,
            t5=T5,
        )

    return make


UNET = {"block_out_channels": (16, 32), "transformer_layers_per_block": 1}


def _sdxl(folder: Path) -> Path:
    from tests.parity.tiny_sdxl import make_sdxl

    return make_sdxl(folder, unet={"attention_head_dim": (8, 8), **UNET}, clip=CLIP, clip_2=CLIP)


def _least_sdxl(folder: Path) -> Path:
    from tests.parity.tiny_sdxl import make_sdxl

    return make_sdxl(folder, unet={"attention_head_dim": (2, 4), **UNET})


REFINER = {"block_out_channels": (16, 32, 32), "transformer_layers_per_block": 1}


def _refiner(folder: Path) -> Path:
    from tests.parity.tiny_sdxl import make_refiner

    return make_refiner(folder, unet={"attention_head_dim": 8, **REFINER}, clip_2=CLIP)


def _least_refiner(folder: Path) -> Path:
    from tests.parity.tiny_sdxl import make_refiner

    return make_refiner(folder, unet={"attention_head_dim": 4, **REFINER})


def _wan(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    return make_wan(folder, transformer={"num_attention_heads": 8, "num_layers": 2}, t5=T5)


def _least_wan(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    return make_wan(folder, transformer={"num_layers": 2})


def _vace(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    sizes = {"num_attention_heads": 8, "num_layers": 2}
    return make_wan(folder, vace={"vace_layers": (0, 1)}, transformer=sizes, t5=T5)


def _least_vace(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    return make_wan(folder, vace={"vace_layers": (0,)}, transformer={"num_layers": 2})


def _zimage(folder: Path) -> Path:
    from tests.parity.tiny_zimage import make_zimage

    sizes = {"n_heads": 8, "axes_dims": (2, 2, 4), "n_layers": 2, "n_refiner_layers": 1}
    return make_zimage(folder, transformer=sizes, text_encoder=CLIP)


def _least_zimage(folder: Path) -> Path:
    from tests.parity.tiny_zimage import make_zimage

    sizes = {"n_layers": 1, "n_refiner_layers": 1}
    return make_zimage(folder, transformer=sizes, text_encoder=CLIP)


def _qwenimage(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_qwenimage

    sizes = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
    return make_qwenimage(folder, transformer=sizes, text_encoder=CLIP)


def _least_qwenimage(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_qwenimage

    return make_qwenimage(folder, transformer={"num_layers": 1}, text_encoder=CLIP)


def _flux2(folder: Path) -> Path:
    from tests.parity.tiny_flux2 import make_flux2

    sizes = {"num_attention_heads": 8, "attention_head_dim": 8, "axes_dims_rope": (2, 2, 2, 2)}
    return make_flux2(folder, transformer={**sizes, "num_single_layers": 2})


def _least_flux2(folder: Path) -> Path:
    from tests.parity.tiny_flux2 import make_flux2

    return make_flux2(folder, transformer={"num_layers": 1, "num_single_layers": 1})


DEEP: Fields = {"dim_mult": [1, 1, 1, 2, 2, 2], "temperal_downsample": [False] * 3 + [True] * 2}
"""An autoencoder that makes few tokens of a megapixel."""


def _qwenimage_edit(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_edit

    sizes = {"num_attention_heads": 8, "axes_dims_rope": (2, 2, 4), "num_layers": 2}
    return make_edit(folder, transformer=sizes, text_encoder=CLIP, vae=DEEP)


def _least_qwenimage_edit(folder: Path) -> Path:
    from tests.parity.tiny_qwenimage import make_edit

    return make_edit(folder, transformer={"num_layers": 1}, text_encoder=CLIP, vae=DEEP)


def drawn_by_diffusers(
    folder: Path,
    request: Fields,
    frames: bool = False,
    images: Mapping[str, bytes] | None = None,
    before: Callable[[Any], Fields] = lambda pipeline: {},
    of: Callable[[Path], Any] | None = None,
    **more: Any,
) -> np.ndarray:
    """Draw a request whose fields are the pipeline's own arguments, but for the seed.

    Args:
        before: what is done to the pipeline first; it returns further arguments.
        of: pipeline of a checkpoint; None: as its index says.
        more: arguments that only that pipeline has.
    """
    import torch
    from diffusers import DiffusionPipeline

    pipeline = (of or DiffusionPipeline.from_pretrained)(folder)
    pipeline.set_progress_bar_config(disable=True)
    given = {name: value for name, value in request.items() if name not in ("seed", "fps")}
    given |= (
        before(pipeline)
        | more
        | {name: Image.open(io.BytesIO(file)) for name, file in (images or {}).items()}
    )
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    output = pipeline(**given, generator=generator, output_type="np")
    made = output.frames[0] if frames else output.images[0]
    return (made * 255).astype(np.uint8) if frames else (made * 255).round().astype(np.uint8)


FEW: Fields = {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}
LEAST: Fields = {
    "prompt": "a red circle",
    "seed": 1,
    "width": 32,
    "height": 32,
    "guidance_scale": 3.5,
    "num_inference_steps": 6,
    "num_images": 1,
}
UNSCALED: Fields = {name: value for name, value in LEAST.items() if name != "guidance_scale"}
"""Request of a family that has no `guidance_scale`."""
TRUE_CFG: Fields = {"true_cfg_scale": 2.0, "negative_prompt": "a blue square"}

SUITE: Mapping[str, Family] = {
    "flux": Family(
        make=_flux,
        least=_least_flux,
        request={**FEW, "width": 48, "height": 80, **TRUE_CFG},
        least_request={**LEAST, "max_sequence_length": 16, "true_cfg_scale": 1.0},
        reference=drawn_by_diffusers,
        guided=TRUE_CFG,
        unguided={},
        published=("flux-dev", "flux-schnell"),
    ),
    "sdxl": Family(
        make=_sdxl,
        least=_least_sdxl,
        request={**FEW, "width": 40, "height": 72, "guidance_scale": 4.0},
        least_request={**LEAST, "negative_prompt": "", "guidance_scale": 5.0},
        reference=drawn_by_diffusers,
        guided={"guidance_scale": 4.0},
        unguided={"guidance_scale": 1.0},
        published=("sdxl",),
        components={"unet": "unet"},
        step_caches=False,
    ),
    "zimage": Family(
        make=_zimage,
        least=_least_zimage,
        request={
            **FEW,
            "prompt": "a red circle on a blue background above the yellow star",
            "width": 48,
            "height": 80,
            "guidance_scale": 3.0,
            "max_sequence_length": 80,
        },
        least_request={**LEAST, "negative_prompt": "", "max_sequence_length": 60},
        reference=drawn_by_diffusers,
        guided={"guidance_scale": 3.0},
        unguided={"guidance_scale": 0.0},
        published=("z-image-turbo", "z-image"),
        weighted_prompts=False,
    ),
    "qwenimage": Family(
        make=_qwenimage,
        least=_least_qwenimage,
        request={**FEW, "width": 56, "height": 80, **TRUE_CFG, "max_sequence_length": 150},
        least_request={**UNSCALED, **TRUE_CFG, "max_sequence_length": 150},
        reference=drawn_by_diffusers,
        guided=TRUE_CFG,
        unguided={},
        published=("qwen-image",),
        scale="true_cfg_scale",
        weighted_prompts=False,
    ),
    "flux2": Family(
        make=_flux2,
        least=_least_flux2,
        request={
            **FEW,
            "width": 48,
            "height": 80,
            "guidance_scale": 3.0,
            "max_sequence_length": 83,
        },
        least_request={**LEAST, "negative_prompt": "", "max_sequence_length": 60},
        reference=drawn_by_diffusers,
        guided={"guidance_scale": 3.0},
        unguided={"guidance_scale": 1.0},
        published=(
            *("flux2-klein-4b", "flux2-klein-9b"),
            *("flux2-klein-base-4b", "flux2-klein-base-9b"),
        ),
        weighted_prompts=False,
    ),
    "wan": Family(
        make=_wan,
        least=_least_wan,
        request={**FEW, "width": 48, "height": 80, "num_frames": 9, "guidance_scale": 4.0},
        least_request={
            **LEAST,
            "prompt": "a red circle moves",
            "negative_prompt": "",
            "height": 48,
            "num_frames": 5,
            "fps": 8,
            "num_inference_steps": 4,
            "guidance_scale": 4.0,
            "max_sequence_length": 16,
        },
        reference=lambda folder, request: drawn_by_diffusers(folder, request, frames=True),
        guided={"guidance_scale": 4.0},
        unguided={"guidance_scale": 1.0},
        published=(
            *("wan2.1-1.3b", "wan2.1-14b", "wan2.1-i2v-14b"),
            *("wan2.2-a14b", "wan2.2-i2v-a14b", "wan2.2-5b"),
        ),
    ),
}


def _image(seed: int, mode: str = "RGB", size: tuple[int, int] = (100, 140)) -> bytes:
    """A file of four by four random fields."""
    fields = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(fields).convert(mode).resize(size, Image.Resampling.NEAREST).save(file, "png")
    return file.getvalue()


def _tool(
    kind: str,
    published: tuple[str, ...],
    images: Mapping[str, bytes],
    further: int = 0,
    guided: Fields | None = None,
    size: tuple[int, int] = (48, 80),
    vae: Fields | None = None,
    **of_theirs: Any,
) -> Family:
    """Entry of a tool of Flux.

    Args:
        guided: where it has a negative prompt.
        size: of a request, whose tokens divide by none of the layouts.
        of_theirs: arguments of diffusers' call.
    """
    sides = dict(zip(("width", "height"), size, strict=True))
    least = {"width": 64, "height": 64} if vae else {}
    return Family(
        make=_flux_tool(kind, further, vae or {}, num_attention_heads=8),
        least=_flux_tool(kind, further, vae or {}),
        request={**FEW, "guidance_scale": 4.0, **sides, **(guided or {})},
        least_request={**LEAST, "max_sequence_length": 16, **least},
        reference=partial(drawn_by_diffusers, images=images, **of_theirs),
        guided=guided or {},
        unguided={},
        published=published,
        images=images,
    )


SMALL_SIGLIP: Fields = {"image_size": 17, "num_hidden_layers": 1}


def _with_redux(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Write a Redux of nine tokens beside a checkpoint."""

    def both(folder: Path) -> Path:
        from tests.parity.tiny_redux import make_redux

        make_redux(folder / "redux", siglip=SMALL_SIGLIP)
        return make(folder)

    return both


def _drawn_after_redux(folder: Path, request: Fields, images: Mapping[str, bytes]) -> np.ndarray:
    """Draw a request by diffusers' two pipelines, each scale being both of the first one's."""
    from diffusers import FluxPipeline, FluxPriorReduxPipeline

    flux = FluxPipeline.from_pretrained(folder)
    names = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    parts = {name: flux.components[name] for name in names}
    prior = FluxPriorReduxPipeline.from_pretrained(folder / "redux", **parts)
    scales = [entry["scale"] for entry in request["image_prompts"]]
    made = prior(
        [Image.open(io.BytesIO(file)) for file in images.values()],
        prompt=[request["prompt"]] * len(images),
        prompt_embeds_scale=scales,
        pooled_prompt_embeds_scale=scales,
    )
    given = {name: of for name, of in request.items() if name not in ("prompt", "image_prompts")}
    return drawn_by_diffusers(folder, {**given, **made})


IMAGE_PROMPTS: Fields = {"image_prompts": [{"scale": 0.6}, {"name": "redux", "scale": 0.7}]}

ADAPTER = "ip-adapter/plus.safetensors"


def _with_ip_adapter(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Write an IP-Adapter of five tokens beside a checkpoint."""

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
    """Draw a request whose image prompts have one scale."""
    place = Path(ADAPTER)

    def prepared(pipeline: Any) -> dict[str, Any]:
        pipeline.load_ip_adapter(str(folder), subfolder=f"{place.parent}", weight_name=place.name)
        pipeline.set_ip_adapter_scale(request["image_prompts"][0]["scale"])
        opened = [Image.open(io.BytesIO(file)) for file in images.values()]
        return {"ip_adapter_image": [opened]}

    given = {name: of for name, of in request.items() if name != "image_prompts"}
    return drawn_by_diffusers(folder, given, before=prepared)


def _drawn_from_image(folder: Path, request: Fields, image: bytes) -> np.ndarray:
    """Draw a request by diffusers' SDXL from an image, which that pipeline takes at its size."""
    given = dict(request)
    size = given.pop("width"), given.pop("height")
    resized = Image.open(io.BytesIO(image)).resize(size, Image.Resampling.LANCZOS)
    return drawn_by_diffusers(folder, given, image=resized)


REFERENCES = {
    "image": _image(9, size=(75, 64)),
    "reference_images.0": _image(10, size=(64, 88)),
}
MEGAPIXELS = {path: _image(9, size=(1024, 1024)) for path in REFERENCES}


BESIDE = "refiner"


def _refined(
    make: Callable[[Path], Path], refiner: Callable[[Path], Path]
) -> Callable[[Path], Path]:
    """Write a refiner beside a checkpoint."""

    def both(folder: Path) -> Path:
        make(folder)
        refiner(folder / BESIDE)
        return folder

    return both


def _drawn_by_two(folder: Path, request: Fields) -> np.ndarray:
    """Draw a request by diffusers' base and refiner, whose autoencoder is the base's."""
    import torch
    from diffusers import StableDiffusionXLImg2ImgPipeline, StableDiffusionXLPipeline

    base: Any = StableDiffusionXLPipeline.from_pretrained(folder)
    refiner: Any = StableDiffusionXLImg2ImgPipeline.from_pretrained(folder / BESIDE, vae=base.vae)
    given = {name: of for name, of in request.items() if name not in ("seed", "refiner")}
    switch, generator = request["refiner"]["switch"], torch.Generator("cpu")
    generator.manual_seed(request["seed"])
    for pipeline in (base, refiner):
        pipeline.set_progress_bar_config(disable=True)
    latents = base(**given, denoising_end=switch, generator=generator, output_type="latent").images
    rest = {name: of for name, of in given.items() if name not in ("width", "height")}
    made = refiner(
        **rest, denoising_start=switch, image=latents, generator=generator, output_type="np"
    )
    return (made.images[0] * 255).round().astype(np.uint8)


HALF: Fields = {"refiner": {"switch": 0.5}}
LATER: tuple[Fields, ...] = (HALF, {"refiner": None}, {"refiner": {"switch": 0.3}}, HALF)
"""Refiners of rows that run side by side: from two places, which share programs, and none."""

BY_PLUS: Fields = {"image_prompts": [{"scale": 0.6}, {"name": "plus", "scale": 0.6}]}

PLAIN_CONTROLS = ("edges", "depth")
UNION = {"num_control_type": 6, "num_trans_head": 2}


def _with_controls(make: Callable[[Path], Path], **heads: Any) -> Callable[[Path], Path]:
    """Write two ControlNets and a union beside a checkpoint."""

    def both(folder: Path) -> Path:
        from tests.parity.tiny_sdxl import make_control

        make(folder)
        for seed, name in enumerate(PLAIN_CONTROLS, 5):
            make_control(folder / "controls" / name, folder, seed, **heads)
        make_control(folder / "controls" / "union", folder, 7, **UNION, **heads)
        return folder

    return both


def _drawn_with_controls(folder: Path, request: Fields, images: Mapping[str, bytes]) -> np.ndarray:
    """Draw a request whose controls are plain ones."""
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
    given = {name: of for name, of in request.items() if name != "control"}
    return drawn_by_diffusers(
        folder, given, of=partial(pipeline.from_pretrained, controlnet=nets), **more
    )


BOTH: Fields = {
    "control": [
        {"name": "edges", "scale": 0.7, "end": 0.5},
        {"name": "depth", "scale": 0.5},
    ]
}
UNLIKE: tuple[Fields, ...] = (
    BOTH,
    {"control": [{"name": "openpose", "scale": 0.9, "start": 0.3}]},
    {"control": []},
    {"control": [{"name": "depth", "scale": 0.6}, {"name": "openpose", "scale": 0.4}]},
    {"control": [{"name": "hed", "scale": 0.9}]},
)
"""Controls of rows of one batch: of two networks, of one, of none."""


def _clip() -> bytes:
    """A file of five frames that differ."""
    frames = [Image.open(io.BytesIO(_image(seed))) for seed in range(9, 14)]
    return encode_video(np.stack([np.asarray(frame) for frame in frames]), "mp4", 8)


CONTROL: Mapping[str, bytes] = {
    "control_video": _clip(),
    "mask_video": _image(14, "L"),
    **{f"reference_images.{index}": _image(15 + index) for index in range(2)},
}
SCALED: Fields = {"conditioning_scale": [0.8]}


def _drawn_by_vace(folder: Path, request: Fields) -> np.ndarray:
    """Draw a request after `CONTROL`, whose video ends earlier: the rest is grey."""
    size = request["width"], request["height"]
    sent = video_files.frames(CONTROL["control_video"])
    given = [frame.resize(size, Image.Resampling.LANCZOS) for frame in sent]
    missing = request["num_frames"] - len(given)
    mask, *references = (Image.open(io.BytesIO(CONTROL[name])) for name in [*CONTROL][1:])
    return drawn_by_diffusers(
        folder,
        {name: of for name, of in request.items() if name not in SCALED},
        frames=True,
        video=[*given, *[Image.new("RGB", size, (128, 128, 128))] * missing],
        mask=[*[mask] * len(given), *[Image.new("L", size, 255)] * missing],
        reference_images=references,
        conditioning_scale=SCALED["conditioning_scale"][0],
    )


def _edited(folder: Path, request: Fields, images: Mapping[str, bytes]) -> np.ndarray:
    """Draw an edit by diffusers."""
    from tests.parity.tiny_qwenimage import edits

    return drawn_by_diffusers(folder, request, images=images, of=edits)


VARIANTS: Mapping[str, Family] = {
    "qwenimage-edit": replace(
        SUITE["qwenimage"],
        make=_qwenimage_edit,
        least=_least_qwenimage_edit,
        request={**FEW, "width": 192, "height": 320, **TRUE_CFG, "max_sequence_length": 450},
        least_request={
            **UNSCALED,
            **TRUE_CFG,
            "width": 64,
            "height": 64,
            "max_sequence_length": 450,
        },
        reference=partial(_edited, images={"image": _image(9, size=(120, 120))}),
        published=("qwen-image-edit",),
        images={"image": _image(9, size=(120, 120))},
    ),
    "sdxl-controlnet": replace(
        SUITE["sdxl"],
        make=_with_controls(_sdxl, attention_head_dim=(8, 8), **UNET),
        least=_with_controls(_least_sdxl, attention_head_dim=(2, 4), **UNET),
        request={**SUITE["sdxl"].request, **BOTH},
        least_request={**SUITE["sdxl"].least_request, **BOTH},
        reference=partial(
            _drawn_with_controls, images={str(index): _image(9 + index) for index in range(2)}
        ),
        published=(
            *("sdxl-controlnet", "sdxl-controlnet-mid", "sdxl-controlnet-small"),
            "sdxl-controlnet-union",
        ),
        images={f"control.{index}.image": _image(9 + index) for index in range(2)},
        beside_images=BOTH,
        controls={
            **{name: ControlSource(f"controls/{name}") for name in PLAIN_CONTROLS},
            **{mode: ControlSource("controls/union", mode) for mode in ("openpose", "hed")},
        },
        max_controls=2,
        company=UNLIKE,
    ),
    "flux2-edit": replace(
        SUITE["flux2"],
        reference=partial(
            drawn_by_diffusers,
            image=[Image.open(io.BytesIO(file)) for file in REFERENCES.values()],
        ),
        images=REFERENCES,
        largest_images=MEGAPIXELS,
    ),
    "sdxl-ip-adapter": replace(
        SUITE["sdxl"],
        make=_with_ip_adapter(_sdxl),
        least=_with_ip_adapter(_least_sdxl),
        request={**SUITE["sdxl"].request, **BY_PLUS},
        least_request={**SUITE["sdxl"].least_request, **BY_PLUS},
        reference=partial(
            _drawn_with_ip_adapter, images={str(index): _image(7 + index) for index in range(2)}
        ),
        published=("sdxl-ip-adapter",),
        images={f"image_prompts.{index}.image": _image(7 + index) for index in range(2)},
        beside_images=BY_PLUS,
        image_prompts={"plus": ADAPTER},
    ),
    "wan-vace": replace(
        SUITE["wan"],
        make=_vace,
        least=_least_vace,
        request={**SUITE["wan"].request, **SCALED},
        least_request={**SUITE["wan"].least_request, **SCALED},
        reference=_drawn_by_vace,
        published=("wan2.1-vace-1.3b", "wan2.1-vace-14b"),
        images=CONTROL,
        beside_images=SCALED,
    ),
    "sdxl-refiner": replace(
        SUITE["sdxl"],
        make=_refiner,
        least=_least_refiner,
        request={**SUITE["sdxl"].request, "strength": 0.9, "aesthetic_score": 7.5},
        least_request={**SUITE["sdxl"].least_request, "strength": 1.0},
        reference=partial(_drawn_from_image, image=_image(9)),
        published=("sdxl-refiner",),
        images={"image": _image(9)},
    ),
    "sdxl-refined": replace(
        SUITE["sdxl"],
        make=_refined(_sdxl, _refiner),
        least=_refined(_least_sdxl, _least_refiner),
        request={**SUITE["sdxl"].request, **HALF},
        least_request={**SUITE["sdxl"].least_request, "refiner": {"switch": 0.8}},
        reference=_drawn_by_two,
        published=("sdxl-refined",),
        components={"unet": "unet", "refiner": f"{BESIDE}/unet"},
        beside_images=HALF,
        refiner=BESIDE,
        company=LATER,
    ),
    "flux-redux": Family(
        make=_with_redux(_flux),
        least=_with_redux(_least_flux),
        request={**FEW, "width": 48, "height": 80, **TRUE_CFG, **IMAGE_PROMPTS},
        least_request={**LEAST, "max_sequence_length": 16, "true_cfg_scale": 1.0, **IMAGE_PROMPTS},
        reference=partial(
            _drawn_after_redux, images={str(index): _image(5 + index) for index in range(2)}
        ),
        guided=TRUE_CFG,
        unguided=TRUE_CFG,
        published=("flux-redux",),
        images={f"image_prompts.{index}.image": _image(5 + index) for index in range(2)},
        beside_images=IMAGE_PROMPTS,
        image_prompts={"redux": "redux"},
    ),
    "flux-fill": _tool(
        "FluxFillPipeline",
        ("flux-fill",),
        {"image": _image(1), "mask_image": _image(2, "L")},
        further=4 * (4 + 16),
    ),
    "flux-control": _tool(
        "FluxControlPipeline",
        ("flux-canny", "flux-depth"),
        {"control_image": _image(3)},
        further=4 * 4,
    ),
    "flux-kontext": _tool(
        "FluxKontextPipeline",
        ("flux-kontext",),
        {"image": _image(4)},
        guided=TRUE_CFG,
        size=(192, 192),
        vae={"block_out_channels": (4, 4, 4, 4, 8, 8), "norm_num_groups": 2},
        max_area=192 * 192,
    ),
}
"""Kinds of a family's checkpoints that draw from images: other inputs of the same network."""
EVERY: Mapping[str, Family] = {**SUITE, **VARIANTS}


def images_of(name: str) -> Mapping[str, bytes]:
    """Return the images that every request of the suite to that model has."""
    return EVERY[name].images if name in EVERY else {}
