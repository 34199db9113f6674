"""FLUX.2 pipelines for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.flow.references import read_references
from models.flux2.config import Flux2Config
from models.flux2.key_mapping import SPELLINGS
from models.flux2.request import Flux2DevRequest, Flux2Request
from models.flux2.spec import MASK
from models.interface.denoising_pipeline import Draft
from models.interface.flow_steps import flow_plan, flow_steps, preserved_scales, scheduler_of
from models.interface.image_start import draw_noise, first_latents, mask_inputs
from models.interface.images import read_image
from models.interface.pipeline import Fields
from models.interface.solver_step import first_history, history_key
from models.interface.token_buckets import size_of_row
from models.nn.layers.step_cache import initial_cache
from models.sampling.flow_schedule import empirical_mu
from models.sampling.torch_rng import TorchGenerator
from models.spec.request import BY_CHECKPOINT, Request
from models.vae.latent_statistics import NormedLatentPipeline
from models.vae.patches import PATCH
from models.vae.references import IMAGE, INPUT, inputs_of


class Flux2Pipeline(ModulatedPipeline, NormedLatentPipeline[ChatNetworks]):
    """Pipeline of FLUX.2 klein: text and reference images to images; the base of dev's.

    Leaves of a row:
    - latents and denoised [tokens, 4c], normalized by channel; step_cache, if enabled;
    - prompt_embeds [prompts, text_tokens, joint];
    - grid [h, w]: empty array with the shape of the VAE's latents;
    - with a mask: mask, clean and noise [tokens, 4c]; the first reference is the clean image;
    - with references: references [tokens, 4c], and reference_grids, an empty array per index like
      grid;
    - in token buckets (models/interface/token_buckets.py): extent [2] and of_size.grid instead of
      grid; image tokens are padded with zeros.
    """

    REQUEST = Flux2Request
    PROMPTS = ("prompt_embeds",)
    ENCODER = "Qwen3"
    SPELLINGS = SPELLINGS
    config: Flux2Config

    @property
    def break_even_tokens(self) -> int:
        """Tokens at which attention costs as much as a layer's 4 w² + 3 w · inner parameters."""
        return 2 * self.config.width + 3 * self.config.inner // 2

    @staticmethod
    def pack_on_host(latents: Float32[np.ndarray, "h w c"]) -> Float32[np.ndarray, "tokens patch"]:
        """Flatten noise, which is drawn by token."""
        return latents.reshape(-1, latents.shape[-1])

    def read(self, fields: Fields) -> Request:
        """Read a request; distilled checkpoints ignore the fields of guidance."""
        served = self.spec.fields | BY_CHECKPOINT
        return super().read({name: value for name, value in fields.items() if name in served})

    def plan_request(self, request: Flux2Request, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise, preprocess the references, and plan the steps."""
        h, w = self.grid_of(width=request.width, height=request.height)
        tokens = h * w // 4
        mu = empirical_mu(tokens, request.num_inference_steps)
        scheduler = scheduler_of(request, self.scheduler)
        mask, size = images.get(MASK), (request.width, request.height)
        plan = flow_plan(
            request, scheduler, tokens, request.image_strength(from_image=mask is not None), mu
        )
        multiple = self.spec.limits.size_multiple_px
        others = {path: file for path, file in images.items() if not (mask and path == IMAGE)}
        references = read_references(others, self.spec)
        scales = preserved_scales(plan) if mask else {}
        if mask:
            references = [read_image(images[IMAGE], *size), *references]
        grids = [tuple(side // multiple for side in pixels.shape[:2]) for pixels in references]
        sizes = "+".join(f"{columns}x{rows}" for rows, columns in grids)
        draw = partial(draw_noise, TorchGenerator(request.seed), self.config.in_channels)
        draft = self.build_draft(
            request,
            {
                "noise": draw((h // 2, w // 2), self.dtype),
                **(mask_inputs(mask, size, (h // 2, w // 2), plan) if mask else {}),
                **inputs_of(references),
                **first_history(scheduler.solver),
            },
            flow_steps(request, plan, scheduler.solver, None, None, **scales),
            tokens + sum(rows * columns for rows, columns in grids),
            history_key(scheduler.solver)
            + (f",references={sizes}" if sizes else "")
            + (",masked" if mask else ""),
        )
        return self.in_token_bucket(draft, request, (h, w))

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts and the references."""
        encode = self.network(weights, "text_encoder")
        patch = self.config.in_channels
        references = self.references(weights, inputs, partial(self.packed, weights))
        start = {name: inputs[name] for name in inputs if not name.startswith(INPUT)}
        if "mask" in inputs:
            rows, columns, _ = inputs["noise"].shape
            clean = references["references"][: rows * columns]
            start["image_latents"] = clean.reshape(rows, columns, patch)
        return {
            **first_latents(
                start, lambda pixels, noise: pixels, lambda latents: latents.reshape(-1, patch)
            ),
            **size_of_row(inputs, _grid),
            "prompt_embeds": encode(inputs["ids"], inputs["read"].astype(bool)),
            **references,
            **initial_cache(inputs, self.width, self.dtype),
        }


class Flux2DevPipeline(Flux2Pipeline):
    """Pipeline of FLUX.2 dev, whose guidance scale is an input of the network."""

    REQUEST = Flux2DevRequest
    ENCODER = "Mistral"
    CONDITIONS = ("timestep", "guidance_scale")


def _grid(noise: Float[Array, "rows columns patch"]) -> Float[Array, "h w nothing"]:
    """Return the shape of the latents of packed noise as an array without values."""
    rows, columns, _ = noise.shape
    return jnp.zeros((PATCH * rows, PATCH * columns, 0))
