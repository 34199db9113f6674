"""SDXL's parity cases: checkpoints, schedulers, prompts, images and masks, and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
from PIL import Image

from tests.parity.tiny_sdxl import SCHEDULER, make_refiner, make_sdxl

PROMPT = "a red circle"
SEED = 1234


@dataclass(frozen=True)
class Bounds:
    relative: float
    psnr_db: float
    grey_levels: int


EXACT = Bounds(1e-4, 60.0, 2)


def noise_picture(width: int, height: int, seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


PICTURE = noise_picture(97, 61, 5)
MASK = noise_picture(83, 55, 6)


@dataclass(frozen=True)
class Checkpoint:
    """Arguments of the function that makes the checkpoint."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    maker: Callable[..., Path] = make_sdxl

    def make(self, folder: Path) -> Path:
        return self.maker(folder, **self.arguments)


CHECKPOINTS = {
    "base": Checkpoint(),
    "deep": Checkpoint(
        {
            "unet": {
                "block_out_channels": (9, 18, 15),
                "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
                "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                "layers_per_block": (1, 2, 1),
                "transformer_layers_per_block": (1, 2, 1),
                "attention_head_dim": (1, 2, 3),
                "use_linear_projection": False,
                "norm_num_groups": 3,
                "addition_time_embed_dim": 7,
            },
            "vae": {
                "block_out_channels": (6, 12, 9),
                "norm_num_groups": 3,
                "mid_block_add_attention": False,
                "force_upcast": False,
                "latents_mean": [0.3, -0.2, 0.1, 0.5],
                "latents_std": [1.4, 0.7, 1.1, 0.8],
            },
            "clip": {"num_hidden_layers": 4, "hidden_act": "gelu", "eos_token_id": 2},
            "clip_2": {"num_hidden_layers": 2, "projection_dim": 25, "eos_token_id": 2},
            "scheduler": diffusers.DDIMScheduler(
                **SCHEDULER, clip_sample=False, set_alpha_to_one=False
            ),
            "pipeline": {"force_zeros_for_empty_prompt": False},
        }
    ),
    "inpainting": Checkpoint({"unet": {"in_channels": 9}}),
    "lcm": Checkpoint(
        {"unet": {"time_cond_proj_dim": 11}, "scheduler": diffusers.LCMScheduler(**SCHEDULER)}
    ),
    "refiner": Checkpoint(maker=make_refiner),
    "odd refiner": Checkpoint(
        {
            "unet": {
                "block_out_channels": (9, 15),
                "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
                "layers_per_block": (2, 1),
                "transformer_layers_per_block": (1, 3),
                "attention_head_dim": (1, 4),
                "use_linear_projection": False,
                "norm_num_groups": 3,
                "norm_eps": 1e-3,
                "addition_time_embed_dim": 7,
            },
            "vae": {
                "block_out_channels": (6, 9),
                "norm_num_groups": 3,
                "force_upcast": False,
                "latents_mean": [0.3, -0.2, 0.1, 0.5],
                "latents_std": [1.4, 0.7, 1.1, 0.8],
            },
            "clip_2": {"num_hidden_layers": 2, "projection_dim": 25, "eos_token_id": 2},
            "scheduler": diffusers.DDIMScheduler(
                **SCHEDULER, clip_sample=False, set_alpha_to_one=False
            ),
            "pipeline": {"force_zeros_for_empty_prompt": True},
        },
        make_refiner,
    ),
}


@dataclass(frozen=True)
class Case:
    """One request, with the arguments that differ in diffusers."""

    checkpoint: str = "base"
    fields: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str = ""
    """diffusers' class for the request's scheduler; its options are those of the request."""
    reference_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of diffusers' scheduler, which are fixed here."""
    image: Image.Image | None = None
    mask: Image.Image | None = None


def scheduled(cls: str, name: str, more: Mapping[str, Any] | None = None, **options: Any) -> Case:
    return Case(fields={"scheduler": {"name": name, **options}, **(more or {})}, scheduler=cls)


HEUN = "HeunDiscreteScheduler"
EULER, ANCESTRAL = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
DDIM, DPM, UNIPC = "DDIMScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"
ZERO = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
V = {"prediction_type": "v_prediction"}

