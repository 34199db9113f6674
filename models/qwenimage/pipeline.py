"""Qwen-Image as the engine runs it: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.interface.denoising_pipeline import Draft, each_alone
from models.interface.image_start import draw_noise, first_latents, image_inputs
from models.interface.pipeline import Fields, PyTree
from models.interface.request import read_request
from models.interface.step_program import StepProgram
from models.nn.blocks.joint_transformer import Modulations
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.qwenimage.adapter_names import SPELLINGS
from models.qwenimage.config import PATCH
from models.qwenimage.prompts import CUT
from models.qwenimage.request import QwenImageRequest, plan_of, steps_of
from models.sampling.base import Plan, per_row
from models.sampling.guidance import classifier_free, with_norms_of
from models.sampling.torch_rng import TorchGenerator
from models.vae.latent_frames import LatentFramePipeline
from models.vae.patches import pack, unpack
from models.vae.references import as_grid, tokens_and_grids


class QwenImagePipeline(ModulatedPipeline, LatentFramePipeline[ChatNetworks]):
    """Pipeline of Qwen-Image.

    A row: latents and denoised [tokens, 4c]; captions [prompts, text_tokens, features] and lengths
    [prompts], the tokens of each that are no padding; grid [h, w], the shape of the VAE's latents
    as an array without values; mask, clean and noise [tokens, 4c], where some of an image is kept;
    step_cache, where there is one.
    """

    PROMPTS = ("captions", "lengths")
    ENCODER = "Qwen2.5"
    SPELLINGS = SPELLINGS
    SCALE = "true_cfg_scale"
    CUT = CUT
    unpack = staticmethod(unpack)

    def lay_out(self, fields: Fields, images: Mapping[str, bytes], head: str = "") -> Draft:
        """Tokenize both prompts, draw the noise, and plan the steps.

        Args:
            head: text in front of each prompt.
        """
        request = read_request(QwenImageRequest, fields)
        h, w = self.grid_of(width=request.width, height=request.height)
        tokens = h * w // PATCH**2
        plan = plan_of(request, self.scheduler, tokens, from_image="image" in images)
        return self.drafted(
            request,
            self._draws(request, images, plan, (h, w)),
            steps_of(request, plan, self.scheduler.solver),
            tokens,
            ",masked" if "mask_image" in images else "",
            head,
        )

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts, and an image into the latents under the first noise."""
        read = inputs["read"].astype(bool)[:, self.CUT :]
        return {
            **first_latents(inputs, partial(self.encode_image, weights), pack),
            "grid": as_grid(inputs["noise"]),
            "captions": self.captions(weights, inputs)[:, self.CUT :],
            "lengths": read.sum(axis=1, dtype=jnp.int32),
            **initial_cache(inputs, self.config.width, self.dtype),
        }

    def captions(
        self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]
    ) -> Float[Array, "prompts tokens features"]:
        """Encode the prompts."""
        found: Array = self.network(weights, "text_encoder")(
            inputs["ids"], inputs["read"].astype(bool)
        )
        return found

    def predict(
        self,
        program: StepProgram,
        weights: ChatNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: Modulations | None,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts tokens patch"]:
        """Return the velocity for every prompt of every row."""
        if conditions is None:
            conditions = self.modulations(weights, values["timestep"])
        batch, prompts = rows["lengths"].shape
        tokens, grids = tokens_and_grids(rows)
        velocity = self.network(weights, "transformer")(
            jnp.repeat(tokens, prompts, axis=0),
            each_alone(rows["captions"]),
            each_alone(rows["lengths"]),
            jax.tree.map(partial(jnp.repeat, repeats=prompts, axis=0), conditions),
            grids,
            cache,
        )[:, : rows["latents"].shape[1]]
        return velocity.astype(jnp.float32).reshape(batch, prompts, *velocity.shape[1:])

    def guide(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Extrapolate to the prompt's prediction and beyond it, keeping the norm of each token."""
        positive = output[:, 0]
        if output.shape[1] == 1:
            return positive
        scale = per_row(values[self.SCALE], positive)
        return with_norms_of(positive, classifier_free(positive, output[:, 1], scale))

    def _draws(
        self,
        request: QwenImageRequest,
        images: Mapping[str, bytes],
        plan: Plan,
        grid: tuple[int, int],
    ) -> dict[str, np.ndarray]:
        """Draw the noise, and read an image where there is one."""
        generator, channels = TorchGenerator(request.seed), self.config.out_channels
        draw = partial(draw_noise, generator, channels, grid, self.dtype)
        if "image" not in images:
            return {"noise": draw()}
        size = (request.width, request.height)
        return image_inputs(images, size, (*grid, channels), plan, draw)
