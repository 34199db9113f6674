"""LTX-2 pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import DenoisingPipeline, Draft, flatten_prompts
from models.interface.finite import SOUND, record_finite
from models.interface.flow_steps import flow_plan, flow_steps
from models.interface.images import to_frames
from models.interface.pipeline import Clip, Fields, PyTree, RequestWarning
from models.interface.solver_step import solver_values
from models.interface.step_program import StepProgram
from models.ltx.connectors import Contexts
from models.ltx.first_frame import read_first_frame
from models.ltx.guidance import PERTURBATIONS, guided, perturbations, predictions_of
from models.ltx.key_mapping import SPELLINGS
from models.ltx.latents import BothStreams, LatentGrid, latent_sizes_of, size_leaves
from models.ltx.network import LatentSizes, Times
from models.ltx.request import LTX2Request
from models.ltx.second_stage import second_latents, stage_inputs, without_shift
from models.ltx.sound import AudioParts, decode_audio
from models.nn.layers.step_cache import CachedStep
from models.parallel.dtypes import used_dtype
from models.sampling.flow_match import FlowMatchEuler
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.request import BY_CHECKPOINT, Request, RequestError
from models.text.tokenizer import Tokenizer, cut_prompts
from models.vae.config import Tiling


class LTX2Networks(NamedTuple):
    """Networks of an LTX-2 pipeline, as modules, graphs or weights."""

    transformer: Any
    text_encoder: Any
    connectors: Any
    vae: Any
    audio_vae: Any
    vocoder: Any
    preview: Any
    latent_upsampler: Any = None


class LTX2Pipeline(DenoisingPipeline[LTX2Networks]):
    """Pipeline of LTX-2: text and images to video with sound.

    Leaves of a row:
    - latents and denoised: the flat vector of both streams' tokens;
    - prompt_embeds and audio_embeds [prompts, text_tokens, context];
    - grid [f, h, w] and sound [tokens, frames per second]: shapes of empty arrays;
    - skip_self and skip_cross (empty arrays), if guidance uses those perturbations;
    - from_image (empty array), if the first frame is given.
    """

    REQUEST = LTX2Request
    PROMPTS = ("prompt_embeds", "audio_embeds")
    ENCODERS = ("connectors",)
    SPELLINGS = SPELLINGS

    def __init__(
        self,
        spec: ModelSpec,
        modules: LTX2Networks,
        grid: LatentGrid,
        scheduler: FlowMatchEuler,
        tokenizer: Tokenizer,
        vae_tiling: Tiling | None = None,
    ) -> None:
        super().__init__(spec, modules)
        self.config, self.connectors = modules.transformer.config, modules.connectors.config
        self.grid, self.scheduler, self.tokenizer = grid, scheduler, tokenizer
        self.vae_tiling = vae_tiling
        self.dtype = used_dtype(modules.transformer.video.tokens_in.kernel)
        self.vae_dtype = used_dtype(modules.vae.decoder_in.conv.kernel)
        upsampler = modules.latent_upsampler
        self.upsampler = None if upsampler is None else upsampler.config

    def read(self, fields: Fields) -> Request:
        """Read a request; LTX-2.0 ignores the scale of spatio-temporal guidance."""
        served = self.spec.fields | BY_CHECKPOINT
        return super().read({name: value for name, value in fields.items() if name in served})

    def plan_request(self, request: LTX2Request, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise of both streams, and plan the steps."""
        sizes, texts, limit = self.grid.latent_sizes(request), request.prompts, self._limit(request)
        read = self.tokenizer.encode_with_mask([text.strip() for text in texts.values()], limit)
        is_second = HIRES in images and self.upsampler is not None
        scheduler = without_shift(self.scheduler) if is_second else self.scheduler
        plan = flow_plan(request, scheduler, math.prod(sizes.grid))
        guided = [request.guided or bool(request.perturbed)] * len(plan)
        steps = flow_steps(request, plan, scheduler.solver, plan.timesteps, guided)
        inputs = {
            "ids": read.ids,
            "read": read.mask,
            **self._start(request, images, sizes),
            **({"noise_scale": solver_values(steps[0].values)["sigma"]} if is_second else {}),
            **size_leaves(sizes),
            **{name: np.zeros(0) for name in request.perturbed},
        }
        kinds = ("from image" if "image" in images else "from text", *request.perturbed)
        return Draft(
            f"{request.width}x{request.height}x{request.num_frames},fps={request.fps},text={limit},"
            f"prompts={len(texts)},{'+'.join(kinds)}",
            inputs,
            steps,
            request.width,
            request.height,
            request.seed,
            len(texts),
            warnings=(
                *cut_prompts("Gemma 3", self.tokenizer, texts, limit),
                *_without_effect(request),
            ),
        )

    def embed(self, weights: LTX2Networks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts for each stream, and the first frame."""
        words = inputs["read"].astype(bool)
        states = self.network(weights, "text_encoder")(inputs["ids"], words)
        contexts = self.network(weights, "connectors")(states, words)
        video, audio = self._first_latents(weights, inputs)
        marks = {"from_image": jnp.zeros(0)} if inputs.keys() & {"image", "from_image"} else {}
        return {
            "latents": BothStreams(video.reshape(-1, video.shape[-1]), audio).flat,
            "prompt_embeds": contexts.video.astype(self.dtype),
            "audio_embeds": contexts.audio.astype(self.dtype),
            **{name: inputs[name] for name in ("grid", "sound")},
            **{name: inputs[name] for name in PERTURBATIONS if name in inputs},
            **marks,
        }

    def _start(
        self, request: LTX2Request, images: Mapping[str, bytes], sizes: LatentSizes
    ) -> dict[str, np.ndarray]:
        """Return the inputs of a row's start: noise, a first frame, or first-stage latents."""
        if HIRES in images and self.upsampler is not None:
            marks = {"from_image": np.zeros(0)} if "image" in images else {}
            scale = self.upsampler.scale
            return {**stage_inputs(images, self.grid, sizes, request.seed, scale), **marks}
        inputs = self.grid.noise(request.seed, sizes)
        if "image" in images:
            inputs["image"] = read_first_frame(images["image"], request.width, request.height)
        return inputs

    def _first_latents(
        self, weights: LTX2Networks, inputs: Mapping[str, jax.Array]
    ) -> tuple[Float[Array, "f h w c"], Float[Array, "tokens features"]]:
        """Build the first latents of video and audio."""
        vae = self.network(weights, "vae")
        if "first_video" in inputs:
            upsampler = self.network(weights, "latent_upsampler")
            clean_frames = int("from_image" in inputs)
            return second_latents(inputs, upsampler, vae, self.vae_dtype, clean_frames=clean_frames)
        if "image" not in inputs:
            return inputs["noise"], inputs["audio_noise"]
        pixels = inputs["image"][None, None].astype(self.vae_dtype)
        video = jnp.concatenate([vae.normalised(vae.encode(pixels))[0], inputs["noise"][1:]])
        return video, inputs["audio_noise"]

    def predict(
        self,
        program: StepProgram,
        weights: LTX2Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch _one numbers"]:
        """Return the guided velocity of every row; guidance depends on the latents."""
        sizes, predictions = latent_sizes_of(rows), predictions_of(rows, program.guided)
        clean_tokens = math.prod(sizes.grid[1:]) if "from_image" in rows else 0
        streams, batch = self.grid.streams(rows["latents"], sizes), len(rows["latents"])

        def each_prediction(x: Array) -> Array:
            return jnp.repeat(x, len(predictions), axis=0)

        prompts = np.array([prediction.prompt for prediction in predictions])
        texts = (flatten_prompts(rows[name][:, prompts]) for name in self.PROMPTS)
        velocities = self.network(weights, "transformer")(
            (each_prediction(streams.video), each_prediction(streams.audio)),
            Contexts(*texts),
            self._times(each_prediction(values["timestep"]), streams.video.shape[1], clean_tokens),
            sizes,
            perturbations(predictions, batch, self.stg_block),
        )
        away = [prediction.weights(values) for prediction in predictions[1:]]
        sigma, share = solver_values(values)["sigma"], values["guidance_rescale"]
        output = BothStreams(
            *(
                guided(
                    latents,
                    velocity.astype(jnp.float32).reshape(
                        batch, len(predictions), *latents.shape[1:]
                    ),
                    sigma,
                    [weight[index] for weight in away],
                    share,
                )
                for index, (latents, velocity) in enumerate(zip(streams, velocities, strict=True))
            )
        )
        video = output.video.at[:, :clean_tokens].set(0)
        return output._replace(video=video).flat[:, None]

    def decode(self, weights: LTX2Networks, row: PyTree) -> Clip:
        """Decode a row's latents to frames and a waveform."""
        vae = self.network(weights, "vae")
        latents = vae.denormalised(self._video(row, "latents"))
        pixels = vae.decode_in_tiles(latents[None].astype(self.vae_dtype), self.vae_tiling)
        parts = AudioParts(*(self.network(weights, name) for name in ("audio_vae", "vocoder")))
        audio = self.grid.streams(row["latents"], latent_sizes_of(row)).audio
        sound = decode_audio(parts, audio[None])[0]
        record_finite(sound, SOUND)
        return Clip(to_frames(pixels[0]), sound)

    def preview(self, weights: LTX2Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean video latents with a linear map."""
        return to_frames(self.network(weights, "preview")(self._video(row, "denoised")))

    @property
    def stg_block(self) -> int:
        """Index of the block that skips self-attention in spatio-temporal guidance."""
        last: int = self.config.num_layers - 1
        return min(STG_BLOCK, last)

    def _video(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        sizes = latent_sizes_of(row)
        return self.grid.streams(row[name], sizes).video.reshape(*sizes.grid, -1)

    def _times(self, time: Float[Array, " batch"], tokens: int, clean: int) -> tuple[Times, Times]:
        """Return the timesteps of both streams.

        Args:
            clean: number of leading video tokens that are clean.
        """
        audio = Times(time, time, time)
        if not clean:
            return audio, audio
        time_of_tokens = jnp.where(np.arange(tokens) < clean, 0, time[:, None])
        return Times(
            time_of_tokens, time if self.config.modulates_text else time_of_tokens, time
        ), audio

    def _limit(self, request: LTX2Request) -> int:
        """Return the maximum number of text tokens.

        Raises: RequestError: not a multiple of the registers.
        """
        limit, multiple = request.max_sequence_length, self.connectors.multiple
        if limit % multiple:
            raise RequestError("max_sequence_length", f"must be a multiple of {multiple}")
        return limit


STG_BLOCK = 28
"""Block of LTX-2.3 that skips self-attention in spatio-temporal guidance, as in diffusers'
LTX2Pipeline."""


def _without_effect(request: LTX2Request) -> tuple[RequestWarning, ...]:
    if request.negative_prompt is None or len(request.prompts) > 1:
        return ()
    message = "has no effect: guidance_scale and audio_guidance_scale are at most 1"
    return (RequestWarning("negative_prompt", message),)
