"""VACE's parts combined and compared with diffusers' pipeline: a guided video from frames, masks
and references.

The parts are those of the production pipeline; the loop around them is a plain Euler loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanVACEPipeline
from flax import nnx
from PIL import Image

from models.checkpoint.folder import read_config
from models.interface.images import to_frames
from models.loading.abstract import abstract_module
from models.sampling.torch_rng import TorchGenerator
from models.vae import video_key_mapping
from models.vae.normalisation import Normalisation
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.wan.latents import draw_noise
from models.wan.vace import Control, VaceTransformer
from models.wan.vace_conditions import control_channels, control_video, with_references
from models.wan.vace_inputs import read_frames, read_reference
from models.weights.loader import load
from tests.parity.distances import psnr_db, relative
from tests.parity.step_latents import StepLatents
from tests.parity.test_wan import GREY_LEVELS, PSNR_DB, RELATIVE
from tests.parity.test_wan import Result as Drawn
from tests.parity.test_wan_transformer import BASE
from tests.parity.test_wan_vace_conditions import (
    CLIP,
    FRAMES,
    MASKS,
    REFERENCES,
    SIZE,
    VAES,
    in_size,
)
from tests.parity.test_wan_vace_transformer import Case, load_atelier, make
from tests.parity.tiny_wan import video_vae

SEED, GUIDANCE, STEPS = 7, 4.0, 3


class Variant(NamedTuple):
    """Sizes of a checkpoint, its VAE's name, and the strength of its hints."""

    vae: str
    network: dict[str, Any]
    scales: tuple[float, ...]
    references: int


VARIANTS = {
    "usual": Variant("squares of 8", {"vace_layers": (0, 2)}, (1.0, 1.0), 1),
    "odd": Variant(
        "squares of 4, latents of 3",
        {
            "patch_size": (1, 1, 2),
            "num_attention_heads": 5,
            "attention_head_dim": 14,
            "eps": 1e-3,
            "cross_attn_norm": False,
            "vace_layers": (0, 1),
        },
        (0.6, 1.3),
        3,
    ),
}


class Parts(NamedTuple):
    """A variant's networks in both implementations, and the prompts."""

    variant: Variant
    diffusers: WanVACEPipeline
    transformer: VaceTransformer
    vae: VideoAutoencoder
    prompts: np.ndarray


@pytest.fixture(scope="module", params=VARIANTS)
def parts(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    variant, folder = VARIANTS[request.param], tmp_path_factory.mktemp("vace")
    vae = video_vae(1, **VAES[variant.vae])
    vae.save_pretrained(folder / "vae")
    config = VideoVaeConfig.from_dict(read_config(folder, "vae"))
    latents, pixel = config.z_dim, config.downsampling
    sizes = {"in_channels": latents, "out_channels": latents, **variant.network}
    sizes["vace_in_channels"] = control_channels(latents, pixel)
    transformer = make(folder, Case(sizes))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline = WanVACEPipeline(None, None, vae, scheduler, transformer)
    pipeline.set_progress_bar_config(disable=True)
    abstract = abstract_module(VideoAutoencoder, config, param_dtype=jnp.float32)
    vae_of_atelier = load(abstract, folder / "vae", video_key_mapping.RENAMES)
    random = np.random.default_rng(9)
    prompts = random.standard_normal((2, 11, BASE["text_dim"]), dtype=np.float32)
    return Parts(variant, pipeline, load_atelier(folder), vae_of_atelier, prompts)


def drawn_by_diffusers(parts: Parts) -> Drawn:
    latents = StepLatents()

    output = parts.diffusers(
        video=in_size(CLIP),
        mask=in_size(MASKS),
        reference_images=REFERENCES[: parts.variant.references],
        conditioning_scale=list(parts.variant.scales),
        prompt_embeds=torch.tensor(parts.prompts[:1]),
        negative_prompt_embeds=torch.tensor(parts.prompts[1:]),
        width=SIZE[0],
        height=SIZE[1],
        num_frames=FRAMES,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        generator=torch.Generator("cpu").manual_seed(SEED),
        callback_on_step_end=latents.keep,
    )
    return Drawn(latents, (output.frames[0] * 255).astype(np.uint8))


def drawn_by_atelier(parts: Parts, references: Sequence[Image.Image] | None = None) -> Drawn:
    """Run the parts with Atelier; `references` replaces those of the variant."""
    images = REFERENCES[: parts.variant.references] if references is None else references
    control_frames, pixel = read_frames(CLIP, MASKS, SIZE), parts.vae.config.downsampling
    pixels = [
        jnp.asarray(read_reference(image, SIZE, pixel, "reference_images")) for image in images
    ]
    normalisation = Normalisation.of(parts.vae.config)
    scales = jnp.tile(jnp.float32(parts.variant.scales), (2, 1))

    @nnx.jit
    def conditions(vae: VideoAutoencoder, frames: Any, masks: Any, pixels: Any) -> Any:
        def encode(clip: Any) -> Any:
            return normalisation.apply(vae.encode(clip[None])[0][0])

        first = jnp.concatenate([encode(image[None]) for image in pixels])
        return with_references(control_video(encode, frames, masks), first)

    @nnx.jit
    def velocity(network: VaceTransformer, x: Any, time: Any, prompts: Any, control: Any) -> Any:
        doubled = jnp.stack([x, x])
        video = jnp.stack([control, control])
        velocities = network(doubled, time, prompts, control=Control(video, scales))
        return velocities[1] + GUIDANCE * (velocities[0] - velocities[1])

    control = conditions(parts.vae, *map(jnp.asarray, control_frames), pixels)  # type: ignore[call-arg]
    shape = control.shape[:3]
    x = jnp.asarray(draw_noise(TorchGenerator(SEED), shape, parts.vae.config.z_dim))
    scheduler, latents = parts.diffusers.scheduler, []
    scheduler.set_timesteps(STEPS)
    sigmas = scheduler.sigmas.numpy()
    for number, time in enumerate(scheduler.timesteps.numpy()):
        times = jnp.full(2, time, jnp.float32)
        change = velocity(parts.transformer, x, times, jnp.asarray(parts.prompts), control)
        x = x + (sigmas[number + 1] - sigmas[number]) * change
        latents.append(np.asarray(x))
    decode = nnx.jit(lambda vae, x: vae.decode(x[None], finish=to_frames)[0])
    return Drawn(latents, np.asarray(decode(parts.vae, normalisation.undo(x[len(images) :]))))


def test_video_from_frames_masks_and_references(parts: Parts) -> None:
    result, expected = drawn_by_atelier(parts), drawn_by_diffusers(parts)
    steps = [relative(a, b) for a, b in zip(result.latents, expected.latents, strict=True)]
    levels = np.abs(result.frames.astype(int) - expected.frames)
    print(
        f"latents {max(steps):.1e}, {psnr_db(result.frames, expected.frames):.1f} dB,"
        f" {levels.max()}"
    )
    assert result.frames.shape == expected.frames.shape == (FRAMES, *SIZE[::-1], 3)
    assert max(steps) <= RELATIVE, steps
    assert psnr_db(result.frames, expected.frames) >= PSNR_DB
    assert levels.max() <= GREY_LEVELS
    assert expected.frames.std() > 10, "a flat video proves nothing"
    mirrored = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in REFERENCES]
    wrong = drawn_by_atelier(parts, mirrored[: parts.variant.references])
    # With random weights a reference changes few grey levels: 55 dB in the odd variant.
    assert max(map(relative, wrong.latents, expected.latents)) > 10 * RELATIVE
    assert psnr_db(wrong.frames, expected.frames) < PSNR_DB - 3
