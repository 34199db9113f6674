"""Wan pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.apply_presets import quality_of
from models.interface.denoising_pipeline import DenoisingPipeline, Draft
from models.interface.idle_options import idle_options
from models.interface.images import to_frames
from models.interface.pipeline import PyTree
from models.interface.solver_step import first_history, solver_key
from models.interface.step_program import StepProgram
from models.interface.token_buckets import EXTENT, buckets_of, grid_of, padded_to, size_inputs
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.parallel.dtypes import used_dtype
from models.sampling.base import Plan, Scheduler
from models.sampling.solver import Solver
from models.sampling.torch_rng import TorchGenerator
from models.spec.model_spec import ModelSpec
from models.text.tokenizer import Tokenizer
from models.vae.config import Tiling
from models.vae.normalisation import Normalisation
from models.vae.tiled import tiled
from models.vision.preprocess import ClipPreprocessor
from models.wan.adapter_names import SPELLINGS
from models.wan.checkpoint import WanCheckpoint
from models.wan.image_conditioning import (
    ConditioningImages,
    conditioning_video,
    join,
    known_frames,
    token_timesteps,
    with_first_frame,
)
from models.wan.latents import Grid, draw_noise, patches, tokens_of, without_patches
from models.wan.prompts import prompt_embeds, read_texts
from models.wan.request import WanRequest
from models.wan.schedulers import scheduler_of
from models.wan.step_table import plan_of, step_programs_of, steps_of


class WanNetworks(NamedTuple):
    """Networks of a Wan pipeline, as modules, graphs or weights; None for absent networks."""

    transformer: Any
    transformer_2: Any
    t5: Any
    vae: Any
    image_encoder: Any
    face_encoder: Any
    preview: Any


class Tools(NamedTuple):
    """Host-side parts of a checkpoint: scheduler, tokenizer and image preprocessor."""

    scheduler: Mapping[str, Any]
    """Contents of `scheduler_config.json`."""
    tokenizer: Tokenizer
    preprocessor: ClipPreprocessor | None
    """Preprocessor for the image encoder; None without an image encoder."""


class WanPipeline(DenoisingPipeline[WanNetworks]):
    """Pipeline of Wan: text and images to videos.

    Leaves of a row:
    - latents and denoised [f, h, w, c]; step_cache, if enabled;
    - prompt_embeds [prompts, text_tokens, text], zero at padding;
    - with an image: condition [f, h, w, mask and c] or, in TI2V, first_frame [1, h, w, c];
    - image_embeds [image_tokens, image], if the transformer takes them;
    - in token buckets (models/interface/token_buckets.py): extent [3] and of_size.grid; latents and
      denoised are then a sequence of patches, padded with zeros.
    """

    REQUEST = WanRequest
    PROMPTS: ClassVar[tuple[str, ...]] = ("prompt_embeds",)
    SPELLINGS = SPELLINGS

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: WanCheckpoint,
        modules: WanNetworks,
        tools: Tools,
        vae_tiling: Tiling | None = None,
    ) -> None:
        super().__init__(spec, modules)
        self.checkpoint = checkpoint
        self.tools = tools
        self.vae_tiling = vae_tiling
        self.conditioning_images = ConditioningImages(checkpoint, tools.preprocessor)
        self.grid = Grid.of(checkpoint.transformer, checkpoint.vae)
        self.normalisation = Normalisation.of(checkpoint.vae)
        expert = modules.transformer or modules.transformer_2
        self.dtype = used_dtype(expert.patches_in.kernel)
        config = expert.config
        self.width = config.width
        # parameters of a layer: self-attention, cross-attention's queries and output, feed-forward
        even = (6 * config.width + 2 * config.ffn_dim) // 2
        self.buckets = buckets_of(spec, self._usual_tokens(spec), even)

    def _usual_tokens(self, spec: ModelSpec) -> int:
        """Return the number of tokens at the model's default size."""
        grid, usual = self.grid, spec.defaults
        frames = (usual["num_frames"] - 1) // grid.frame + 1
        sizes = (frames, usual["height"] // grid.pixel, usual["width"] // grid.pixel)
        return tokens_of(sizes, grid.patch)

    def plan_request(self, request: WanRequest, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise, and plan the expert of each step."""
        texts = read_texts(request, self.tools.tokenizer)
        sizes = self.grid.latents(request)
        image_inputs = self.read_images(request, images)
        shape = (self.leading_frames(image_inputs) + sizes[0], *sizes[1:])
        scheduler = scheduler_of(self.tools.scheduler, request.scheduler)
        plan = plan_of(request, scheduler)
        experts = self.checkpoint.experts(scheduler.num_train_timesteps)
        programs = step_programs_of(request, plan, experts, scheduler.solver)
        channels = self.checkpoint.vae.z_dim
        tokens = tokens_of(shape, self.grid.patch)
        padded = self._padded(request, image_inputs, scheduler.solver, tokens)
        draw = partial(draw_noise, TorchGenerator(request.seed), shape, channels)
        if padded is not None:
            draw = partial(self._in_bucket, draw, padded)
        noise = draw()
        inputs = {
            "noise": noise,
            **texts.inputs,
            **first_history(scheduler.solver),
            **image_inputs,
            **(size_inputs(shape, self.grid.patch) if padded is not None else {}),
        }
        kind = f"{self.kind_of(image_inputs)},{solver_key(scheduler.solver, plan)}"
        in_bucket = "" if padded is None else f"tokens={padded},"
        return Draft(
            f"{request.size},{in_bucket}{request.text},{kind}",
            inputs,
            steps_of(request, plan, programs, draw),
            request.width,
            request.height,
            request.seed,
            len(request.prompts),
            tokens,
            (*texts.warnings, *idle_options(request.scheduler, partial(self._planned, request))),
            in_bucket and f"{in_bucket}{request.text},{kind}",
        )

    def _padded(
        self, request: WanRequest, image_inputs: Mapping[str, Any], solver: Solver, tokens: int
    ) -> int | None:
        """Return the number of tokens of the bucket; None if the steps are specific to the size.

        Buckets exclude images, whose conditioning has a fixed size, and step caches and thresholds,
        which depend on all tokens.
        """
        if self.buckets is None or image_inputs:
            return None
        cached = quality_of(self.spec, request.quality).step_cache
        if cached or getattr(solver, "thresholds", False):
            return None
        return self.buckets.padded_tokens(tokens)

    def _in_bucket(self, draw: Callable[[], np.ndarray], tokens: int) -> np.ndarray:
        """Draw a token bucket's noise: a sequence of patches, padded with zeros."""
        patch = self.grid.patch
        padded: np.ndarray = padded_to(tokens * patch[0], patches(draw(), patch))
        return padded

    def embed(self, weights: WanNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode prompts and images into the leaves of a row."""
        t5 = self.network(weights, "t5")
        embeds = prompt_embeds(
            t5, inputs["text_ids"], inputs["text_mask"], inputs.get("token_weights")
        )
        return {
            "latents": inputs["noise"],
            **({EXTENT: inputs[EXTENT]} if EXTENT in inputs else {}),
            "prompt_embeds": embeds.astype(self.dtype),
            **self.encode_images(weights, inputs),
            **initial_cache(inputs, self.width, self.dtype),
        }

    def predict(
        self,
        program: StepProgram,
        weights: WanNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts f h w c"]:
        """Return the velocity for every prompt of every row."""
        transformer, timestep = self.network(weights, program.network), values["timestep"]
        batch, prompts, text_tokens, _ = rows["prompt_embeds"].shape
        latents = _finished(rows, "latents")
        if "condition" in rows:
            latents = jnp.concatenate([latents, rows["condition"]], axis=-1)
        if "first_frame" in rows:
            tokens = zip(latents.shape[1:4], self.grid.patch, strict=True)
            timestep = token_timesteps(timestep, tuple(size // patch for size, patch in tokens))

        def each_prompt(x: Array | None) -> Array | None:
            return None if x is None else jnp.repeat(x, prompts, axis=0)

        embeds = rows["prompt_embeds"].reshape(batch * prompts, text_tokens, -1)
        inputs = each_prompt(latents), each_prompt(timestep), embeds
        if (grids := self._grids(rows)) is not None:
            output = transformer.of_patches(*inputs, grids.repeated(prompts))
        else:
            images = each_prompt(rows.get("image_embeds"))
            output = transformer(*inputs, images, cache, **self.guides(rows, prompts))
        output = output.astype(jnp.float32).reshape(batch, prompts, *output.shape[1:])
        return output if grids is None else grids.zeroed(output)

    def _grids(self, rows: PyTree) -> RowGrids | None:
        """Return the patch grids of rows in a token bucket; None if all rows have one size."""
        if EXTENT not in rows:
            return None
        tokens = rows["latents"].shape[1] // self.grid.patch[0]
        return RowGrids(rows[EXTENT], tokens, self.grid.max_tokens)

    def decode(self, weights: WanNetworks, row: PyTree) -> jax.Array:
        """Decode a row's latents to frames with the VAE."""
        latents = self.normalisation.undo(self.video_latents(row, "latents"))
        frames: jax.Array = self.vae(weights).decode(latents[None], finish=to_frames)[0]
        return frames

    def preview(self, weights: WanNetworks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents with a linear map."""
        return to_frames(self.network(weights, "preview")(self.video_latents(row, "denoised")))

    def video_latents(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        """Return a row's latents of the output video."""
        if EXTENT in row:
            return without_patches(row[name], grid_of(row), self.grid.patch)
        return _finished(row, name)

    def _planned(self, request: WanRequest, chosen: Mapping[str, Any]) -> tuple[Scheduler, Plan]:
        scheduler = scheduler_of(self.tools.scheduler, chosen)
        return scheduler, plan_of(request, scheduler)

    def read_images(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the inputs of `encode` that derive from a request's images.

        Raises: RequestError: an image is missing, unsupported, or cannot be decoded.
        """
        return self.conditioning_images.inputs(request, images)

    def leading_frames(self, image_inputs: Mapping[str, Any]) -> int:
        """Return the number of latent frames that precede the video's in a row."""
        return 0

    def guides(self, rows: PyTree, prompts: int) -> dict[str, Any]:
        """Return transformer inputs of a variant, per prompt; none by default."""
        return {}

    def kind_of(self, image_inputs: Mapping[str, Any]) -> str:
        """Return a bucket key suffix that describes a row's input images."""
        return "from image" if image_inputs else "from text"

    def encode_images(
        self, weights: WanNetworks, inputs: Mapping[str, jax.Array]
    ) -> dict[str, Any]:
        """Encode a request's images into leaves of its row."""
        if "image" not in inputs:
            return {}
        encoder = self.network(weights, "image_encoder")
        vae = self.vae(weights)
        first, last = inputs["image"], inputs.get("last_image")
        leaves: dict[str, Any] = {}
        if self.checkpoint.expand_timesteps:
            leaves["first_frame"] = self.encode_video(vae, first[None])
        else:
            frames, per_latent = len(inputs["noise"]), self.grid.frame
            video = conditioning_video(first, last, (frames - 1) * per_latent + 1)
            mask = known_frames(frames, per_latent, with_last=last is not None)
            leaves["condition"] = join(mask, self.encode_video(vae, video))
        if "clip_pixels" in inputs:
            features = encoder(inputs["clip_pixels"]).hidden_states[-2]
            leaves["image_embeds"] = features.reshape(-1, features.shape[-1]).astype(self.dtype)
        return leaves

    def encode_video(
        self, vae: Any, video: Float[Array, "frames height width 3"]
    ) -> Float[Array, "f h w c"]:
        """Encode a video to the posterior's mode, normalized for the transformer."""
        mean, _ = vae.encode(video[None])
        return self.normalisation.apply(mean[0])

    def vae(self, weights: WanNetworks) -> Any:
        """Return the video autoencoder, tiled if configured."""
        return tiled(self.network(weights, "vae"), self.vae_tiling)


def _finished(row: PyTree, name: str) -> Float[Array, "*batch f h w c"]:
    """Return rows' denoised latents; in TI2V with the image's latents as first frame."""
    if "first_frame" in row:
        return with_first_frame(row[name], row["first_frame"])
    latents: Array = row[name]
    return latents
