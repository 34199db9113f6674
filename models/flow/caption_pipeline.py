"""Image pipelines with captions of different lengths, which may start from an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.control.by_row import HINTS
from models.flow.chat_pipeline import ChatNetworks, ChatPipeline
from models.flow.joint_control import control_inputs, hints
from models.interface.controls import RequestedControl, requested_controls
from models.interface.denoising_pipeline import Draft
from models.interface.flow_steps import flow_plan, flow_steps, preserved_scales, scheduler_of
from models.interface.image_start import draw_noise, first_latents, generator_of, image_inputs
from models.interface.pipeline import Step
from models.interface.solver_step import first_history, history_key
from models.interface.token_buckets import size_of_row
from models.nn.layers.step_cache import initial_cache
from models.sampling.base import Plan
from models.spec.request import FlowImageRequest, RequestError
from models.vae.references import as_grid


class CaptionPipeline(ChatPipeline):
    """Base pipeline that reads requests and creates their rows.

    A row has latents and denoised [tokens, 4c]; captions [prompts, text_tokens, features]; lengths
    [prompts], each caption's tokens without padding; and grid [h, w], an array without values in
    the shape of the VAE's latents, or the leaves of token buckets. If part of an image is kept, it
    has mask, clean and noise [tokens, 4c]. If the model has ControlNets, it has hints
    [slots, tokens, 4c]. It may have a step_cache.
    """

    PROMPTS = ("captions", "lengths")
    TEXT_NOISE_DTYPE: ClassVar[Any] = None
    """Precision of noise in text to image; None: that of the networks."""

    @staticmethod
    def pack(latents: Float[Array, "h w c"]) -> Float[Array, "tokens patch"]:
        """Pack latents [h, w, c] into tokens of 2 × 2."""
        raise NotImplementedError

    def plan_request(
        self, request: FlowImageRequest, images: Mapping[str, bytes], head: str = ""
    ) -> Draft:
        """Tokenize the prompts, draw the noise, and plan the steps.

        Args:
            head: text before each prompt.
        """
        h, w = self.grid_of(width=request.width, height=request.height)
        tokens = h * w // self.PATCH**2
        plan = self.plan(request, tokens, request.image_strength(from_image="image" in images))
        solver = scheduler_of(request, self.scheduler).solver
        control = requested_controls(
            request.control, images, self.spec, (request.width, request.height)
        )
        draw = partial(draw_noise, generator_of(request), self.latent_channels, (h, w))
        draft = self.build_draft(
            request,
            {
                **self.control_inputs(control, partial(draw, self.dtype)),
                **self._draws(request, images, plan, draw, (h, w)),
                **first_history(solver),
            },
            self.controls.steps(self.steps(request, plan), control),
            tokens,
            history_key(solver) + (",masked" if "mask_image" in images else ""),
            head,
        )
        return self.in_token_bucket(draft, request, (h, w))

    def control_inputs(
        self, controls: Sequence[RequestedControl], draw: Callable[[], Float[np.ndarray, "h w c"]]
    ) -> dict[str, np.ndarray]:
        """Return the inputs of a request's controls, as `models.flow.joint_control`."""
        return control_inputs(self.controls, controls, draw)

    def plan(self, request: FlowImageRequest, tokens: int, strength: float | None) -> Plan:
        """Return the request's schedule of sigmas and timesteps.

        Raises: RequestError: an invalid schedule, or one step for a schedule that ends above zero.
        """
        count = request.num_inference_steps if request.sigmas is None else len(request.sigmas)
        if self.scheduler.shift_terminal and count < 2:
            raise RequestError(
                "num_inference_steps" if request.sigmas is None else "sigmas",
                "must be 2 or more: this model's schedule is stretched to end at a noise of "
                f"{self.scheduler.shift_terminal}, which a single step cannot reach",
            )
        return flow_plan(request, scheduler_of(request, self.scheduler), tokens, strength)

    def steps(self, request: Any, plan: Plan) -> tuple[Step, ...]:
        """Return the table of denoising steps of a schedule."""
        solver = scheduler_of(request, self.scheduler).solver
        return flow_steps(request, plan, solver, None, None, **preserved_scales(plan))

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts, and an input image as initial latents."""
        read = inputs["read"].astype(bool)[:, self.CUT :]
        encode = partial(self.encode_image, weights)
        first = first_latents(inputs, encode, self.pack)
        if self.graphs.controls is not None:
            empty = jnp.zeros_like(first["latents"], self.dtype)
            first[HINTS] = hints(encode, self.pack, inputs, self.controls.count, empty)
        return {
            **first,
            **size_of_row(inputs, as_grid),
            "captions": self.captions(weights, inputs)[:, self.CUT :],
            "lengths": read.sum(axis=1, dtype=jnp.int32),
            **initial_cache(inputs, self.width, self.dtype),
        }

    def captions(
        self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]
    ) -> Float[Array, "prompts tokens features"]:
        """Encode the prompts with the text encoder."""
        encode = self.network(weights, "text_encoder")
        output: Array = encode(inputs["ids"], inputs["read"].astype(bool))
        return output

    def _draws(
        self,
        request: FlowImageRequest,
        images: Mapping[str, bytes],
        plan: Plan,
        draw: Callable[[Any], Float[np.ndarray, "h w c"]],
        grid: tuple[int, int],
    ) -> dict[str, np.ndarray]:
        """Draw the noise, and read the input image if there is one.

        Args:
            draw: draws the next noise of the request's generator, in a dtype.
        """
        if "image" not in images:
            return {"noise": draw(self.TEXT_NOISE_DTYPE or self.dtype)}
        size = (request.width, request.height)
        shape = (*grid, self.latent_channels)
        return image_inputs(images, size, shape, plan, partial(draw, self.dtype))
