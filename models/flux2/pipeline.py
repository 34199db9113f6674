"""FLUX.2 klein as the engine runs it: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.flux2.adapter_names import SPELLINGS
from models.flux2.latents import image_ids, text_ids
from models.flux2.references import read_references
from models.flux2.request import Flux2Request, empirical_mu, steps_of
from models.interface.denoising_pipeline import Draft, each_alone
from models.interface.images import to_uint8
from models.interface.pipeline import Fields, PyTree
from models.interface.request import read_request
from models.interface.step_program import StepProgram
from models.nn.blocks.joint_transformer import Modulations
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.sampling.torch_rng import TorchGenerator
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import pack, unpack
from models.vae.references import inputs_of, reference_latents, tokens_and_grids


class Flux2Pipeline(ModulatedPipeline, LatentImagePipeline[ChatNetworks]):
    """Pipeline of FLUX.2 klein.

    A row: latents and denoised [tokens, 4c], normed by channel; prompt_embeds [prompts,
    text_tokens, joint]; grid [h, w], the shape of the VAE's latents as an array without values;
    references [tokens, 4c] and reference_grids, the like shape of each by its index, where there
    are some; step_cache, where there is one.
    """

    PROMPTS = ("prompt_embeds",)
    ENCODER = "Qwen3"
    SPELLINGS = SPELLINGS
    unpack = staticmethod(unpack)

    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Tokenize both prompts, draw the noise, read the references, and plan the steps."""
        served = {name: value for name, value in fields.items() if name in self.spec.fields}
        request = read_request(Flux2Request, served)
        h, w = self.grid_of(width=request.width, height=request.height)
        tokens = h * w // 4
        mu = empirical_mu(tokens, request.num_inference_steps)
        plan = request.plan(self.scheduler, tokens, mu=mu)
        multiple = self.spec.limits.size_multiple_px
        references = read_references(images, multiple)
        grids = [tuple(side // multiple for side in pixels.shape[:2]) for pixels in references]
        seen = "+".join(f"{columns}x{rows}" for rows, columns in grids)
        return self.drafted(
            request,
            {"noise": self._noise(request.seed, h // 2, w // 2), **inputs_of(references)},
            steps_of(request, plan, self.scheduler.solver),
            tokens + sum(rows * columns for rows, columns in grids),
            f",references={seen}" if seen else "",
        )

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts and the references."""
        encode = self.network(weights, "text_encoder")
        rows, columns, _ = inputs["noise"].shape
        return {
            "latents": inputs["noise"].reshape(rows * columns, -1),
            "grid": jnp.zeros((2 * rows, 2 * columns, 0)),
            "prompt_embeds": encode(inputs["ids"], inputs["read"].astype(bool)),
            **reference_latents(
                inputs,
                lambda pixels: self.encode_image(weights, pixels, None),
                lambda latents: self.network(weights, "vae").statistics.normed(pack(latents)),
            ),
            **initial_cache(inputs, self.config.width, self.dtype),
        }

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
        batch, prompts, text_tokens, _ = rows["prompt_embeds"].shape
        tokens, grids = tokens_and_grids(rows)
        ids = np.concatenate([image_ids(*grid, index) for index, grid in enumerate(grids)])
        velocity = self.network(weights, "transformer").velocity(
            jnp.repeat(tokens, prompts, axis=0),
            each_alone(rows["prompt_embeds"]),
            jax.tree.map(lambda leaf: jnp.repeat(leaf, prompts, axis=0), conditions),
            ids,
            text_ids(text_tokens),
            cache,
        )
        velocity = velocity[:, : rows["latents"].shape[1]].astype(jnp.float32)
        return velocity.reshape(batch, prompts, *velocity.shape[1:])

    def decode(self, weights: ChatNetworks, row: PyTree) -> jax.Array:
        """Decode the latents by the VAE."""
        latents = self._restored(weights, row, "latents")
        return to_uint8(self._vae(weights).decode(latents[None].astype(self.dtype))[0])

    def preview(self, weights: ChatNetworks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents by a linear map."""
        latents = self._restored(weights, row, "denoised")
        return to_uint8(self.network(weights, "preview")(latents))

    def _restored(self, weights: ChatNetworks, row: PyTree, name: str) -> Float[Array, "h w c"]:
        """Return latents of a row as the VAE has them."""
        statistics = self.network(weights, "vae").statistics
        return unpack(statistics.restored(row[name]), *row["grid"].shape[:2])

    def _noise(self, seed: int, rows: int, columns: int) -> np.ndarray:
        """Draw the first noise, in the networks' precision: [rows, columns, 4c], float32."""
        shape = (self.config.in_channels, rows, columns)
        drawn = TorchGenerator(seed).randn(shape, self.dtype).astype(self.dtype)
        return np.asarray(drawn.astype(np.float32).transpose(1, 2, 0))
