"""Host-side preparation of a request: tokens, noise and the step table, all in NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from models.control.slots import NO_CONTROLS, ControlSlots
from models.interface.controls import requested_controls
from models.interface.denoising_pipeline import Draft
from models.interface.idle_options import idle_options
from models.interface.image_start import generator_of
from models.interface.pipeline import RequestWarning
from models.interface.solver_step import first_history, solver_key
from models.interface.step_program import StepProgram
from models.sampling import registry
from models.sampling.base import Plan, Scheduler
from models.sampling.ddim import DDIM
from models.sampling.tcd import TCD
from models.sdxl import initial_latents
from models.sdxl.conditioning import guidance_embedding, layers_from_the_end, time_ids
from models.sdxl.config import UNetConfig
from models.sdxl.image_prompts import read_image_prompts
from models.sdxl.initial_latents import Draws
from models.sdxl.latents import LatentSpace
from models.sdxl.prompts import IDS, NETWORKS, VECTORS, read_texts
from models.sdxl.refining import (
    NO_REFINER,
    PREFIX,
    REFINER,
    RefinerInputs,
    plan_with_refiner,
    uses_refiner,
)
from models.sdxl.request import SdxlRequest, task_of
from models.sdxl.step_table import plan_of, steps_of
from models.spec.model_spec import ModelSpec, Task
from models.spec.option import OptionError
from models.spec.request import RequestError
from models.text.clip import ClipConfig
from models.text.embeddings import encoder_vectors, with_vectors
from models.text.tokenizer import ReadTexts, Tokenizer
from models.vision.preprocess import ClipPreprocessor


@dataclass(frozen=True)
class Preparation:
    """Host-side preparation of requests for one SDXL checkpoint, without JAX programs."""

    spec: ModelSpec
    unet: UNetConfig
    latent_space: LatentSpace
    towers: tuple[ClipConfig, ...]
    tokenizers: tuple[Tokenizer, ...]
    scheduler: Mapping[str, Any]
    """Contents of `scheduler_config.json`."""
    force_zeros_for_empty_prompt: bool
    """Whether a missing negative prompt becomes zero embeddings, not an encoded empty text."""
    scored: bool = False
    """Whether the UNet takes an aesthetic score in place of a target size."""
    controls: ControlSlots = NO_CONTROLS
    image_prompts: Mapping[str, ClipPreprocessor] = field(default_factory=dict)
    """Image preprocessors of the IP-Adapters, by name."""
    refiner: Preparation | None = None
    """Preparation for the refiner's checkpoint; None without a refiner."""
    refiners_training: Mapping[str, Any] = field(default_factory=dict)
    """Scheduler options in which the refiner's training differs."""

    def plan_request(self, request: SdxlRequest, images: Mapping[str, bytes]) -> Draft:
        """Prepare the inputs and steps of one image.

        Raises: RequestError: an unsupported request; names the field.
        """
        task = task_of(images)
        self._check_task(task)
        self._check_refiner(request)
        scheduler = self._scheduler(request)
        refined = plan_with_refiner(request, scheduler, task, self.refiners_training)
        plan = refined.plan
        draws = self._draws(request)
        prompts = 2 if self._classifier_free(request) else 1
        texts = self._texts(request, images, prompts)
        size = (request.width, request.height)
        control = requested_controls(request.control, images, self.spec, size)
        image_inputs = read_image_prompts(request, images, self.spec, self.image_prompts)
        refining = self._refining(request, images, task, prompts)
        inputs = {
            **texts.inputs,
            **self._conditions(request, task, prompts),
            **refining.inputs,
            **self._start(request, task, plan, draws, images),
            **self.controls.inputs(control),
            **image_inputs.inputs,
            **first_history(scheduler.solver),
        }
        programs = [
            StepProgram(
                refined.network(step), prompts == 2, scheduler.solver, bool(plan.draws.any())
            )
            for step in range(len(plan))
        ]
        tokens = math.prod(texts.inputs["ids"].shape[1:])
        bucket = f"{request.width}x{request.height},text={tokens},prompts={prompts},"
        bucket += solver_key(scheduler.solver, plan)
        bucket += ",inpainting" if task == "inpainting" else ""
        bucket += image_inputs.key + refining.key
        return Draft(
            bucket,
            inputs,
            self.controls.steps(steps_of(request, plan, programs, draws), control),
            request.width,
            request.height,
            request.seed,
            prompts,
            draws.h * draws.w,
            uncached=frozenset({REFINER}),
            warnings=(*texts.warnings, *self._idle_options(request, task)),
        )

    def _refining(
        self, request: SdxlRequest, images: Mapping[str, bytes], task: Task, prompts: int
    ) -> RefinerInputs:
        """Return the refiner's inputs for the same prompts as the base model's."""
        if self.refiner is None or not uses_refiner(request, task):
            return NO_REFINER
        texts = self.refiner._texts(request, images, prompts)
        inputs = {**texts.inputs, **self.refiner._conditions(request, "image-to-image", prompts)}
        tokens = math.prod(texts.inputs["ids"].shape[1:])
        return RefinerInputs(
            {PREFIX + name: value for name, value in inputs.items()}, f",refined={tokens}"
        )

    def _texts(self, request: SdxlRequest, images: Mapping[str, bytes], prompts: int) -> ReadTexts:
        """Tokenize the prompts, with the vectors of the embeddings that they name."""
        texts = request.texts(prompts)[: len(self.tokenizers)]
        encoders = [
            encoder_vectors(request.embeddings, images, name, tower.hidden_size)
            for name, tower in zip(NETWORKS[-len(self.towers) :], self.towers, strict=True)
        ]
        tokenizers = self.tokenizers
        if request.names_embeddings:
            pairs = zip(encoders, self.tokenizers, strict=True)
            tokenizers = tuple(encoder.tokenizer(plain) for encoder, plain in pairs)
        read = read_texts(request.prompt_syntax, texts, tokenizers, self._tokens)
        return with_vectors(read, encoders, zip(IDS, VECTORS, strict=True))

    def _idle_options(self, request: SdxlRequest, task: Task) -> tuple[RequestWarning, ...]:
        return idle_options(request.scheduler, partial(self._planned, request, task))

    def _planned(
        self, request: SdxlRequest, task: Task, chosen_scheduler: Mapping[str, Any]
    ) -> tuple[Scheduler, Plan]:
        scheduler = self._scheduler(replace(request, scheduler=chosen_scheduler))
        return scheduler, plan_of(request, scheduler, task)

    def _check_task(self, task: Task) -> None:
        if task not in self.spec.tasks:
            served = ", ".join(self.spec.tasks)
            missing = "image" if "image-to-image" in self.spec.tasks else "mask_image"
            raise RequestError(missing, f"this model does {served}, not {task}")

    def _check_refiner(self, request: SdxlRequest) -> None:
        if request.refiner is not None and self.refiner is None:
            raise RequestError(
                "refiner",
                "this model has no refiner; an operator can configure one in the settings",
            )

    def _scheduler(self, request: SdxlRequest) -> Scheduler:
        """Return the request's scheduler, or the checkpoint's. Raises: RequestError."""
        chosen_scheduler = dict(request.scheduler or {})
        try:
            chosen = registry.for_request(self.scheduler, chosen_scheduler)
            if isinstance(chosen, DDIM | TCD) and request.eta is not None:
                chosen = replace(chosen, eta=request.eta)
        except OptionError as error:
            raise RequestError.of_scheduler(error) from error
        return chosen

    def _draws(self, request: SdxlRequest) -> Draws:
        """Return the random generator of an image's noise.

        Raises: RequestError: a size that is not whole latents.
        """
        down = self.latent_space.config.downsampling
        for name in ("width", "height"):
            size = getattr(request, name)
            if size < down or size % down:
                raise RequestError(name, f"must be a positive multiple of {down}, not {size}")
        return Draws(
            generator_of(request),
            request.height // down,
            request.width // down,
            self.latent_space.config.latent_channels,
            self.latent_space.dtype,
            self.latent_space.encoding_dtype,
        )

    def _conditions(self, request: SdxlRequest, task: Task, prompts: int) -> dict[str, np.ndarray]:
        """Return each prompt's hidden layer, size conditioning, and guidance as an input."""
        is_zeroed = self.force_zeros_for_empty_prompt and request.negative_prompt is None
        layers = min(tower.num_hidden_layers for tower in self.towers)
        numbers = request.scored_time_ids if self.scored else request.time_ids(task)
        inputs = {
            "layers": layers_from_the_end(request, prompts=prompts, layers=layers),
            "active_prompts": np.array([True, not is_zeroed][:prompts]),
            "time_ids": time_ids(numbers, prompts, self.latent_space.dtype),
        }
        if self.unet.time_cond_proj_dim is not None:
            features = self.unet.time_cond_proj_dim
            inputs["timestep_cond"] = guidance_embedding(request.guidance_scale, features)
        return inputs

    def _classifier_free(self, request: SdxlRequest) -> bool:
        """Return whether to use classifier-free guidance; false for guidance-distilled UNets."""
        return request.guidance_scale > 1 and self.unet.time_cond_proj_dim is None

    @property
    def _tokens(self) -> int:
        """Largest token count that all tokenizers and text encoders support."""
        positions = (tower.max_position_embeddings for tower in self.towers)
        return min(*(tokenizer.max_length for tokenizer in self.tokenizers), *positions)

    def _start(
        self,
        request: SdxlRequest,
        task: Task,
        plan: Plan,
        draws: Draws,
        images: Mapping[str, bytes],
    ) -> dict[str, np.ndarray]:
        if task == "text-to-image":
            return initial_latents.from_text(plan, draws)
        if task == "image-to-image":
            return initial_latents.from_image(request, plan, draws, images)
        by_channels = self.unet.in_channels > draws.channels
        inpaint = (
            initial_latents.inpainting_by_channels if by_channels else initial_latents.inpainting
        )
        return inpaint(request, plan, draws, images)
