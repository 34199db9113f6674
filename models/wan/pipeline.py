"""Wan as the engine runs it: pure functions of the weights."""

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
from models.interface.pipeline import Fields, PyTree
from models.interface.request import read_request
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
from models.wan.conditioning_images import ConditioningImages
from models.wan.image_conditioning import (
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
from models.wan.step_table import phases_of, plan_of, steps_of


class WanNetworks(NamedTuple):
    """Value a network of the checkpoint: modules, graphs or weights; None: it has none."""

    transformer: Any
    transformer_2: Any
    t5: Any
    vae: Any
    image_encoder: Any
    face_encoder: Any
    preview: Any


class Tools(NamedTuple):
    """Parts of a checkpoint beside its networks, for the host."""

    scheduler: Mapping[str, Any]
    """`scheduler_config.json`."""
    tokenizer: Tokenizer
    preprocessor: ClipPreprocessor | None
    """Preprocessor of images for the image encoder; None: it has none."""


class WanPipeline(DenoisingPipeline[WanNetworks]):
    """Pipeline of Wan.

    A row: latents and denoised [f, h, w, c]; prompt_embeds [prompts, text_tokens, text], zero where
    there is only padding; step_cache, where there is one. With an image also condition [f, h, w,
    mask and c] or, in TI2V, first_frame [1, h, w, c]; and image_embeds [image_tokens, image] where
    the transformer takes them. Of a bucket of tokens (models/interface/token_buckets.py) latents
    and denoised are patches in a row, with zeros behind them, and there are extent [3] and
    of_size.grid.
    """

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
        self.pictures = ConditioningImages(checkpoint, tools.preprocessor)
        self.grid = Grid.of(checkpoint.transformer, checkpoint.vae)
        self.normalisation = Normalisation.of(checkpoint.vae)
        expert = modules.transformer or modules.transformer_2
        self.dtype = used_dtype(expert.patches_in.kernel)
        config = expert.config
        self.width = config.width
        # of a layer: self-attention, queries and output of the other one, and the feed-forward
        even = (6 * config.width + 2 * config.ffn_dim) // 2
        self.buckets = buckets_of(spec, self._usual_tokens(spec), even)

    def _usual_tokens(self, spec: ModelSpec) -> int:
        """Return the tokens of the model's default size."""
        grid, usual = self.grid, spec.defaults
        frames = (usual["num_frames"] - 1) // grid.frame + 1
        sizes = (frames, usual["height"] // grid.pixel, usual["width"] // grid.pixel)
        return tokens_of(sizes, grid.patch)

    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise, and plan which expert takes which step."""
        request = read_request(WanRequest, fields)
        texts = read_texts(request, self.tools.tokenizer)
        sizes = self.grid.latents(request)
        pictures = self.read_images(request, images)
        shape = (self.frames_in_front(pictures) + sizes[0], *sizes[1:])
        scheduler = scheduler_of(self.tools.scheduler, request.scheduler)
        plan = plan_of(request, scheduler)
        experts = self.checkpoint.experts(scheduler.num_train_timesteps)
        phases = phases_of(request, plan, experts, scheduler.solver)
        channels = self.checkpoint.vae.z_dim
        tokens = tokens_of(shape, self.grid.patch)
        padded = self._padded(fields, pictures, scheduler.solver, tokens)
        draw = partial(draw_noise, TorchGenerator(request.seed), shape, channels)
        if padded is not None:
            draw = partial(self._in_bucket, draw, padded)
        noise = draw()
        inputs = {
            "noise": noise,
            **texts.inputs,
            **first_history(scheduler.solver, noise.shape),
            **pictures,
            **(size_inputs(shape, self.grid.patch) if padded is not None else {}),
        }
        kind = f"{self.kind_of(pictures)},{solver_key(scheduler.solver, plan)}"
        in_bucket = "" if padded is None else f"tokens={padded},"
        return Draft(
            f"{request.size},{in_bucket}{request.text},{kind}",
            inputs,
            steps_of(request, plan, phases, draw),
            request.width,
            request.height,
            request.seed,
            len(request.prompts),
            tokens,
            (*texts.warnings, *idle_options(request.scheduler, partial(self._planned, request))),
            in_bucket and f"{in_bucket}{request.text},{kind}",
        )

    def _padded(
        self, fields: Fields, pictures: Mapping[str, Any], solver: Solver, tokens: int
    ) -> int | None:
        """Return the tokens of the latents' bucket; None: the steps are of their size alone.

        Images are conditions of one size, and a step cache and a threshold look at all tokens.
        """
        if self.buckets is None or pictures:
            return None
        if quality_of(self.spec, fields).step_cache or getattr(solver, "thresholds", False):
            return None
        return self.buckets.of(tokens)

    def _in_bucket(self, draw: Callable[[], np.ndarray], tokens: int) -> np.ndarray:
        """Draw noise, and return it as patches with zeros behind them."""
        patch = self.grid.patch
        padded: np.ndarray = padded_to(tokens * patch[0], patches(draw(), patch))
        return padded

    def embed(self, weights: WanNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts, and images as conditions."""
        t5 = self.network(weights, "t5")
        embeds = prompt_embeds(
            t5, inputs["text_ids"], inputs["text_mask"], inputs.get("token_weights")
        )
        return {
            "latents": inputs["noise"],
            **({EXTENT: inputs[EXTENT]} if EXTENT in inputs else {}),
            "prompt_embeds": embeds.astype(self.dtype),
            **self.conditioned(weights, inputs),
            **initial_cache(inputs, self.width, self.dtype),
        }

    def predict(
        self,
        program: StepProgram,
        weights: WanNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts f h w c"]:
        """Return the velocity for every prompt of every row."""
        transformer, timestep = self.network(weights, program.network), values["timestep"]
        batch, prompts, text_tokens, _ = rows["prompt_embeds"].shape
        seen = _finished(rows, "latents")
        if "condition" in rows:
            seen = jnp.concatenate([seen, rows["condition"]], axis=-1)
        if "first_frame" in rows:
            tokens = zip(seen.shape[1:4], self.grid.patch, strict=True)
            timestep = token_timesteps(timestep, tuple(size // patch for size, patch in tokens))

        def each_prompt(x: Array | None) -> Array | None:
            return None if x is None else jnp.repeat(x, prompts, axis=0)

        embeds = rows["prompt_embeds"].reshape(batch * prompts, text_tokens, -1)
        told = each_prompt(seen), each_prompt(timestep), embeds
        if (grids := self._grids(rows)) is not None:
            output = transformer.of_patches(*told, grids.repeated(prompts))
        else:
            images = each_prompt(rows.get("image_embeds"))
            output = transformer(*told, images, cache, **self.guides(rows, prompts))
        output = output.astype(jnp.float32).reshape(batch, prompts, *output.shape[1:])
        return output if grids is None else grids.zeroed(output)

    def _grids(self, rows: PyTree) -> RowGrids | None:
        """Return the grids of rows of a bucket of tokens; None: all are of one size."""
        if EXTENT not in rows:
            return None
        tokens = rows["latents"].shape[1] // self.grid.patch[0]
        return RowGrids(rows[EXTENT], tokens, self.grid.max_tokens)

    def decode(self, weights: WanNetworks, row: PyTree) -> jax.Array:
        """Decode the latents by the VAE."""
        latents = self.normalisation.undo(self.of_video(row, "latents"))
        return self.vae(weights).decode(latents[None], finish=to_frames)[0]

    def preview(self, weights: WanNetworks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents by a linear map."""
        return to_frames(self.network(weights, "preview")(self.of_video(row, "denoised")))

    def of_video(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        """Return the video's latents of a row."""
        if EXTENT in row:
            return without_patches(row[name], grid_of(row), self.grid.patch)
        return _finished(row, name)

    def _planned(self, request: WanRequest, chosen: Mapping[str, Any]) -> tuple[Scheduler, Plan]:
        scheduler = scheduler_of(self.tools.scheduler, chosen)
        return scheduler, plan_of(request, scheduler)

    def read_images(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the pixels of a request's images, and what else is read of them.

        Raises: RequestError: an image is missing, not taken, or no image.
        """
        return self.pictures.inputs(request, images)

    def frames_in_front(self, pictures: Mapping[str, Any]) -> int:
        """Return the number of a row's latent frames in front of the video's."""
        return 0

    def guides(self, rows: PyTree, prompts: int) -> dict[str, Any]:
        """Return what else the transformer reads of rows, for each prompt of each."""
        return {}

    def kind_of(self, pictures: Mapping[str, Any]) -> str:
        """Return the part of the bucket that says what a row has of its images."""
        return "from image" if pictures else "from text"

    def conditioned(self, weights: WanNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Return what a row has of its images."""
        if "image" not in inputs:
            return {}
        encoder = self.network(weights, "image_encoder")
        vae = self.vae(weights)
        first, last = inputs["image"], inputs.get("last_image")
        found: dict[str, Any] = {}
        if self.checkpoint.expand_timesteps:
            found["first_frame"] = self.encoded(vae, first[None])
        else:
            frames, per_latent = len(inputs["noise"]), self.grid.frame
            clip = conditioning_video(first, last, (frames - 1) * per_latent + 1)
            mask = known_frames(frames, per_latent, with_last=last is not None)
            found["condition"] = join(mask, self.encoded(vae, clip))
        if "clip_pixels" in inputs:
            features = encoder(inputs["clip_pixels"]).hidden_states[-2]
            found["image_embeds"] = features.reshape(-1, features.shape[-1]).astype(self.dtype)
        return found

    def encoded(
        self, vae: Any, clip: Float[Array, "frames height width 3"]
    ) -> Float[Array, "f h w c"]:
        """The posterior's mode, as the transformer has latents."""
        mean, _ = vae.encode(clip[None])
        return self.normalisation.apply(mean[0])

    def vae(self, weights: WanNetworks) -> Any:
        """Return the autoencoder, over tiles where it works so."""
        return tiled(self.network(weights, "vae"), self.vae_tiling)


def _finished(row: PyTree, name: str) -> Float[Array, "*batch f h w c"]:
    """Latents of a row or of rows, the image's own in their first frame where TI2V has one."""
    if "first_frame" in row:
        return with_first_frame(row[name], row["first_frame"])
    return row[name]
