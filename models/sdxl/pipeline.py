"""SDXL as the engine runs it: encode, step and decode as pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.interface.images import to_uint8
from models.interface.pipeline import Fields, Prepared, PyTree
from models.interface.solver_step import history, solver_step
from models.interface.step_program import StepProgram
from models.parallel.placement import gathered
from models.parallel.trace_options import trace_options
from models.sampling.base import per_row
from models.sampling.guidance import classifier_free, of_first_prompt, rescale
from models.sdxl.conditioning import encode_text
from models.sdxl.prepare import Preparation

OF_PROMPTS = ("prompt_embeds", "pooled_embeds", "time_ids")
"""What a row has of each of its prompts."""


class Networks(NamedTuple):
    """One value a network of the checkpoint: modules, graphs or weights."""

    unet: Any
    clip: Any
    clip_2: Any
    vae: Any
    preview: Any


class SdxlPipeline:
    """Fulfils `models.interface.pipeline.Pipeline`.

    A row: latents and denoised (the last step's estimate of the clean latents) [h, w, c], float32;
    prompt_embeds [prompts, tokens, text], pooled_embeds [prompts, pooled] and time_ids [prompts,
    6], where prompts is 1, or 2 with the negative prompt second; history, the scheduler's.
    Inpainting adds mask [h, w, 1] and, by the UNet's kind, clean and noise or masked [h, w, c];
    networks with distilled guidance have timestep_cond [features].
    """

    def __init__(self, preparation: Preparation, modules: Networks) -> None:
        split = [nnx.split(module) for module in modules]
        self.preparation = preparation
        self.spec = preparation.spec
        self.latent_space = preparation.latent_space
        self.graphs = Networks(*(graph for graph, _ in split))
        self.weights = Networks(*(weights for _, weights in split))

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> Prepared:
        return self.preparation.prepare(fields, images)

    def encode(self, weights: Networks, inputs: Mapping[str, jax.Array]) -> PyTree:
        latents = inputs["noise_scale"] * inputs["noise"]
        kept, clean = self._encode_images(weights, inputs)
        if clean is not None:
            latents = inputs["clean_scale"] * clean + latents
        row = {
            "latents": latents,
            "denoised": jnp.zeros_like(latents),
            "time_ids": inputs["time_ids"],
            "history": history(inputs),
            **self._encode_texts(weights, inputs),
            **kept,
        }
        if "timestep_cond" in inputs:
            row["timestep_cond"] = inputs["timestep_cond"]
        return row

    def conditions(
        self,
        program: StepProgram,
        weights: Networks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> None:
        """Its embeddings of time are a hundredth of a step's weights."""

    def step(
        self,
        program: StepProgram,
        weights: Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: None = None,
    ) -> PyTree:
        seen = rows if program.guided else of_first_prompt(rows, *OF_PROMPTS)
        with replace(trace_options(), quant=program.quant).active():
            output = self.predict(weights, seen, values)
        return self.advance(program, rows, output, values)

    def predict(
        self, weights: Networks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch h w latent"]:
        """A step's first half: the network's answer to every prompt of every row, in one call.

        Float32, guided.
        """
        (unet,) = self._merge(weights, "unet")
        batch, prompts = rows["prompt_embeds"].shape[:2]

        def each_prompt(x: Array) -> Array:
            return jnp.repeat(x, prompts, axis=0)

        latents = rows["latents"] * per_row(values["input_scale"], rows["latents"])
        if "masked" in rows:
            latents = jnp.concatenate([latents, rows["mask"], rows["masked"]], axis=-1)
        output = unet(
            each_prompt(latents),
            each_prompt(values["timestep"]),
            *(_alone(rows[name]) for name in ("prompt_embeds", "pooled_embeds", "time_ids")),
            each_prompt(rows["timestep_cond"]) if "timestep_cond" in rows else None,
        )
        output = output.astype(jnp.float32).reshape(batch, prompts, *output.shape[1:])
        return _guided(output, values)

    def advance(
        self,
        program: StepProgram,
        rows: PyTree,
        output: Float[Array, "batch h w latent"],
        values: Mapping[str, jax.Array],
    ) -> PyTree:
        """A step's second half: where the scheduler goes from there."""
        stepped = solver_step(program, rows["latents"], output, rows["history"], values)
        after = {"latents": stepped.latents, "denoised": stepped.denoised}
        if "clean" in rows:
            after = _around_the_mask(after, rows, values)
        return {**rows, **after, "history": stepped.history}

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        return to_uint8(self.latent_space.decode(self.graphs.vae, weights.vae, row["latents"]))

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        (preview,) = self._merge(weights, "preview")
        return to_uint8(preview(row["denoised"]))

    def _merge(self, weights: Networks, *names: str) -> list[Any]:
        return [
            nnx.merge(getattr(self.graphs, name), gathered(getattr(weights, name)))
            for name in names
        ]

    def _encode_texts(
        self, weights: Networks, inputs: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Both encoders' hidden states side by side, and the second one's pooled output."""
        clip, clip_2 = self._merge(weights, "clip", "clip_2")
        first, _ = encode_text(clip, inputs["ids"], inputs["layers"])
        second, pooled = encode_text(clip_2, inputs["ids_2"], inputs["layers"])
        embeds = jnp.concatenate([first, second], axis=-1)
        heard = inputs["heard"]
        return {
            "prompt_embeds": jnp.where(heard[:, None, None], embeds, 0),
            "pooled_embeds": jnp.where(heard[:, None], pooled, 0),
        }

    def _encode_images(
        self, weights: Networks, inputs: Mapping[str, jax.Array]
    ) -> tuple[dict[str, jax.Array], jax.Array | None]:
        """What a row keeps of the pictures, and the latents under the first noise, if any."""

        def sample(name: str) -> Float[Array, "h w latent"]:
            pixels, noise = inputs[name], inputs[f"{name}_noise"]
            return self.latent_space.encode(self.graphs.vae, weights.vae, pixels, noise)

        space = self.latent_space
        if "mask" not in inputs:
            return {}, space.normalized(sample("image")) if "image" in inputs else None
        clean = space.scaled(sample("image")) if "image" in inputs else None
        kept = {"mask": inputs["mask"]}
        if "masked_image" in inputs:
            return kept | {"masked": space.scaled(sample("masked_image"))}, clean
        assert clean is not None  # such a UNet is shown the picture in no other way
        return kept | {"clean": clean, "noise": inputs["noise"]}, clean


def _around_the_mask(
    after: Mapping[str, jax.Array], rows: PyTree, values: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Outside the mask the picture that is kept, with as much noise as the next step expects.

    Source: diffusers pipeline_stable_diffusion_xl_inpaint.py, as Lugmayr et al. 2022 (RePaint),
    eq. 8.
    """
    mask, clean, noise = rows["mask"], rows["clean"], rows["noise"]
    clean_scale, noise_scale = (
        per_row(values[name], clean) for name in ("clean_scale", "noise_scale")
    )
    noised = clean_scale * clean + noise_scale * noise
    return {
        "latents": (1 - mask) * noised + mask * after["latents"],
        "denoised": (1 - mask) * clean + mask * after["denoised"],
    }


def _guided(
    output: Float[Array, "batch prompts h w latent"], values: Mapping[str, jax.Array]
) -> Float[Array, "batch h w latent"]:
    positive = output[:, 0]
    if output.shape[1] == 1:
        return positive
    scale = per_row(values["guidance_scale"], positive)
    guided = classifier_free(positive, output[:, 1], scale)
    return rescale(guided, positive, values["guidance_rescale"])


def _alone(x: Float[Array, "batch prompts ..."]) -> Float[Array, "rows ..."]:
    """Each prompt of each row as a row of its own."""
    return x.reshape(-1, *x.shape[2:])
