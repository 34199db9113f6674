"""Flux as the engine runs it: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.flux.adapter_names import SPELLINGS
from models.flux.config import FluxConfig
from models.flux.image_conditioning import image_tokens, seen_beside
from models.flux.image_inputs import ImageDraws
from models.flux.prompts import read_texts
from models.flux.redux import PIXELS, counted_text, image_prompt_inputs, with_images
from models.flux.request import FluxRequest, steps_of
from models.flux.tools import PLAIN, Tool
from models.interface.denoising_pipeline import Draft, each_alone
from models.interface.image_prompts import requested_image_prompts
from models.interface.image_start import clean_latents
from models.interface.pipeline import Fields, PyTree
from models.interface.request import read_request
from models.interface.step_program import StepProgram
from models.nn.blocks.joint_transformer import Modulations
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.parallel.dtypes import used_dtype
from models.parallel.placement import in_place
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.torch_rng import TorchGenerator
from models.spec.model_spec import ModelSpec
from models.text.emphasis import scaled
from models.text.tokenizer import Tokenizer
from models.vae.config import Tiling
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import pack, unpack
from models.vision.preprocess import ClipPreprocessor


class FluxNetworks(NamedTuple):
    """Value a network of the checkpoint: modules, graphs or weights; None: it has none."""

    transformer: Any
    clip: Any
    t5: Any
    vae: Any
    preview: Any
    image_encoder: Any = None
    image_embedder: Any = None


class FluxPipeline(LatentImagePipeline[FluxNetworks]):
    """Pipeline of Flux.

    A row: latents and denoised [tokens, 4c]; prompt_embeds [prompts, text_tokens, joint], with
    those of images that are read as text, of which images_read [image_tokens, 0] has the number,
    and pooled_embeds [prompts, pooled]; grid [h, w], the
    shape of the VAE's latents as an array without values; channels [tokens, further], where the
    network sees images beside the latents; reference [tokens, 4c] and reference_grid [h, w], where
    it sees one behind them; step_cache, where there is one.
    """

    PROMPTS = ("prompt_embeds", "pooled_embeds")
    ENCODERS = ("clip",)
    SPELLINGS = SPELLINGS
    SCALE = "true_cfg_scale"
    unpack = staticmethod(unpack)

    def __init__(
        self,
        spec: ModelSpec,
        modules: FluxNetworks,
        scheduler: FlowMatchEuler,
        clip_tokenizer: Tokenizer,
        t5_tokenizer: Tokenizer,
        vae_tiling: Tiling | None = None,
        tool: Tool = PLAIN,
        preprocessor: ClipPreprocessor | None = None,
    ) -> None:
        dtype = used_dtype(modules.transformer.latents_in.kernel)
        super().__init__(spec, modules, dtype, vae_tiling)
        self.config: FluxConfig = modules.transformer.config
        self.tool = tool
        self.preprocessor = preprocessor
        self.scheduler = scheduler
        self.tokenizers = (clip_tokenizer, t5_tokenizer)
        self._clip_tokens = modules.clip.config.max_position_embeddings

    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Tokenize both prompts, draw the noise, and plan the steps."""
        request = read_request(FluxRequest, fields)
        h, w = self.grid_of(width=request.width, height=request.height)
        texts = read_texts(request, self.tokenizers, self._clip_tokens)
        tokens = h * w // 4
        from_image = self.tool.starts_from_image and "image" in images
        plan = request.plan(self.scheduler, tokens, request.begun(from_image=from_image))
        generator = TorchGenerator(request.seed)
        draws = ImageDraws(generator, h, w, self.config.latent_channels, self.dtype)
        inputs = {
            **texts.inputs,
            **self.tool.inputs(request, images, plan, draws),
            **image_prompt_inputs(
                request, requested_image_prompts(fields, images, self.spec), self.preprocessor
            ),
        }
        size, prompts = f"{request.width}x{request.height}", len(request.prompts)
        bucket = f"{size},text={request.max_sequence_length},prompts={prompts}"
        if "reference" in inputs:
            rows, columns, _ = inputs["reference"].shape
            bucket += f",reference={columns}x{rows}"
            tokens += rows * columns // self.spec.limits.size_multiple_px**2
        if PIXELS in inputs:
            bucket += ",image prompts"
        return Draft(
            bucket,
            inputs,
            steps_of(request, plan, self.scheduler.solver),
            request.width,
            request.height,
            request.seed,
            prompts,
            tokens,
            texts.warnings,
        )

    def embed(self, weights: FluxNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts, an image into the latents under the first noise, and the others."""

        def encoded(name: str) -> Float[Array, "h w c"]:
            return self.encode_image(weights, inputs[name], inputs.get(f"{name}_noise"))

        latents = pack(inputs["noise"])
        start = clean_latents(inputs, partial(self.encode_image, weights))
        if start is not None:
            latents = inputs["noise_scale"] * latents + inputs["clean_scale"] * pack(start)
        return {
            "latents": latents,
            "grid": jnp.zeros((*inputs["noise"].shape[:2], 0)),
            **self._prompts(weights, inputs),
            **seen_beside(inputs, encoded),
            **initial_cache(inputs, self.config.width, self.dtype),
        }

    def conditions(
        self,
        program: StepProgram,
        weights: FluxNetworks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> Modulations:
        """Compute the modulations of some steps of one row."""
        pooled = row["pooled_embeds"] if program.guided else row["pooled_embeds"][:1]
        pooled = jnp.broadcast_to(pooled, (len(values["timestep"]), *pooled.shape))
        with self.options(program, values).active():
            return self._modulations(weights, pooled, values)

    def predict(
        self,
        program: StepProgram,
        weights: FluxNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: Modulations | None,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts tokens patch"]:
        """Return the velocity for every prompt of every row."""
        if conditions is None:
            conditions = self._modulations(weights, rows["pooled_embeds"], values)
        transformer = self.network(weights, "transformer")
        batch, prompts, text_tokens, _ = rows["prompt_embeds"].shape
        tokens, image_ids = image_tokens(rows)
        velocity = transformer.velocity(
            jnp.repeat(tokens, prompts, axis=0),
            each_alone(rows["prompt_embeds"]),
            jax.tree.map(each_alone, conditions),
            image_ids,
            np.zeros((text_tokens, 3), int),
            cache,
            counted_text(rows),
        )
        velocity = velocity[:, : rows["latents"].shape[1]].astype(jnp.float32)
        return velocity.reshape(batch, prompts, *velocity.shape[1:])

    def _prompts(
        self, weights: FluxNetworks, inputs: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Encode the prompts, and images that are read as if they were text behind the first."""
        clip, t5 = self.network(weights, "clip"), self.network(weights, "t5")
        embeds = scaled(t5(inputs["t5_ids"]), inputs.get("token_weights"))
        pooled = clip(inputs["clip_ids"]).pooled
        if PIXELS not in inputs:
            return {"prompt_embeds": embeds, "pooled_embeds": pooled}
        features = self.network(weights, "image_encoder")(inputs[PIXELS])
        images = self.network(weights, "image_embedder")(features)
        return with_images(embeds, pooled, images, inputs)

    def _modulations(
        self,
        weights: FluxNetworks,
        pooled_embeds: Float[Array, "times prompts pooled"],
        values: Mapping[str, jax.Array],
    ) -> Modulations:
        """Compute the modulations of every prompt at every time: [times, prompts, …]."""
        transformer = nnx.merge(self.graphs.transformer, in_place(weights.transformer))
        times, prompts, _ = pooled_embeds.shape
        timestep, guidance = (
            jnp.repeat(values[name], prompts) for name in ("timestep", "guidance_scale")
        )
        flat = transformer.conditions(timestep, guidance, each_alone(pooled_embeds))
        return jax.tree.map(lambda leaf: leaf.reshape(times, prompts, *leaf.shape[1:]), flat)
