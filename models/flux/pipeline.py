"""Flux pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.control.by_row import HINTS
from models.control.slots import NO_CONTROLS, ControlSlots
from models.flow.joint_control import control_inputs, hints
from models.flux.config import FluxConfig
from models.flux.controlling import control_arrays
from models.flux.image_conditioning import image_leaves, image_tokens
from models.flux.image_inputs import ImageDraws
from models.flux.key_mapping import SPELLINGS
from models.flux.kinds import PLAIN, CheckpointKind
from models.flux.prompts import read_texts
from models.flux.redux import PIXELS, counted_text, image_prompt_inputs, with_images
from models.flux.request import FluxRequest
from models.interface.apply_presets import quality_of
from models.interface.controls import requested_controls
from models.interface.denoising_pipeline import Draft, flatten_prompts
from models.interface.flow_steps import flow_plan, flow_steps, scheduler_of
from models.interface.image_prompts import requested_image_prompts
from models.interface.image_start import clean_latents, generator_of
from models.interface.pipeline import PyTree
from models.interface.solver_step import first_history, history_key
from models.interface.step_program import StepProgram
from models.interface.token_buckets import EXTENT, GRID, buckets_of, padded_to, size_inputs
from models.nn.blocks.joint_transformer import ControlArrays, Modulations
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.parallel.dtypes import used_dtype
from models.parallel.placement import cast_in_place
from models.sampling.flow_match import FlowMatchEuler
from models.spec.model_spec import ModelSpec
from models.text.emphasis import scaled
from models.text.tokenizer import Tokenizer
from models.vae.config import Tiling
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import PATCH, pack, pack_on_host, unpack
from models.vae.references import as_grid
from models.vision.preprocess import ClipPreprocessor

BREAK_EVEN_WIDTHS = 6
"""Token count per unit of width at which attention costs as much as the matrix multiplications.
Blocks of either kind have 12 width² parameters per image token."""


class FluxNetworks(NamedTuple):
    """Networks of a Flux pipeline, as modules, graphs or weights; None for absent networks."""

    transformer: Any
    clip: Any
    t5: Any
    vae: Any
    preview: Any
    image_encoder: Any = None
    image_embedder: Any = None
    controls: Any = None
    """List of ControlNets; None if the model has no ControlNets."""


class FluxPipeline(LatentImagePipeline[FluxNetworks]):
    """Pipeline of Flux: text and images to images.

    Leaves of a row:
    - latents and denoised [tokens, 4c]; step_cache, if enabled;
    - prompt_embeds [prompts, text_tokens, joint], with image prompts appended, and pooled_embeds
      [prompts, pooled];
    - images_read [image_tokens, 0]: number of image prompt tokens;
    - grid [h, w]: empty array with the shape of the VAE's latents;
    - channels [tokens, further], if images are additional channels;
    - reference [tokens, 4c] and reference_grid [h, w], if an image is additional tokens;
    - hints [slots, tokens, 4c], if the model has ControlNets;
    - in token buckets (models/interface/token_buckets.py): extent [2] and of_size.grid instead of
      grid; image tokens are padded with zeros.
    """

    REQUEST = FluxRequest
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
        kind: CheckpointKind = PLAIN,
        preprocessor: ClipPreprocessor | None = None,
        controls: ControlSlots = NO_CONTROLS,
    ) -> None:
        dtype = used_dtype(modules.transformer.latents_in.kernel)
        super().__init__(spec, modules, dtype, vae_tiling)
        self.config: FluxConfig = modules.transformer.config
        self.kind = kind
        self.preprocessor, self.controls = preprocessor, controls
        self.scheduler = scheduler
        multiple = spec.limits.size_multiple_px
        usual = spec.defaults["width"] * spec.defaults["height"] // multiple**2
        self.buckets = buckets_of(spec, usual, BREAK_EVEN_WIDTHS * self.config.width)
        self._most_side = spec.limits.max_side_px // multiple
        self.tokenizers = (clip_tokenizer, t5_tokenizer)
        self._clip_tokens = modules.clip.config.max_position_embeddings

    def plan_request(self, request: FluxRequest, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise, and plan the steps."""
        h, w = self.grid_of(width=request.width, height=request.height)
        sizes = self.spec.embedding_sizes
        texts = read_texts(request, self.tokenizers, self._clip_tokens, images, sizes)
        tokens = h * w // 4
        from_image = self.kind.starts_from_image and "image" in images
        strength = request.image_strength(from_image=from_image)
        scheduler = scheduler_of(request, self.scheduler)
        plan = flow_plan(request, scheduler, tokens, strength)
        generator = generator_of(request)
        draws = ImageDraws(generator, h, w, self.config.latent_channels, self.dtype)
        size = (request.width, request.height)
        control = requested_controls(request.control, images, self.spec, size)
        inputs = {
            **texts.inputs,
            **control_inputs(self.controls, control, draws.noise),
            **self.kind.inputs(request, images, plan, draws),
            **image_prompt_inputs(
                request,
                requested_image_prompts(request.image_prompts, images, self.spec),
                self.preprocessor,
            ),
            **first_history(scheduler.solver),
        }
        prompts = len(request.prompts)
        kind = f"text={request.max_sequence_length},prompts={prompts}"
        kind += history_key(scheduler.solver)
        padded = None if "reference" in inputs else self._padded(request, h, w)
        if "reference" in inputs:
            rows, columns, _ = inputs["reference"].shape
            kind += f",reference={columns}x{rows}"
            tokens += rows * columns // self.spec.limits.size_multiple_px**2
        if padded is not None:
            noise = padded_to(padded, pack_on_host(inputs["noise"]))
            inputs |= {"noise": noise, **size_inputs((h, w), (PATCH, PATCH))}
            kind += f",tokens={padded}"
        if PIXELS in inputs:
            kind += ",image prompts"
        return Draft(
            f"{request.width}x{request.height},{kind}",
            inputs,
            self.controls.steps(flow_steps(request, plan, scheduler.solver), control),
            request.width,
            request.height,
            request.seed,
            prompts,
            tokens,
            texts.warnings,
            kind if padded is not None else "",
        )

    def _padded(self, request: FluxRequest, h: int, w: int) -> int | None:
        """Return the number of tokens of the bucket; None if the steps are specific to the size.

        Step caches exclude buckets, since their signal is a mean over tokens.
        """
        is_too_long = max(h, w) > PATCH * self._most_side
        if self.buckets is None or is_too_long:
            return None
        if quality_of(self.spec, request.quality).step_cache:
            return None
        return self.buckets.padded_tokens(h * w // PATCH**2)

    def embed(self, weights: FluxNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode prompts and images, and build the first latents."""

        def encoded(name: str) -> Float[Array, "h w c"]:
            return self.encode_image(weights, inputs[name], inputs.get(f"{name}_noise"))

        noise, is_padded = inputs["noise"], EXTENT in inputs
        latents = noise if is_padded else pack(noise)
        start = clean_latents(inputs, partial(self.encode_image, weights))
        if start is not None:
            clean = padded_to(len(latents), pack(start))
            latents = inputs["noise_scale"] * latents + inputs["clean_scale"] * clean
        hint_leaves = {}
        if self.graphs.controls is not None:
            encode, empty = partial(self.encode_image, weights), jnp.zeros_like(latents, self.dtype)
            hint_leaves[HINTS] = hints(encode, pack, inputs, self.controls.count, empty)
        return {
            **hint_leaves,
            "latents": latents,
            **({EXTENT: inputs[EXTENT]} if is_padded else {GRID: as_grid(noise)}),
            **self._prompts(weights, inputs),
            **image_leaves(inputs, encoded, len(latents)),
            **initial_cache(inputs, self.config.width, self.dtype),
        }

    def modulations(
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
        modulations: Modulations | None,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts tokens patch"]:
        """Return the velocity for every prompt of every row."""
        if modulations is None:
            modulations = self._modulations(weights, rows["pooled_embeds"], values)
        transformer = self.network(weights, "transformer")
        batch, prompts, text_tokens, _ = rows["prompt_embeds"].shape
        tokens, image_ids = image_tokens(rows, self._most_side)
        velocity = transformer.velocity(
            jnp.repeat(tokens, prompts, axis=0),
            flatten_prompts(rows["prompt_embeds"]),
            jax.tree.map(flatten_prompts, modulations),
            image_ids.repeated(prompts) if isinstance(image_ids, RowGrids) else image_ids,
            np.zeros((text_tokens, 3), int),
            cache,
            counted_text(rows),
            control_arrays=self._control_arrays(weights, rows, values),
        )
        velocity = velocity[:, : rows["latents"].shape[1]].astype(jnp.float32)
        velocity = velocity.reshape(batch, prompts, *velocity.shape[1:])
        return image_ids.zeroed(velocity) if isinstance(image_ids, RowGrids) else velocity

    def _control_arrays(
        self, weights: FluxNetworks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> ControlArrays | None:
        """Return the ControlNets' residuals; None if the model has no ControlNets."""
        if self.graphs.controls is None:
            return None
        networks = nnx.merge(self.graphs.controls, weights.controls)
        return control_arrays(networks, self.config, self.dtype, rows, values)

    def _prompts(
        self, weights: FluxNetworks, inputs: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Encode the prompts, and append image prompts to the first."""
        clip, t5 = self.network(weights, "clip"), self.network(weights, "t5")
        embeds = t5(inputs["t5_ids"], vectors=inputs.get("t5_vectors"))
        embeds = scaled(embeds, inputs.get("token_weights"))
        pooled = clip(inputs["clip_ids"], inputs.get("clip_vectors")).pooled
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
        transformer = nnx.merge(self.graphs.transformer, cast_in_place(weights.transformer))
        times, prompts, _ = pooled_embeds.shape
        timestep, guidance = (
            jnp.repeat(values[name], prompts) for name in ("timestep", "guidance_scale")
        )
        flat = transformer.conditions(timestep, guidance, flatten_prompts(pooled_embeds))
        modulations: Modulations = jax.tree.map(
            lambda leaf: leaf.reshape(times, prompts, *leaf.shape[1:]), flat
        )
        return modulations