SCHEDULERS: dict[str, Case] = {
    "euler, trailing, karras": scheduled(
        EULER, "euler", timestep_spacing="trailing", use_karras_sigmas=True
    ),
    "euler, linspace, sample": scheduled(
        EULER, "euler", timestep_spacing="linspace", prediction_type="sample"
    ),
    "euler, v, zero SNR": scheduled(EULER, "euler", {"guidance_rescale": 0.7}, **V, **ZERO),
    "euler ancestral": scheduled(ANCESTRAL, "euler_ancestral"),
    "ddim": scheduled(DDIM, "ddim", clip_sample=False),
    "ddim, clipped, v, trailing": scheduled(DDIM, "ddim", timestep_spacing="trailing", **V),
    "ddim, v, zero SNR": scheduled(
        DDIM, "ddim", {"guidance_rescale": 0.7}, clip_sample=False, **V, **ZERO
    ),
    "ddim, eta": scheduled(DDIM, "ddim", {"eta": 0.6}, clip_sample=False),
    "dpm++ 2m": scheduled(DPM, "dpmpp_2m"),
    "dpm++ 2m, karras": scheduled(DPM, "dpmpp_2m", use_karras_sigmas=True),
    "dpm++ 2m sde, karras": scheduled(
        DPM, "dpmpp_2m_sde", algorithm_type="sde-dpmsolver++", use_karras_sigmas=True
    ),
    "unipc": scheduled(UNIPC, "unipc"),
    "unipc, v, trailing": scheduled(UNIPC, "unipc", timestep_spacing="trailing", **V),
    "lcm": scheduled("LCMScheduler", "lcm"),
    "heun": scheduled(HEUN, "heun"),
}
NIGHTLY: dict[str, Case] = {
    "dpm2, karras": scheduled("KDPM2DiscreteScheduler", "dpm_2", use_karras_sigmas=True),
    "dpm2 ancestral": scheduled("KDPM2AncestralDiscreteScheduler", "dpm_2_ancestral"),
    "dpm++ 3m sde, exponential": scheduled(
        DPM,
        "dpmpp_3m_sde",
        algorithm_type="sde-dpmsolver++",
        solver_order=3,
        use_exponential_sigmas=True,
    ),
    "dpm++ 2s": scheduled("DPMSolverSinglestepScheduler", "dpmpp_2s"),
    "lms": scheduled("LMSDiscreteScheduler", "lms"),
    "deis": scheduled("DEISMultistepScheduler", "deis"),
    "pndm": replace(scheduled("PNDMScheduler", "pndm"), reference_options={"skip_prk_steps": True}),
    "ddpm": scheduled("DDPMScheduler", "ddpm", clip_sample=False),
    "tcd": scheduled("TCDScheduler", "tcd", {"eta": 0.3}),
}
"""Schedulers whose steps the gate compares without a network (tests/parity/test_schedulers.py)."""

