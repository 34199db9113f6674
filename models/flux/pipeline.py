"""Flux as the engine runs it: encode, step and decode as pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.flux.conditioning import Modulations
from models.flux.config import FluxConfig
from models.flux.latents import image_ids, pack, unpack
from models.flux.request import FluxRequest, noise_inputs, steps_of
from models.interface.apply_presets import eased, quality_of
from models.interface.images import to_uint8
from models.interface.pipeline import Fields, Prepared, PyTree, RequestError, RequestWarning
from models.interface.request import read_request
from models.interface.step_program import StepProgram
from models.nn.layers.step_cache import CachedStep, cache_input, cached_step, first_kept, kept_by
from models.parallel.dtypes import used_dtype
from models.parallel.placement import gathered, in_place
from models.parallel.trace_options import trace_options
from models.sampling.flow_schedule import FlowMatchSchedule
from models.sampling.guidance import classifier_free, of_first_prompt
from models.spec.model_spec import ModelSpec
from models.text.tokenizer import Tokenizer, cut_prompts
from models.vae.config import Tiling, VaeConfig
from models.vae.tiled import tiled

OF_PROMPTS = ("prompt_embeds", "pooled_embeds")
"""What a row has of each of its prompts."""


class Networks(NamedTuple):
    """One value a network of the checkpoint: modules, graphs or weights."""

    transformer: Any
    clip: Any
    t5: Any
    vae: Any
    preview: Any


class FluxPipeline:
    """Fulfils `models.interface.pipeline.Pipeline`.

    A row: latents and denoised (the last step's estimate of the clean latents) [tokens, 4c],
    float32; prompt_embeds [prompts, text_tokens, joint] and pooled_embeds [prompts, pooled], where
    prompts is 1, or 2 with the negative prompt second; grid [h, w], the shape of the VAE's latents
    as an array without values; step_cache, where there is one.
    """

    def __init__(
        self,
        spec: ModelSpec,
        modules: Networks,
        schedule: FlowMatchSchedule,
        clip_tokenizer: Tokenizer,
        t5_tokenizer: Tokenizer,
        vae_tiling: Tiling | None = None,
    ) -> None:
        split = [nnx.split(module) for module in modules]
        self.spec = spec
        self.graphs = Networks(*(graph for graph, _ in split))
        self.weights = Networks(*(weights for _, weights in split))
        self.config: FluxConfig = modules.transformer.config
        self.vae_config: VaeConfig = modules.vae.config
        self.vae_tiling = vae_tiling
        self.schedule = schedule
        self.tokenizers = (clip_tokenizer, t5_tokenizer)
        self._clip_tokens = modules.clip.config.max_position_embeddings
        self.dtype = used_dtype(modules.transformer.latents_in.kernel)

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> Prepared:
        request = read_request(FluxRequest, fields)
        h, w = self._grid(request)
        clip, t5 = self.tokenizers
        image = images.get("image")
        inputs = {
            "clip_ids": clip.encode([*request.prompts.values()], self._clip_tokens),
            "t5_ids": t5.encode([*request.prompts_2.values()], request.max_sequence_length),
            **noise_inputs(request, self.config, h, w, self.dtype, image),
        }
        steps = steps_of(request, self.schedule, h * w // 4, from_image=image is not None)
        quality = quality_of(self.spec, fields)
        steps = eased(steps, quality)
        if quality.step_cache:
            inputs |= cache_input(len(request.prompts), h * w // 4)
        if image is not None:
            inputs["sigma"] = np.asarray(steps[0].values["sigma"])
        size = f"{request.width}x{request.height}"
        bucket = f"{size},text={request.max_sequence_length},prompts={len(request.prompts)}"
        if quality.key:
            bucket += f",{quality.key}"
        size_px, warnings = (request.width, request.height), self._warnings(request)
        return Prepared(bucket, inputs, steps, *size_px, request.seed, warnings)

    def _warnings(self, request: FluxRequest) -> tuple[RequestWarning, ...]:
        clip, t5 = self.tokenizers
        return (
            *cut_prompts("CLIP", clip, request.prompts, self._clip_tokens),
            *cut_prompts("T5", t5, request.prompts_2, request.max_sequence_length),
        )

    def encode(self, weights: Networks, inputs: Mapping[str, jax.Array]) -> PyTree:
        clip, t5 = self._merge(weights, "clip", "t5")
        noise = pack(inputs["noise"])
        latents = noise
        if "image" in inputs:
            vae = self._vae(weights)
            clean = pack(self._encode_image(vae, inputs["image"], inputs["image_noise"]))
            latents = inputs["sigma"] * noise + (1 - inputs["sigma"]) * clean
        return {
            "latents": latents,
            "denoised": jnp.zeros_like(latents),
            "grid": jnp.zeros((*inputs["noise"].shape[:2], 0)),
            "prompt_embeds": t5(inputs["t5_ids"]),
            "pooled_embeds": clip(inputs["clip_ids"]).pooled,
            **first_kept(inputs, self.config.width, self.dtype),
        }

    def conditions(
        self,
        program: StepProgram,
        weights: Networks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> Modulations:
        pooled = row["pooled_embeds"] if program.guided else row["pooled_embeds"][:1]
        pooled = jnp.broadcast_to(pooled, (len(values["timestep"]), *pooled.shape))
        with replace(trace_options(), quant=program.quant).active():
            return self._modulations(weights, pooled, values)

    def step(
        self,
        program: StepProgram,
        weights: Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: Modulations | None = None,
    ) -> PyTree:
        seen = rows if program.guided else of_first_prompt(rows, *OF_PROMPTS)
        cache = cached_step(program.cache, rows, values)
        with replace(trace_options(), quant=program.quant).active():
            if conditions is None:
                conditions = self._modulations(weights, seen["pooled_embeds"], values)
            velocity = self._velocity(weights, seen, conditions, cache)
        if program.guided:
            scale = values["true_cfg_scale"][:, None, None]
            velocity = classifier_free(velocity[:, 0], velocity[:, 1], scale)
        else:
            velocity = velocity[:, 0]
        assert program.solver is not None
        told = {name: values[name] for name in ("sigma", "sigma_next")}
        stepped = program.solver.step(rows["latents"], velocity, {}, None, told)
        return {
            **rows,
            "latents": stepped.latents,
            "denoised": stepped.denoised,
            **kept_by(cache),
        }

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        latents = self._unpack(row, "latents")
        latents = latents / self.vae_config.scaling_factor + (self.vae_config.shift_factor or 0)
        return to_uint8(self._vae(weights).decode(latents[None].astype(self.dtype))[0])

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        (preview,) = self._merge(weights, "preview")
        return to_uint8(preview(self._unpack(row, "denoised")))

    def _modulations(
        self,
        weights: Networks,
        pooled_embeds: Float[Array, "times prompts pooled"],
        values: Mapping[str, jax.Array],
    ) -> Modulations:
        """Of every prompt at every time: [times, prompts, …]."""
        transformer = nnx.merge(self.graphs.transformer, in_place(weights.transformer))
        times, prompts, _ = pooled_embeds.shape
        timestep, guidance = (
            jnp.repeat(values[name], prompts) for name in ("timestep", "guidance_scale")
        )
        flat = transformer.conditions(timestep, guidance, alone(pooled_embeds))
        return jax.tree.map(lambda leaf: leaf.reshape(times, prompts, *leaf.shape[1:]), flat)

    def _velocity(
        self, weights: Networks, rows: PyTree, modulations: Modulations, cache: CachedStep | None
    ) -> Float[Array, "batch prompts tokens patch"]:
        """The network's answer to every prompt of every row, in one call, float32."""
        (transformer,) = self._merge(weights, "transformer")
        batch, prompts, text_tokens, _ = rows["prompt_embeds"].shape
        h, w = rows["grid"].shape[1:3]

        velocity = transformer.velocity(
            jnp.repeat(rows["latents"], prompts, axis=0),
            alone(rows["prompt_embeds"]),
            jax.tree.map(alone, modulations),
            image_ids(h, w),
            np.zeros((text_tokens, 3), int),
            cache,
        )
        return velocity.astype(jnp.float32).reshape(batch, prompts, *velocity.shape[1:])

    def _encode_image(self, vae: Any, pixels: Array, noise: Array) -> Float[Array, "h w c"]:
        """A sample of the VAE's posterior, shifted and scaled as the transformer wants it."""
        mean, log_variance = vae.encode(pixels[None].astype(self.dtype))
        mean, log_variance = (x[0].astype(jnp.float32) for x in (mean, log_variance))
        sample = mean + jnp.exp(0.5 * log_variance) * noise
        shift = self.vae_config.shift_factor or 0
        return (sample - shift) * self.vae_config.scaling_factor

    def _grid(self, request: FluxRequest) -> tuple[int, int]:
        """Rows and columns of the VAE's latents. Raises: RequestError for a size between two."""
        multiple = self.spec.limits.size_multiple_px
        for name in ("width", "height"):
            size = getattr(request, name)
            if size < multiple or size % multiple:
                raise RequestError(name, f"must be a positive multiple of {multiple}, not {size}")
        down = self.vae_config.downsampling
        return request.height // down, request.width // down

    def _unpack(self, row: PyTree, name: str) -> Float[Array, "h w c"]:
        return unpack(row[name], *row["grid"].shape[:2])

    def _vae(self, weights: Networks) -> Any:
        (vae,) = self._merge(weights, "vae")
        return tiled(vae, self.vae_tiling)

    def _merge(self, weights: Networks, *names: str) -> list[Any]:
        return [
            nnx.merge(getattr(self.graphs, name), gathered(getattr(weights, name)))
            for name in names
        ]


def alone(x: Float[Array, "rows prompts ..."]) -> Float[Array, "both ..."]:
    """Each prompt of each row as a row of its own."""
    return x.reshape(-1, *x.shape[2:])
