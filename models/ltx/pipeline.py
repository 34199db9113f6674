"""LTX-2 as the engine runs it: pure functions of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import DenoisingPipeline, Draft, each_alone
from models.interface.finite import SOUND, note_finite
from models.interface.images import to_frames
from models.interface.pipeline import Clip, Fields, PyTree, RequestError, RequestWarning
from models.interface.request import read_request
from models.interface.solver_step import solver_values
from models.interface.step_program import StepProgram
from models.ltx.adapter_names import SPELLINGS
from models.ltx.connectors import Contexts
from models.ltx.first_frame import read_first_frame
from models.ltx.guidance import answers_of, guided, perturbed
from models.ltx.latents import BothStreams, LatentGrid, places_of, sizes
from models.ltx.network import Places, Times
from models.ltx.request import LTX2Request, steps_of
from models.ltx.second_stage import second_latents, stage_inputs, with_given_sigmas
from models.ltx.sound import AudioParts, decode_audio
from models.nn.layers.step_cache import CachedStep
from models.parallel.dtypes import used_dtype
from models.sampling.flow_match import FlowMatchEuler
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.text.tokenizer import Tokenizer, cut_prompts
from models.vae.config import Tiling


class LTX2Networks(NamedTuple):
    """Value a network of the checkpoint: modules, graphs or weights."""

    transformer: Any
    text_encoder: Any
    connectors: Any
    vae: Any
    audio_vae: Any
    vocoder: Any
    preview: Any
    latent_upsampler: Any = None


class LTX2Pipeline(DenoisingPipeline[LTX2Networks]):
    """Pipeline of LTX-2.

    A row: latents and denoised, the numbers of both streams' tokens one behind the other;
    prompt_embeds and audio_embeds [prompts, text_tokens, context]; grid [f, h, w] and sound
    [tokens, frames a second], shapes of arrays without values. Without values too are alone and
    apart, where it is guided away from those answers, and from_image, where its first frame is
    known.
    """

    PROMPTS = ("prompt_embeds", "audio_embeds")
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

    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise of both streams, and plan the steps."""
        served = {name: value for name, value in fields.items() if name in self.spec.fields}
        request = read_request(LTX2Request, served)
        places, texts, limit = self.grid.places(request), request.prompts, self._limit(request)
        read = self.tokenizer.encode_with_mask([text.strip() for text in texts.values()], limit)
        is_second = HIRES in images and self.upsampler is not None
        scheduler = with_given_sigmas(self.scheduler) if is_second else self.scheduler
        steps = steps_of(request, scheduler, math.prod(places.grid))
        inputs = {
            "ids": read.ids,
            "read": read.mask,
            **self._start(request, images, places),
            **({"noise_scale": solver_values(steps[0].values)["sigma"]} if is_second else {}),
            **sizes(places),
            **{name: np.zeros(0) for name in request.perturbed},
        }
        asked = ("from image" if "image" in images else "from text", *request.perturbed)
        return Draft(
            f"{request.width}x{request.height}x{request.num_frames},fps={request.fps},text={limit},"
            f"prompts={len(texts)},{'+'.join(asked)}",
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
            **{name: inputs[name] for name in ("alone", "apart") if name in inputs},
            **marks,
        }

    def _start(
        self, request: LTX2Request, images: Mapping[str, bytes], places: Places
    ) -> dict[str, np.ndarray]:
        """Inputs of the first latents: noise, a first frame, or a first stage's latents."""
        if HIRES in images and self.upsampler is not None:
            known = {"from_image": np.zeros(0)} if "image" in images else {}
            scale = self.upsampler.scale
            return {**stage_inputs(images, self.grid, places, request.seed, scale), **known}
        inputs = self.grid.noise(request.seed, places)
        if "image" in images:
            inputs["image"] = read_first_frame(images["image"], request.width, request.height)
        return inputs

    def _first_latents(
        self, weights: LTX2Networks, inputs: Mapping[str, jax.Array]
    ) -> tuple[Float[Array, "f h w c"], Float[Array, "tokens features"]]:
        """Return the first latents of both streams."""
        vae = self.network(weights, "vae")
        if "first_video" in inputs:
            upsampler = self.network(weights, "latent_upsampler")
            known = int("from_image" in inputs)
            return second_latents(inputs, upsampler, vae, self.vae_dtype, known=known)
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
        conditions: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch _one numbers"]:
        """Return the guided velocity of every row: guidance goes by the latents."""
        places, answers = places_of(rows), answers_of(rows, program.guided)
        known = math.prod(places.grid[1:]) if "from_image" in rows else 0
        streams, batch = self.grid.streams(rows["latents"], places), len(rows["latents"])

        def each_answer(x: Array) -> Array:
            return jnp.repeat(x, len(answers), axis=0)

        prompts = np.array([answer.prompt for answer in answers])
        texts = (each_alone(rows[name][:, prompts]) for name in self.PROMPTS)
        velocities = self.network(weights, "transformer")(
            (each_answer(streams.video), each_answer(streams.audio)),
            Contexts(*texts),
            self._times(each_answer(values["timestep"]), streams.video.shape[1], known),
            places,
            perturbed(answers, batch, self.block_left_out),
        )
        away = [answer.weights(values) for answer in answers[1:]]
        sigma, share = solver_values(values)["sigma"], values["guidance_rescale"]
        found = BothStreams(
            *(
                guided(
                    latents,
                    velocity.astype(jnp.float32).reshape(batch, len(answers), *latents.shape[1:]),
                    sigma,
                    [weight[index] for weight in away],
                    share,
                )
                for index, (latents, velocity) in enumerate(zip(streams, velocities, strict=True))
            )
        )
        video = found.video.at[:, :known].set(0)
        return found._replace(video=video).flat[:, None]

    def decode(self, weights: LTX2Networks, row: PyTree) -> Clip:
        """Decode the latents of both streams."""
        vae = self.network(weights, "vae")
        latents = vae.denormalised(self._video(row, "latents"))
        pixels = vae.decode_in_tiles(latents[None].astype(self.vae_dtype), self.vae_tiling)
        parts = AudioParts(*(self.network(weights, name) for name in ("audio_vae", "vocoder")))
        audio = self.grid.streams(row["latents"], places_of(row)).audio
        sound = decode_audio(parts, audio[None])[0]
        note_finite(sound, SOUND)
        return Clip(to_frames(pixels[0]), sound)

    def preview(self, weights: LTX2Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents by a linear map."""
        return to_frames(self.network(weights, "preview")(self._video(row, "denoised")))

    @property
    def block_left_out(self) -> int:
        """Block without self-attention in the answers of spatio-temporal guidance."""
        return min(STG_BLOCK, self.config.num_layers - 1)

    def _video(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        places = places_of(row)
        return self.grid.streams(row[name], places).video.reshape(*places.grid, -1)

    def _times(self, time: Float[Array, " batch"], tokens: int, known: int) -> tuple[Times, Times]:
        """Return the timesteps of both streams.

        Args:
            known: tokens of the video that are clean, the first ones.
        """
        audio = Times(time, time, time)
        if not known:
            return audio, audio
        own = jnp.where(np.arange(tokens) < known, 0, time[:, None])
        return Times(own, time if self.config.modulates_text else own, time), audio

    def _limit(self, request: LTX2Request) -> int:
        """Return the tokens of a text. Raises: RequestError: registers do not divide them."""
        limit, multiple = request.max_sequence_length, self.connectors.multiple
        if limit % multiple:
            raise RequestError("max_sequence_length", f"must be a multiple of {multiple}")
        return limit


STG_BLOCK = 28
"""Block of LTX-2.3 that spatio-temporal guidance leaves out, as in diffusers' LTX2Pipeline."""


def _without_effect(request: LTX2Request) -> tuple[RequestWarning, ...]:
    if request.negative_prompt is None or len(request.prompts) > 1:
        return ()
    message = "has no effect: guidance_scale and audio_guidance_scale are at most 1"
    return (RequestWarning("negative_prompt", message),)
