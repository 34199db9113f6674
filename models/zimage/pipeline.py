"""Z-Image as the engine runs it: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.flow.chat_pipeline import ChatNetworks, ChatPipeline
from models.interface.denoising_pipeline import Draft, each_alone
from models.interface.image_start import draw_noise, first_latents, image_inputs
from models.interface.pipeline import Fields, PyTree
from models.interface.request import read_request
from models.interface.step_program import StepProgram
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.sampling.base import Plan, per_row
from models.sampling.guidance import bounded
from models.sampling.torch_rng import TorchGenerator
from models.vae.latent_images import LatentImagePipeline
from models.zimage.adapter_names import SPELLINGS
from models.zimage.config import PATCH, filled
from models.zimage.latents import pack, unpack
from models.zimage.request import ZImageRequest, steps_of


class ZImagePipeline(ChatPipeline, LatentImagePipeline[ChatNetworks]):
    """Pipeline of Z-Image.

    A row: latents and denoised [tokens, 4c]; captions [prompts, text_tokens, features] and lengths
    [prompts], the tokens of each that are no padding; grid [h, w], the shape of the VAE's latents
    as an array without values; mask, clean and noise [tokens, 4c], where some of an image is kept;
    step_cache, where there is one.
    """

    PROMPTS = ("captions", "lengths")
    ENCODER = "Qwen3"
    SPELLINGS = SPELLINGS
    unpack = staticmethod(unpack)

    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Tokenize both prompts, draw the noise, and plan the steps."""
        request = read_request(ZImageRequest, fields)
        h, w = self.grid_of(width=request.width, height=request.height)
        tokens = h * w // PATCH**2
        plan = request.plan(self.scheduler, tokens, request.begun(from_image="image" in images))
        return self.drafted(
            request,
            self._draws(request, images, plan, (h, w)),
            steps_of(request, plan, self.scheduler.solver, self.config.t_scale),
            tokens,
            ",masked" if "mask_image" in images else "",
        )

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts, and an image into the latents under the first noise."""
        ids, read = inputs["ids"], inputs["read"].astype(bool)
        captions = self.network(weights, "text_encoder")(ids, read)
        padding = filled(ids.shape[1]) - ids.shape[1]
        return {
            **first_latents(inputs, partial(self.encode_image, weights), pack),
            "grid": jnp.zeros((*inputs["noise"].shape[:2], 0)),
            "captions": jnp.pad(captions, ((0, 0), (0, padding), (0, 0))),
            "lengths": read.sum(axis=1, dtype=jnp.int32),
            **initial_cache(inputs, self.config.dim, self.dtype),
        }

    def predict(
        self,
        program: StepProgram,
        weights: ChatNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: None,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts tokens patch"]:
        """Return the velocity for every prompt of every row: towards noise, as solvers want it."""
        batch, prompts = rows["lengths"].shape
        velocity = self.network(weights, "transformer")(
            jnp.repeat(rows["latents"], prompts, axis=0),
            each_alone(rows["captions"]),
            each_alone(rows["lengths"]),
            jnp.repeat(values["timestep"], prompts),
            rows["grid"].shape[1:3],
            cache,
        )
        return -velocity.astype(jnp.float32).reshape(batch, prompts, *velocity.shape[1:])

    def guide(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Extrapolate from the prompt's prediction, away from the negative prompt's."""
        positive = output[:, 0]
        if output.shape[1] == 1:
            return positive
        scale = per_row(values["guidance_scale"], positive)
        guided = positive + scale * (positive - output[:, 1])
        return bounded(guided, positive, values["cfg_normalization"])

    def _draws(
        self, request: ZImageRequest, images: Mapping[str, bytes], plan: Plan, grid: tuple[int, int]
    ) -> dict[str, np.ndarray]:
        """Draw the noise, and read an image where there is one.

        Beside an image noise has the networks' precision, as in diffusers' pipelines, else float32.
        """
        draw = partial(draw_noise, TorchGenerator(request.seed), self.config.in_channels, grid)
        if "image" not in images:
            return {"noise": draw(np.float32)}
        size = (request.width, request.height)
        return image_inputs(
            images, size, (*grid, self.config.in_channels), plan, partial(draw, self.dtype)
        )
