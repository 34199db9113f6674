"""Z-Image pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.flow.caption_pipeline import CaptionPipeline
from models.flow.chat_pipeline import ChatNetworks
from models.interface.controls import RequestedControl
from models.interface.flow_steps import flow_steps, preserved_scales, scheduler_of
from models.interface.pipeline import PyTree, Step
from models.sampling.base import Plan, per_row
from models.sampling.guidance import bounded
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import pack_by_pixel, pack_by_pixel_on_host, unpack_by_pixel
from models.zimage.config import ZImageConfig
from models.zimage.controlling import residuals_of
from models.zimage.key_mapping import SPELLINGS
from models.zimage.request import ZImageRequest


class ZImagePipeline(CaptionPipeline, LatentImagePipeline[ChatNetworks]):
    """Pipeline of Z-Image: text and images to images."""

    ENCODER = "Qwen3"
    SPELLINGS = SPELLINGS
    REQUEST = ZImageRequest
    TEXT_NOISE_DTYPE = np.float32  # as in diffusers' pipelines
    config: ZImageConfig
    pack = staticmethod(pack_by_pixel)
    pack_on_host = staticmethod(pack_by_pixel_on_host)
    unpack = staticmethod(unpack_by_pixel)

    @property
    def break_even_tokens(self) -> int:
        """Tokens at which attention costs as much as a layer's 4 w² + 3 w · inner parameters."""
        return 2 * self.config.dim + 3 * self.config.inner // 2

    def steps(self, request: ZImageRequest, plan: Plan) -> tuple[Step, ...]:
        """Return the table of denoising steps; those after `cfg_truncation` have no guidance."""
        times = (np.float32(1000) - plan.timesteps) / np.float32(1000)
        guided = [request.guided and float(time) <= request.cfg_truncation for time in times]
        scaled = times * np.float32(self.config.t_scale)
        solver = scheduler_of(request, self.scheduler).solver
        return flow_steps(request, plan, solver, scaled, guided, **preserved_scales(plan))

    def control_inputs(
        self, controls: Sequence[RequestedControl], draw: Callable[[], np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the inputs of a request's controls, without noise: their latents are means."""
        return self.controls.inputs(controls)

    def network_inputs(
        self, weights: ChatNetworks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> Mapping[str, Any]:
        """Return the residuals of ControlNets; empty if the model has no ControlNets."""
        if self.graphs.controls is None:
            return {}
        networks = nnx.merge(self.graphs.controls, weights.controls)
        transformer = self.network(weights, "transformer")
        return {"residuals": residuals_of(networks, transformer, rows, values)}

    def combine_prompts(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Apply classifier-free guidance, with the norm bounded by `cfg_normalization`."""
        positive = output[:, 0]
        scale = per_row(values["guidance_scale"], positive)
        guided = positive + scale * (positive - output[:, 1])
        return bounded(guided, positive, values["cfg_normalization"])
