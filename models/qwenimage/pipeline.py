"""Qwen-Image pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from models.flow.caption_pipeline import CaptionPipeline
from models.flow.chat_pipeline import ChatNetworks, ModulatedPipeline
from models.flow.joint_control import control_arrays
from models.interface.pipeline import PyTree
from models.nn.blocks.joint_control import ControlResiduals
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.controlnet import QwenImageControlNet
from models.qwenimage.key_mapping import SPELLINGS
from models.qwenimage.request import QwenImageRequest
from models.sampling.base import per_row
from models.sampling.guidance import classifier_free, with_norms_of
from models.text.chat import DESCRIBING_CUT
from models.vae.latent_frames import LatentFramePipeline
from models.vae.patches import pack, pack_on_host, unpack


class QwenImagePipeline(CaptionPipeline, ModulatedPipeline, LatentFramePipeline[ChatNetworks]):
    """Pipeline of Qwen-Image, for images from captions."""

    ENCODER = "Qwen2.5"
    SPELLINGS = SPELLINGS
    SCALE = "true_cfg_scale"
    CUT = DESCRIBING_CUT
    REQUEST = QwenImageRequest
    config: QwenImageConfig
    pack = staticmethod(pack)
    pack_on_host = staticmethod(pack_on_host)
    unpack = staticmethod(unpack)

    def network_inputs(
        self, weights: ChatNetworks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> Mapping[str, Any]:
        """Return the residuals of ControlNets; empty if the model has no ControlNets."""
        if self.graphs.controls is None:
            return {}
        h, w = rows["grid"].shape[1:3]
        grid, blocks = (h // self.PATCH, w // self.PATCH), (self.config.num_layers, 0)
        inputs = (
            *(rows["latents"][:, None], values["timestep"][:, None]),
            *(rows[name][:, :1] for name in self.PROMPTS),
        )

        def run(network: QwenImageControlNet, *inputs: Array) -> ControlResiduals:
            return network(grid, *inputs[:-1])  # without the kind: the network has none

        networks = nnx.merge(self.graphs.controls, weights.controls)
        arrays = control_arrays(networks, blocks, run, inputs, self.dtype, rows, values)
        return {"control_arrays": arrays}

    @property
    def break_even_tokens(self) -> int:
        """Tokens at which attention costs as much as a layer's 12 w² parameters."""
        return 6 * self.config.width

    def combine_prompts(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Apply classifier-free guidance; each token has the norm of the prompt's prediction."""
        positive = output[:, 0]
        scale = per_row(values[self.SCALE], positive)
        return with_norms_of(positive, classifier_free(positive, output[:, 1], scale))
