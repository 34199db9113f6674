"""Config files of published checkpoints by short name, for planning without a download.

Written to a folder they equal a checkpoint's folder without weights and vocabularies, so planning
and loading share their code. Source: the `-Diffusers` repositories of Black Forest Labs, Stability
AI, Qwen, Tongyi-MAI and Wan-AI, and the conversion of Lightricks' checkpoint. Values that do not
shape networks (a shift, a beta) are also as published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.flux import published as flux
from models.flux2 import published as flux2
from models.ltx import published as ltx
from models.qwenimage import published as qwenimage
from models.qwenimage.edit import published as edit
from models.sdxl import published as sdxl
from models.sdxl.compatibility import CLASSES
from models.vision.preprocess import FILE as PREPROCESSOR
from models.wan import published as wan
from models.zimage import published as zimage

Config = Mapping[str, Any]
Files = Mapping[str, Config]
"""Path in the folder → contents of that JSON file."""

FLOW_MATCH: Config = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "base_shift": 0.5,
    "max_shift": 1.15,
}
SHIFTED_BY_TOKENS: Config = {**FLOW_MATCH, "shift": 3.0, "use_dynamic_shifting": True}
STATIC: Config = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "use_dynamic_shifting": False,
}
STRETCHED: Config = {
    **FLOW_MATCH,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}
STRETCHED_TO_A_TENTH: Config = {
    **FLOW_MATCH,
    "use_dynamic_shifting": True,
    "base_image_seq_len": 1024,
    "base_shift": 0.95,
    "max_shift": 2.05,
    "shift_terminal": 0.1,
}
EULER: Config = {
    "_class_name": "EulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "steps_offset": 1,
}
UNIPC: Config = {
    "_class_name": "UniPCMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
}


SDXL = "StableDiffusionXLPipeline"
SDXL_FROM_IMAGE = "StableDiffusionXLImg2ImgPipeline"
CLIP_TOKENIZER = ("transformers", "CLIPTokenizer")


def _files(kind: str, scheduler: Config, components: Mapping[str, Config], **index: Any) -> Files:
    classes = CLASSES if kind in (SDXL, SDXL_FROM_IMAGE) else {}
    entries = {name: ("", classes.get(name, "")) for name in components}
    entries["scheduler"] = ("diffusers", scheduler["_class_name"])
    return {
        "model_index.json": {"_class_name": kind, **entries, **index},
        "scheduler/scheduler_config.json": scheduler,
        **{f"{name}/config.json": config for name, config in components.items()},
    }


WAN_KINDS = {
    wan.VACE_14B["_class_name"]: "WanVACEPipeline",
    wan.ANIMATE_14B["_class_name"]: "WanAnimatePipeline",
}
"""Class of a transformer → class of its pipeline."""


def _wan(
    shift: float,
    *experts: Config,
    vae: Config = wan.VAE_2_1,
    from_image: bool = False,
    **index: Any,
) -> Files:
    names = ("transformer", "transformer_2")
    components = dict(zip(names, experts, strict=False))
    components |= {"text_encoder": wan.UMT5_XXL, "vae": vae}
    kind = WAN_KINDS.get(experts[0]["_class_name"], "WanPipeline")
    kind = "WanImageToVideoPipeline" if from_image else kind
    if experts[0]["image_dim"] is None:
        return _files(kind, {**UNIPC, "flow_shift": shift}, components, **index)
    components["image_encoder"] = wan.CLIP_VIT_H
    files = _files(kind, {**UNIPC, "flow_shift": shift}, components, **index)
    return {**files, f"image_processor/{PREPROCESSOR}": {"size": {"shortest_edge": 224}}}


SDXL_BASE: Files = _files(
    SDXL,
    EULER,
    sdxl.SDXL_BASE,
    tokenizer=CLIP_TOKENIZER,
    tokenizer_2=CLIP_TOKENIZER,
)
CONTROLNET = "controlnet"
"""Subfolder of a ControlNet in its model's folder."""


def _controlled(config: Config, model: Files = SDXL_BASE) -> Files:
    return {**model, f"{CONTROLNET}/config.json": config}


FLUX_DEV = _files("FluxPipeline", SHIFTED_BY_TOKENS, flux.FLUX_DEV)
REFINER = "refiner"
"""Subfolder of a refiner in its base model's folder."""
REFINER_FILES = _files(
    SDXL_FROM_IMAGE,
    EULER,
    sdxl.SDXL_REFINER,
    tokenizer_2=CLIP_TOKENIZER,
    requires_aesthetics_score=True,
    force_zeros_for_empty_prompt=False,
)