SIZES = {
    "original_size": [33, 1170],
    "crops_coords_top_left": [5, 917],
    "target_size": [41, 29],
    "negative_original_size": [64, 20],
    "negative_crops_coords_top_left": [9, 2],
}
WORDS: dict[str, Case] = {
    "four prompts": Case(
        fields={
            "prompt_2": "the yellow triangle",
            "negative_prompt": "a green square",
            "negative_prompt_2": "star below",
        }
    ),
    "an empty prompt, an empty negative one": Case(fields={"prompt": "", "negative_prompt": ""}),
    "a negative prompt for the second encoder alone": Case(fields={"negative_prompt_2": "star"}),
    "the same where nothing is forced to zero": Case(
        "deep", {"negative_prompt_2": "star", "width": 24, "height": 56}
    ),
    "more words than fit": Case(fields={"prompt": "a red circle above the blue star of " * 12}),
    "clip_skip": Case(fields={"clip_skip": 1, "negative_prompt": "a green square"}),
    "sizes": Case(fields={**SIZES, "negative_target_size": [24, 96]}),
    "one negative size, which does not count": Case(fields=SIZES),
    "guidance rescaled": Case(fields={"guidance_scale": 9.0, "guidance_rescale": 0.4}),
    "no guidance": Case(fields={"guidance_scale": 1.0, "negative_prompt": "not heard"}),
    "turbo": scheduled(
        ANCESTRAL,
        "euler_ancestral",
        {"guidance_scale": 0.0, "num_inference_steps": 2},
        timestep_spacing="trailing",
    ),
    "own timesteps": Case(fields={"timesteps": [901, 640, 333, 20]}),
    "own sigmas": Case(fields={"sigmas": [11.5, 4.0, 0.9, 0.1, 0.0]}),
    "distilled guidance": Case("lcm", {"guidance_scale": 7.5, "num_inference_steps": 4}),
}
IMAGES: dict[str, Case] = {
    "default strength": Case(fields={"strength": 0.3, "num_inference_steps": 9}),
    "sizes, a crop for the negative prompt that does not count": Case(
        fields={**SIZES, "strength": 0.7}
    ),
    "full strength, multistep": scheduled(DPM, "dpmpp_2m", {"strength": 1.0}),
    "unipc": scheduled(UNIPC, "unipc", {"strength": 0.6}),
    "noise in every step": scheduled(ANCESTRAL, "euler_ancestral", {"strength": 0.6}),
    "two evaluations a step": scheduled(HEUN, "heun", {"strength": 0.6}),
    "statistics of the latents": Case("deep", {"strength": 0.8, "width": 24, "height": 56}),
}
MASKS: dict[str, Case] = {
    "default strength": Case(fields={"strength": 0.9999}),
    "full strength": Case(fields={"strength": 1.0}),
    "noise after what was encoded": scheduled(
        DDIM, "ddim", {"eta": 1.0, "strength": 0.7}, clip_sample=False
    ),
    "multistep": scheduled(DPM, "dpmpp_2m", {"strength": 0.8}),
    "two evaluations a step": scheduled(HEUN, "heun", {"strength": 0.8}),
    "no statistics of the latents": Case("deep", {"strength": 0.8, "width": 24, "height": 56}),
    "nine channels, full strength": Case("inpainting", {"strength": 1.0}),
    "nine channels, noise in every step": replace(
        scheduled(ANCESTRAL, "euler_ancestral", {"strength": 0.7}), checkpoint="inpainting"
    ),
}
SCORED = {
    "original_size": [33, 1170],
    "crops_coords_top_left": [5, 917],
    "negative_original_size": [64, 20],
    "negative_crops_coords_top_left": [9, 2],
    "aesthetic_score": 7.25,
    "negative_aesthetic_score": 1.5,
}
REFINED: dict[str, Case] = {
    "a refiner": Case("refiner", {"strength": 0.3, "num_inference_steps": 9}),
    "a refiner, scores and sizes": Case(
        "refiner", {**SCORED, "strength": 0.7, "negative_prompt": "a blue square", "clip_skip": 1}
    ),
    "a refiner without guidance": Case("refiner", {"strength": 0.6, "guidance_scale": 1.0}),
    "an odd refiner": Case("odd refiner", {"strength": 0.8, "width": 24, "height": 56}),
    "an odd refiner, scores and sizes": Case("odd refiner", {**SCORED, "strength": 0.7}),
    "a refiner, multistep": replace(
        scheduled(DPM, "dpmpp_2m", {"strength": 0.7}), checkpoint="refiner"
    ),
}
REFINED_MASKS: dict[str, Case] = {
    "a refiner with a mask": Case("refiner", {**SCORED, "strength": 0.9999}),
    "a refiner with a mask, full strength": Case("refiner", {"strength": 1.0}),
    "an odd refiner with a mask": Case("odd refiner", {"strength": 0.7, "negative_prompt": ""}),
}
IMAGES = {name: replace(case, image=PICTURE) for name, case in IMAGES.items()}
MASKS = {name: replace(case, image=PICTURE, mask=MASK) for name, case in MASKS.items()}
REFINED = {name: replace(case, image=PICTURE) for name, case in REFINED.items()} | {
    name: replace(case, image=PICTURE, mask=MASK) for name, case in REFINED_MASKS.items()
}
BASE = {
    "prompt": PROMPT,
    "width": 48,
    "height": 40,
    "num_inference_steps": 5,
    "guidance_scale": 5.0,
    "seed": SEED,
}