CHECKPOINTS: Mapping[str, Files] = {
    "sdxl": SDXL_BASE,
    "sdxl-controlnet": _controlled(sdxl.CONTROLNET),
    "sdxl-controlnet-mid": _controlled(sdxl.CONTROLNET_MID),
    "sdxl-controlnet-small": _controlled(sdxl.CONTROLNET_SMALL),
    "sdxl-controlnet-union": _controlled(sdxl.CONTROLNET_UNION),
    "sdxl-ip-adapter": {
        **SDXL_BASE,
        "ip-adapter/plus.json": sdxl.IP_ADAPTER_PLUS,
        "ip-adapter/image_encoder/config.json": sdxl.CLIP_VISION_H,
    },
    "sdxl-refiner": REFINER_FILES,
    "sdxl-refined": {
        **_files(SDXL, EULER, sdxl.SDXL_BASE, tokenizer=CLIP_TOKENIZER, tokenizer_2=CLIP_TOKENIZER),
        **{f"{REFINER}/{path}": config for path, config in REFINER_FILES.items()},
    },
    "flux-dev": FLUX_DEV,
    "flux-controlnet-union": _controlled(flux.CONTROLNET_UNION, FLUX_DEV),
    "flux-controlnet-union-pro-2": _controlled(flux.CONTROLNET_UNION_PRO_2, FLUX_DEV),
    "flux-fill": _files("FluxFillPipeline", SHIFTED_BY_TOKENS, flux.FLUX_FILL),
    "flux-canny": _files("FluxControlPipeline", SHIFTED_BY_TOKENS, flux.FLUX_CONTROL),
    "flux-depth": _files("FluxControlPipeline", SHIFTED_BY_TOKENS, flux.FLUX_CONTROL),
    "flux-kontext": _files("FluxKontextPipeline", SHIFTED_BY_TOKENS, flux.FLUX_DEV),
    "flux-redux": {
        **FLUX_DEV,
        **{f"redux/{name}/config.json": config for name, config in flux.REDUX.items()},
        f"redux/feature_extractor/{PREPROCESSOR}": {"size": {"height": 384, "width": 384}},
    },
    "ltx-2.3": _files("LTX2Pipeline", STRETCHED_TO_A_TENTH, ltx.LTX_2_3),
    "ltx-2": _files("LTX2Pipeline", STRETCHED_TO_A_TENTH, ltx.LTX_2),
    "flux-schnell": _files(
        "FluxPipeline",
        {**FLOW_MATCH, "shift": 1.0, "use_dynamic_shifting": False},
        flux.FLUX_SCHNELL,
    ),
    "qwen-image": _files("QwenImagePipeline", STRETCHED, qwenimage.QWEN_IMAGE),
    **{
        name: _files(
            "Flux2KleinPipeline", SHIFTED_BY_TOKENS, networks, is_distilled="base" not in name
        )
        for name, networks in (
            ("flux2-klein-4b", flux2.KLEIN_4B),
            ("flux2-klein-base-4b", flux2.KLEIN_4B),
            ("flux2-klein-9b", flux2.KLEIN_9B),
            ("flux2-klein-base-9b", flux2.KLEIN_9B),
        )
    },
    **{
        name: {
            **_files(kind, STRETCHED, networks),
            f"processor/{PREPROCESSOR}": edit.PROCESSOR,
        }
        for name, kind, networks in (
            ("qwen-image-edit", "QwenImageEditPipeline", qwenimage.QWEN_IMAGE),
            ("qwen-image-edit-2509", "QwenImageEditPlusPipeline", qwenimage.QWEN_IMAGE),
            ("qwen-image-edit-2511", "QwenImageEditPlusPipeline", edit.EDIT_2511),
        )
    },
    "z-image-turbo": _files("ZImagePipeline", {**STATIC, "shift": 3.0}, zimage.Z_IMAGE),
    "z-image": _files("ZImagePipeline", {**STATIC, "shift": 6.0}, zimage.Z_IMAGE),
    "wan2.1-1.3b": _wan(3.0, wan.T2V_1_3B),
    "wan2.1-14b": _wan(5.0, wan.T2V_14B),
    "wan2.1-i2v-14b": _wan(5.0, wan.I2V_14B, from_image=True),
    "wan2.1-vace-1.3b": _wan(3.0, wan.VACE_1_3B),
    "wan2.1-vace-14b": _wan(5.0, wan.VACE_14B),
    "wan2.2-animate-14b": _wan(5.0, wan.ANIMATE_14B),
    "wan2.2-a14b": _wan(12.0, wan.T2V_14B, wan.T2V_14B, boundary_ratio=0.875),
    "wan2.2-i2v-a14b": _wan(5.0, wan.I2V_A14B, wan.I2V_A14B, from_image=True, boundary_ratio=0.9),
    "wan2.2-5b": _wan(5.0, wan.TI2V_5B, vae=wan.VAE_2_2, expand_timesteps=True),
}
"""Config files by the names that `atelier plan --model` accepts."""


IMAGE_PROMPTS: Mapping[str, Mapping[str, str]] = {
    "flux-redux": {"redux": "redux"},
    "sdxl-ip-adapter": {"plus": "ip-adapter/plus.json"},
}
"""Networks for image prompts by checkpoint: name → path in the checkpoint's folder."""


def image_prompts(name: str, folder: Path) -> dict[str, str]:
    """Return the sources of a written checkpoint's image prompt networks.

    Args:
        name: of a checkpoint; unknown names yield none.
    """
    networks = IMAGE_PROMPTS.get(name, {})
    return {network: str(folder / path) for network, path in networks.items()}


CONTROLS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    **{f"sdxl-controlnet{size}": {"canny": {}} for size in ("", "-mid", "-small")},
    "sdxl-controlnet-union": {kind: {"mode": kind} for kind in ("openpose", "depth", "canny")},
    "flux-controlnet-union": {kind: {"mode": kind} for kind in ("pose", "depth", "canny")},
    "flux-controlnet-union-pro-2": {"canny": {}},
}
"""ControlNets by checkpoint: kinds of control images, and modes of a union ControlNet."""


def controls(name: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the sources and modes of a written checkpoint's ControlNets.

    Args:
        name: of a checkpoint; unknown names yield none.
    """
    source = str(folder / CONTROLNET)
    return {kind: {"source": source, **mode} for kind, mode in CONTROLS.get(name, {}).items()}


REFINED = frozenset({"sdxl-refined"})
"""Checkpoints with a refiner."""


def refiner(name: str, folder: Path) -> str | None:
    """Return the source of a written checkpoint's refiner; None: no refiner."""
    return str(folder / REFINER) if name in REFINED else None


def write(name: str, folder: Path) -> None:
    """Write a checkpoint's config files to a folder. Raises: KeyError: unknown name."""
    for path, config in CHECKPOINTS[name].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config))
